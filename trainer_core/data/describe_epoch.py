"""The plan of sizes and batches in words, for the dataset's report and the start of a run."""

from __future__ import annotations

from collections.abc import Sequence

from ..config import DatasetSection, dataset_folders
from ..types import PlannedSample
from .batch_plan import BatchPlan
from .choose_view import Views
from .repeats_and_weights import repeats_and_weights

_MOST = 12


def planned_batches(
    samples: Sequence[PlannedSample],
    dataset: DatasetSection,
    batch_size: int,
    micro_batches: int,
    preserved_share: float = 0.0,
) -> BatchPlan | None:
    """The order of samples not yet encoded (text lengths are unknown); None without any."""
    repeats, _ = repeats_and_weights((each.sample for each in samples), dataset)
    if not any(repeats):
        return None
    sizes = [each.settings.batch_size or batch_size for each in dataset_folders(dataset)]
    kinds = [(each.control_buckets, len(each.sample.layers), False) for each in samples]
    folders = [each.sample.folder for each in samples]
    return BatchPlan(
        [each.bucket for each in samples],
        Views.of(dataset, seed=0).agreements(kinds, folders),
        [sizes[folder] for folder in folders],
        micro_batches=micro_batches,
        num_repeats=repeats,
        seed=0,
        preserved_share=preserved_share,
    )


def describe_plan(plan: BatchPlan) -> list[str]:
    """What an epoch is made of.

    Returns:
        A line for all, then one for each size, the one of most samples first; of more than twelve
        sizes the others in one line.
    """
    groups = sorted(plan.groups, key=lambda each: (-each.appearances, each.bucket))
    batches = sum(each.batches for each in groups)
    lines = [
        f"An epoch: {_count(plan.samples_per_epoch, 'sample')} in {_count(batches, 'batch')} and "
        f"{_count(plan.steps_per_epoch, 'step')}."
    ]
    shown = groups if len(groups) <= _MOST else groups[: _MOST - 1]
    for each in shown:
        name = str(each.bucket)
        images = _count(len(each.indices), "image")
        often = (
            f", {each.appearances} times an epoch" if each.appearances > len(each.indices) else ""
        )
        left = each.appearances % each.own
        rest = f" and {left} left to share a step" if left else ""
        lines.append(
            f"  {name}: {images}{often}, {_count(each.batches, 'batch')} of at most "
            f"{each.batch_size}, {_count(each.full_steps, 'full step')}{rest}"
        )
    if rest := groups[len(shown) :]:
        images = sum(len(each.indices) for each in rest)
        lines.append(f"  and {len(rest)} more sizes with {_count(images, 'image')}")
    return lines


def _count(number: int, what: str) -> str:
    ending = "" if number == 1 else "es" if what.endswith("ch") else "s"
    return f"{number:,} {what}{ending}"
