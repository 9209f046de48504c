"""`Measurements`: what a run writes down of a step beside what the loop itself knows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from ..device import memory_in_use
from ..diffusion.noise_bands import band_means, counted_levels
from ..types import StepResult
from .adapter_norms import AdapterNorms
from .loop_hooks import LoopHooks
from .step import SampleError
from .step_clock import StepClock

MEMORY_EVERY = 10
"""Steps between two looks at the memory that is taken; the first step is looked at, too."""

_MIB = 1 << 20


class Measurements:
    """Takes in what happens in a step and adds it to the step's result.

    Args:
        clock: Tells where time goes.
        norms: Measures the adapter.
        bands: ``metrics.sigma_bands``.
        device: Where the run computes.
        memory: Bytes that are taken, by name.
    """

    def __init__(
        self,
        clock: StepClock,
        norms: AdapterNorms,
        bands: int,
        device: torch.device,
        memory: Callable[[torch.device], Mapping[str, int]] = memory_in_use,
    ) -> None:
        self.clock = clock
        self._norms, self._bands = norms, bands
        self._device, self._memory = device, memory
        self._seen: Sequence[SampleError] = ()
        self._sizes: dict[str, float] | None = None
        self._peak, self._looked = 0, False

    def heard(self, hooks: LoopHooks) -> LoopHooks:
        """The same hooks, by which this hears of a step, too."""

        def updated(step: int) -> None:
            hooks.updated(step)
            self.updated(step)

        def seen(step: int, errors: Sequence[SampleError]) -> None:
            hooks.seen(step, errors)
            self.seen(step, errors)

        return replace(
            hooks,
            compute=self.clock.computing(hooks.compute),
            requests=self.clock.reading(hooks.requests),
            updated=updated,
            seen=seen,
        )

    def updated(self, step: int) -> None:
        """Behind the update of the weights."""
        self.clock.updated()
        self._sizes = self._norms.measure(step)

    def seen(self, step: int, errors: Sequence[SampleError]) -> None:
        """Take what the samples of a step were off by."""
        del step
        self._seen = errors

    def complete(self, result: StepResult) -> StepResult:
        """A step's result with all that was measured, in as many digits as mean something."""
        sigmas = [each.sigma for each in self._seen]
        errors = [each.error for each in self._seen]
        times, sizes = self.clock.take(), self._sizes
        # A step that is left out next has neither.
        self._seen, self._sizes = (), None
        bands = band_means(sigmas, errors, self._bands) if sigmas else None
        return replace(
            result,
            bands=bands and tuple(None if mean is None else _rounded(mean, 5) for mean in bands),
            levels=counted_levels(sigmas) if sigmas else None,
            norms=sizes and {block: _rounded(share, 4) for block, share in sizes.items()},
            times=times and {part: round(seconds, 4) for part, seconds in times.items()},
            memory=self._memory_of(result.step),
        )

    def _memory_of(self, step: int) -> dict[str, int] | None:
        if self._looked and step % MEMORY_EVERY:
            return None
        self._looked = True
        found = {name: size // _MIB for name, size in self._memory(self._device).items()}
        if "peak" in found:
            # The device's own record begins anew whenever blocks were moved.
            self._peak = found["peak"] = max(self._peak, found["peak"])
        return found or None


def _rounded(value: float, digits: int) -> float:
    return float(f"{value:.{digits}g}")
