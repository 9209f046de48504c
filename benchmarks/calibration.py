"""What the defaults of each kind learn in 100 steps, beside a LoRA of rank 16 at 1e-4.

Every kind has its defaults and the default learning rate. Its progress is measured along the
gradient and as norm of the delta, on synthetic gradients of low rank and on the embedded base's own
layers, and divided by the LoRA's under the same conditions. DoRA stands beside it as a check.
docs/decisions/0013-defaults-that-learn.md says what follows.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainer_core.adapters import AdapterConfig
from trainer_core.config import OptimizerSection

from .measuring.progress import STEPS, EmbeddedBase, Progress, synthetic_progress
from .measuring.record import origin, write_record

BAR = 1.5
"""Largest factor by which a kind may be ahead of the LoRA or behind it."""

SHARE = 3.0
"""Largest number of parameters, over the LoRA's."""

SHAPES = ((3072, 3072), (3072, 12288), (12288, 3072))
NOISES = (0.0, 1.7)
"""Steady, and as noisy as the gradient of the two samples of a step on the embedded base."""

SEEDS = tuple(range(400, 406))
"""Not those with which the initialization were chosen, which were below 400."""

REFERENCE: dict[str, Any] = {"kind": "lora", "rank": 16, "alpha": 16.0}
REFERENCE_RATE = 1e-4
KINDS: dict[str, dict[str, Any]] = {kind: {"kind": kind} for kind in ("lora", "loha", "lokr")}
OTHERS: dict[str, dict[str, Any]] = {
    "lokr factor -1, lycoris": {"kind": "lokr", "factor": -1, "init": "lycoris"},
    "lokr factor 8, lycoris": {"kind": "lokr", "factor": 8, "init": "lycoris"},
    "lokr factor 8 whole": {"kind": "lokr", "factor": 8, "full_matrix": True},
    "lokr factor 4": {"kind": "lokr", "factor": 4},
    "lokr factor 8": {"kind": "lokr", "factor": 8},
    "loha lycoris": {"kind": "loha", "init": "lycoris"},
    "oft": {"kind": "oft"},
}
"""What the defaults could have been, and oft, which no size brings to the bar; measured on the
square layer alone."""

Measure = Callable[[dict[str, Any], float, int], Progress]


@dataclass(frozen=True)
class Row:
    """One kind under one condition; mean over the seeds, ratios over the reference.

    Attributes:
        gradient: The condition.
        adapter: What was trained: a kind's defaults, or something else.
        dora: Whether with DoRA.
        along: Progress along the gradient.
        norm: Norm of the delta.
        along_ratio: Over the LoRA's.
        norm_ratio: Over the LoRA's.
        parameters_ratio: Over the LoRA's.
    """

    gradient: str
    adapter: str
    dora: bool
    along: float
    norm: float
    along_ratio: float
    norm_ratio: float
    parameters_ratio: float

    @property
    def met(self) -> bool:
        """Whether both measures are within the bar, and the size within its own."""
        ratios = (self.along_ratio, self.norm_ratio)
        near = all(1 / BAR <= ratio <= BAR for ratio in ratios)
        return near and self.parameters_ratio <= SHARE


def compare(
    gradient: str, measure: Measure, adapters: dict[str, dict[str, Any]], seeds: tuple[int, ...]
) -> Iterator[Row]:
    """Measure adapters beside the reference under one condition.

    Args:
        gradient: Name of the condition.
        measure: Adapter settings, learning rate and seed to progress.
        adapters: Name to settings.
        seeds: Each is measured with all.

    Yields:
        One row for each adapter, as soon as it is there.
    """
    rate = OptimizerSection().learning_rate
    reference = _mean([measure(REFERENCE, REFERENCE_RATE, seed) for seed in seeds])
    for name, settings in adapters.items():
        found = _mean([measure(settings, rate, seed) for seed in seeds])
        yield Row(
            gradient,
            name.removesuffix(" DoRA"),
            bool(settings.get("dora")),
            round(found.along, 4),
            round(found.norm, 4),
            round(found.along / reference.along, 3),
            round(found.norm / reference.norm, 3),
            round(found.parameters / reference.parameters, 3),
        )


def synthetic(shape: tuple[int, int], noise: float) -> tuple[str, Measure]:
    """The condition of one layer on a synthetic gradient: its name and its measure."""

    def measure(settings: dict[str, Any], rate: float, seed: int) -> Progress:
        return synthetic_progress(AdapterConfig(**settings), rate, shape, noise, seed)

    return f"{shape[0]}->{shape[1]}, {'noisy' if noise else 'steady'}", measure


def _mean(found: list[Progress]) -> Progress:
    return Progress(
        statistics.mean(each.along for each in found),
        statistics.mean(each.norm for each in found),
        found[0].parameters,
    )


def _with_dora(adapters: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {f"{name} DoRA": {**settings, "dora": True} for name, settings in adapters.items()}


def _rows(folder: Path) -> Iterator[Row]:
    for shape in SHAPES:
        for noise in NOISES:
            others = OTHERS if shape[0] == shape[1] else {}
            yield from compare(*synthetic(shape, noise), {**KINDS, **others}, SEEDS)
    base = EmbeddedBase(folder)
    adapters = {**KINDS, **_with_dora(KINDS)}
    yield from compare("embedded base", base.progress, adapters, SEEDS[:2])


def main() -> None:
    """Measure, print the rows, and write them as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, help="write everything to this JSON file as well")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    measured = origin()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for row in _rows(Path(folder)):
            rows.append(row)
            print(
                f"{row.gradient:24} {row.adapter + ' DoRA' * row.dora:26} along {row.along:7.3f} "
                f"x{row.along_ratio:5.2f}   norm {row.norm:7.3f} x{row.norm_ratio:5.2f}   "
                f"parameters x{row.parameters_ratio:4.2f}   {'met' if row.met else '-'}",
                flush=True,
            )
    if arguments.output:
        write_record(arguments.output, _record(rows, measured))


def _record(rows: list[Row], measured: dict[str, Any]) -> dict[str, Any]:
    return {
        "benchmark": "calibration",
        **measured,
        "steps": STEPS,
        "reference": {**REFERENCE, "learning_rate": REFERENCE_RATE},
        "learning_rate": OptimizerSection().learning_rate,
        "defaults": {
            kind: AdapterConfig(**settings).model_dump(include={"rank", "alpha", "factor"})
            for kind, settings in KINDS.items()
        },
        "noises": NOISES,
        "seeds": SEEDS,
        "rows": [{**asdict(row), "met": row.met} for row in rows],
    }


if __name__ == "__main__":
    main()
