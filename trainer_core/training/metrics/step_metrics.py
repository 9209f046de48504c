"""`StepMetrics`: adds norms, times, memory and loss by noise level to a step's result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from ...device import memory_in_use
from ...diffusion.noise_bands import band_means, counted_levels
from ...types import StepResult
from ..step.micro_batch import SampleLoss
from ..step.step_clock import StepClock
from .adapter_norms import AdapterNorms

MEMORY_EVERY = 10
"""Steps between two looks at the memory that is taken; the first step is looked at, too."""

_MIB = 1 << 20


class StepMetrics:
    """Measures what the loop itself does not know of a step.

    Args:
        bands: ``metrics.sigma_bands``.
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
        self._clock, self._norms, self._bands = clock, norms, bands
        self._device, self._memory = device, memory
        self._sizes: dict[str, float] | None = None
        self._peak, self._looked = 0, False

    def measure_norms(self, step: int) -> None:
        """Measure the adapter behind an update, where it is due."""
        self._sizes = self._norms.measure(step)

    def add_to(self, result: StepResult, errors: Sequence[SampleLoss]) -> StepResult:
        """A step's result with all that was measured, in as many digits as mean something.

        Args:
            errors: What its samples were off by; none of a step that was left out.
        """
        sigmas = [each.sigma for each in errors]
        times, sizes = self._clock.take(), self._sizes
        self._sizes = None  # a step that is left out next has none
        bands = band_means(sigmas, [e.error for e in errors], self._bands) if sigmas else None
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
