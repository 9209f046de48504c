"""What a load proof finds: the fate of every tensor, and how far each layer's delta is off."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...adapters.kinds.file_rules import Outcome

LOADED: Outcome = "loaded"
LARGEST_DIFFERENCE = 1e-5
"""Relative difference of two changes in float32 that is no more than rounding."""


MOST_ROUNDING = 0.1
"""Relative difference that is no longer taken for rounding, whatever the number format."""


BLIND = (
    "whether the file holds what was trained. Two readings of one file agree however it was made; "
    "only an image made with it shows that it does what it should."
)
"""What no proof of a file sees."""


@dataclass(frozen=True, slots=True)
class TensorProof:
    """What becomes of one tensor of a file.

    Attributes:
        outcome: ``loaded``, ``ignored``, ``wrong shape`` or ``read wrongly``.
        place: What it changes in ComfyUI's model, with the rows of a part; None when nothing.
        reason: Why it is not loaded; empty when it is.
    """

    outcome: Outcome
    place: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LayerProof:
    """How ComfyUI's delta of a layer differs from the trainer's.

    Attributes:
        difference: ``||theirs - ours|| / ||ours||``; None when it was not compared.
        allowed: The largest difference that is only rounding.
        reason: Why it was not compared; empty when it was.
        rounding: What rounding the trainer's factors to the file's number format changes.
        still: Whether the trainer's delta is zero.
        cause: Why it differs, where that is known.
    """

    difference: float | None
    allowed: float = LARGEST_DIFFERENCE
    reason: str = ""
    rounding: float = 0.0
    still: bool = False
    cause: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing was found that is wrong."""
        return self.difference is None or self.difference <= self.allowed


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether ComfyUI loads a file as the trainer means it.

    Attributes:
        path: The file; None for an adapter of a graph.
        base: Whose shapes were taken.
        tensors: Key to its fate.
        layers: Layer to its difference; empty where there was nothing to compare with.
        unread: Why the trainer itself cannot read the file, so that nothing was compared.
        bypassed: What ComfyUI's bypass loaders make of the file, where that is another thing.
        warnings: What loads as it is meant, and will hardly do what was meant.
    """

    path: Path | None
    base: str
    tensors: Mapping[str, TensorProof]
    layers: Mapping[str, LayerProof]
    unread: str = ""
    bypassed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the file loads as it is meant (`loads`), was compared, and changes anything."""
        return self.loads and not self.inert and self.compared > 0

    @property
    def compared(self) -> int:
        """How many layers ComfyUI's reading and the trainer's were held against each other of."""
        return sum(layer.difference is not None for layer in self.layers.values())

    @property
    def loads(self) -> bool:
        """Whether every tensor is loaded and no layer differs by more than rounding."""
        loaded = all(each.outcome == LOADED for each in self.tensors.values())
        return bool(self.tensors) and loaded and all(each.ok for each in self.layers.values())

    @property
    def still(self) -> tuple[str, ...]:
        """The layers whose delta is zero."""
        return tuple(name for name, layer in self.layers.items() if layer.still)

    @property
    def inert(self) -> bool:
        """Whether there are layers, and the delta of every one of them is zero."""
        return bool(self.layers) and len(self.still) == len(self.layers)

    @property
    def largest(self) -> float | None:
        """The largest difference; None when nothing was compared, not a number before all."""
        found = [each.difference for each in self.layers.values() if each.difference is not None]
        return max(found, key=lambda value: (math.isnan(value), value), default=None)

    def problems(self) -> Iterator[str]:
        """A line for each tensor that is not loaded, each layer that differs, and for no change."""
        for key, each in self.tensors.items():
            if each.outcome != LOADED:
                yield f"{each.outcome}: {key}: {each.reason}"
        for name, layer in self.layers.items():
            if not layer.ok:
                yield (
                    f"differs: {name}: by {layer.difference:.2g} of its change, where rounding "
                    f"allows {layer.allowed:.2g}" + (f": {layer.cause}" if layer.cause else "")
                )
        if self.loads and not self.compared:
            yield f"proved nothing: no layer was compared{self._reason()}"
        if self.inert:
            yield (
                f"changes nothing: the change of every layer ({len(self.layers)}) is zero, as "
                "before the first step of training"
            )

    def summary(self) -> dict[str, Any]:
        """The result in a few plain values."""
        outcomes = Counter(each.outcome for each in self.tensors.values())
        compared = self.compared
        summary: dict[str, Any] = {
            "ok": self.ok,
            "base": self.base,
            "tensors": dict(outcomes),
            "layers compared": compared,
            "largest difference": self.largest,
        }
        others = {each.reason for each in self.layers.values() if each.difference is None}
        if compared < len(self.layers):
            summary["layers not compared"] = len(self.layers) - compared
            summary["because"] = sorted(others)
        if self.still:
            summary["layers that change nothing"] = len(self.still)
        if self.unread:
            summary["not compared"] = self.unread
        if self.bypassed:
            summary["bypass loaders"] = list(self.bypassed)
        if self.warnings:
            summary["warnings"] = list(self.warnings)
        summary["cannot see"] = BLIND
        return summary

    def _reason(self) -> str:
        reasons = {each.reason for each in self.layers.values() if each.difference is None}
        told = "; ".join(sorted(reasons)) or self.unread
        return f": {told}" if told else ""

    def _verdict(self) -> str:
        if self.ok:
            return "Fine"
        return "PROVED NOTHING" if self.loads and not self.compared else "NOT FINE"

    def text(self, most: int = 40) -> str:
        """The result for a person: one paragraph, then the problems.

        Args:
            most: How many problems are named before they are only counted.
        """
        loaded = sum(each.outcome == LOADED for each in self.tensors.values())
        summary = self.summary()
        lines = [
            f"{self._verdict()}: {loaded} of {len(self.tensors)} tensors are "
            f"loaded; {summary['layers compared']} layers compared"
            + ("" if self.largest is None else f", largest difference {self.largest:.1e}")
            + f". Base: {self.base}."
        ]
        if self.unread and not self.loads:
            lines.append(f"Nothing was compared: {self.unread}")
        if "because" in summary:
            count = summary["layers not compared"]
            lines.append(f"{count} layers were not compared: {'; '.join(summary['because'])}")
        if self.still and not self.inert:
            lines.append(f"{len(self.still)} layers change nothing, {self.still[0]} first")
        problems = list(self.problems())
        lines += problems[:most]
        if len(problems) > most:
            lines.append(f"and {len(problems) - most} more")
        lines += [f"Warning: {line}" for line in self.warnings]
        lines += [f"Bypass loaders: {line}" for line in self.bypassed]
        lines.append(f"Not seen: {BLIND}")
        return "\n".join(lines)
