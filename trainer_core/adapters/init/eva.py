"""Initialization of a LoRA from what its layers see: EVA's.

The lower factor of each layer becomes the main directions of the layer's inputs: the eigenvectors
of their covariance with the largest eigenvalues, found batch by batch. The upper factor is zero,
and so is the delta. Every layer keeps its own rank; PEFT's ``rho`` is 1 here.

Sources: Paischer et al. 2024, arXiv:2410.07170 (EVA); Ross et al. 2008, "Incremental Learning for
Robust Visual Tracking" (singular values batch by batch, with a moving mean).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ...counters import counter_seed
from ...errors import AdapterError
from ...tensors.randomized_svd import largest_singular
from ...tensors.rounding import all_finite
from ..attachment import AttachedAdapter
from ..layer.factor_layer import ADAPTER_NAME
from .pissa_olora import decomposable

MOST_BATCHES = 32
"""Batches that are looked at if some directions do not settle before."""

_SETTLED = 0.99
"""Cosine between a direction before and after a batch at which it counts as settled: PEFT's tau."""

_SWEEPS = 4
"""Of the iteration for each batch, as PEFT; the next batch goes on from what it found."""

_NOTHING = 1e-6
"""Share of the largest singular value below which a direction is rounding."""


class Directions:
    """The main directions of rows that come in batches.

    Attributes:
        count: How many directions are wanted.
        found: `[k, in]`, orthonormal, the largest first; k is below `count` while the rows do not
            span more. None before the first batch.
        settled: Whether the last batch turned none of them.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.found: Tensor | None = None
        self.settled = False
        self._values = torch.empty(0)
        self._mean = torch.empty(0)
        self._seen = 0

    def add(self, rows: Tensor) -> None:
        """Take a batch `[n, in]`, n at least 1, into account: float32, where they decompose."""
        new, mean = rows.shape[0], rows.mean(dim=0, dtype=torch.float64)
        total = self._seen + new
        centred = rows - mean
        before = self.found
        if before is None:
            self._mean = mean
        else:
            # The means of before and now differ; this row is what that adds to the covariance.
            shift = (self._mean - mean) * (self._seen / total * new) ** 0.5
            known = self._values[:, None] * before
            centred = torch.cat([known, centred.float(), shift[None].float()])
            self._mean = self._mean + (mean - self._mean) * (new / total)
        self._seen = total
        generator = torch.Generator().manual_seed(0)
        count = min(self.count, *centred.shape)
        _, values, found = largest_singular(centred.float(), count, generator, _SWEEPS)
        kept = int((values > _NOTHING * values[0]).sum())
        # Either sign would do; PEFT's rule makes it the same one on every device.
        largest = found.gather(1, found.abs().argmax(dim=1, keepdim=True))
        self._values, self.found = values[:kept], (found * largest.sign())[:kept]
        self.settled = before is not None and self._is_settled(before, self.found)

    def _is_settled(self, before: Tensor, now: Tensor) -> bool:
        if before.shape != now.shape or now.shape[0] < self.count:
            return False
        return bool(((before * now).sum(dim=1) >= _SETTLED).all())

    def completed(self, rank: int, generator: torch.Generator) -> Tensor:
        """The first directions `[rank, in]`, orthonormal; random ones where fewer were found.

        The rank is at most `in`; the generator is on the CPU.
        """
        assert self.found is not None
        found = self.found[:rank]
        missing = rank - found.shape[0]
        if not missing:
            return found
        random = torch.randn(missing, found.shape[1], generator=generator).to(found)
        together = torch.cat([found, random]).t()
        # A basis of both; its first part has the span of what was found.
        basis = torch.linalg.qr(together)[0].t()
        return torch.cat([found, basis[found.shape[0] :]])


@dataclass(frozen=True, slots=True)
class SeenInputs:
    """What was looked at.

    Attributes:
        batches: How many.
        settled: Layers whose directions settled.
        unsettled: Layers whose directions still turned at the last batch.
        unseen: Layers that were never called; they keep the usual initialization.
    """

    batches: int
    settled: tuple[str, ...]
    unsettled: tuple[str, ...]
    unseen: tuple[str, ...]

    def summary(self) -> str:
        """One line for the run's log."""
        known = len(self.settled) + len(self.unsettled)
        text = (
            f"eva: the adapter starts from the inputs of {known} layers in {self.batches} batches; "
            f"the directions of {len(self.settled)} layers settled"
        )
        if self.unseen:
            text += (
                f"; {len(self.unseen)} were never called and keep the usual initialization "
                f"({self.unseen[0]}, ...)"
            )
        return f"{text}."


class _Watch:
    """Reads what an adapter's layers are handed while a module runs."""

    def __init__(self, adapter: AttachedAdapter) -> None:
        self._layers = adapter.layers
        # Layers that share their input share their directions, so that there must be enough of
        # them for the largest of their ranks.
        largest: dict[int, int] = {}
        for layer in self._layers.values():
            rank = layer.r[ADAPTER_NAME]
            largest[layer.in_features] = max(rank, largest.get(layer.in_features, 0))
        self._counts = {name: largest[layer.in_features] for name, layer in self._layers.items()}
        self.owners: dict[str, str] = {}
        self.directions: dict[str, Directions] = {}
        self._first_batch = True
        self._last: tuple[Tensor | None, str] = None, ""
        self._handles = [
            layer.register_forward_pre_hook(partial(self._look, name))
            for name, layer in self._layers.items()
        ]

    @property
    def all_settled(self) -> bool:
        """Whether there are directions, and none of them turns any more."""
        found = self.directions.values()
        return bool(found) and all(each.settled for each in found)

    def batch_done(self) -> None:
        """Say that the module has run on a whole batch."""
        self._first_batch, self._last = False, (None, "")

    def close(self) -> None:
        """Take the hooks off."""
        for handle in self._handles:
            handle.remove()

    def _look(self, name: str, layer: nn.Module, handed: tuple[Tensor, ...]) -> None:
        del layer
        x = handed[0]
        if name not in self.owners and self._first_batch:
            # As q, k and v: handed the very tensor that the layer before was handed.
            last, owner = self._last
            self.owners[name] = owner if x is last else name
            self._last = x, self.owners[name]
        if self.owners.get(name, name) != name:
            return
        found = self.directions.setdefault(name, Directions(self._counts[name]))
        if found.settled or not x.numel():
            return
        rows = decomposable(x.detach().reshape(-1, x.shape[-1]).float())
        if not all_finite(rows):
            raise AdapterError(
                f"adapter.init is eva, and {name} was handed a value that is not finite",
                "finite inputs of every layer",
                "Set training.precision to fp32, or adapter.init to default.",
            )
        found.add(rows)


def initialize_from_inputs(
    adapter: AttachedAdapter,
    forward: Callable[[int], object],
    seed: int,
    stop: Callable[[], bool] = lambda: False,
) -> SeenInputs | None:
    """Let the lower factors of a new adapter begin at the main directions of the layers' inputs.

    The adapter, fresh from `attach` with ``init: eva``, is changed in place; its delta stays zero.
    `forward` runs the module on a batch, counted from 0, without a gradient. The run's seed is for
    directions beyond those that the inputs have. Gives what was looked at; None when it was
    stopped, and nothing is changed then.

    Raises:
        AdapterError: When the adapter has another ``init``, or an input is not finite.
    """
    if adapter.config.init != "eva":
        raise AdapterError(
            f"adapter.init is {adapter.config.init}",
            "eva, the initialization from the layers' inputs",
            "Attach the adapter with init eva and kind lora.",
        )
    watch, batches = _Watch(adapter), 0
    try:
        while batches < MOST_BATCHES and not watch.all_settled:
            if stop():
                return None
            with torch.no_grad():
                forward(batches)
            watch.batch_done()
            batches += 1
    finally:
        watch.close()
    return _take_over(adapter, watch, seed, batches)


def _take_over(adapter: AttachedAdapter, watch: _Watch, seed: int, batches: int) -> SeenInputs:
    places: dict[str, list[str]] = {"settled": [], "unsettled": [], "unseen": []}
    for name, layer in adapter.layers.items():
        found = watch.directions.get(watch.owners.get(name, name))
        if found is None or found.found is None:
            places["unseen"].append(name)
            continue
        generator = torch.Generator().manual_seed(counter_seed(seed, "init", name, "eva"))
        down = layer.factors()["lora_down"]
        with torch.no_grad():
            down.copy_(found.completed(down.shape[0], generator))
        places["settled" if found.settled else "unsettled"].append(name)
    return SeenInputs(batches, **{place: tuple(names) for place, names in places.items()})
