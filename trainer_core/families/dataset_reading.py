"""A dataset as a run would read it, and what can be said of it before its base is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..config import RunConfig
from ..config.defaults import resolved_length, run_length
from ..data.buckets import plan_buckets
from ..data.captions.length import TextLimit, long_caption_notes
from ..data.captions.notes import caption_notes
from ..data.report.dataset_report import DatasetReport
from ..data.report.finding_kinds import KINDS
from ..data.report.make_report import Batching, make_report
from ..data.sources.folder_problems import Scan
from ..data.sources.scan_dataset import scan_all
from ..errors import ConfigError, DatasetError
from ..filesystem.allowed_folders import AllowedFolders
from ..types import PlannedSample, Sample
from .family import Family
from .registry import get_family

CountTokens = Callable[[bool], TextLimit | None]
"""Whether samples have control images, to how their captions are counted."""


@dataclass(frozen=True, slots=True)
class DatasetReading:
    """A dataset as it was read.

    Attributes:
        found: What the folders hold.
        planned: The samples with their sizes.
        notes: What the plan and the lengths of captions tell.
        report: The facts.
        refusal: Why `train` would refuse it, or None.
    """

    found: Scan
    planned: tuple[PlannedSample, ...]
    notes: tuple[str, ...]
    report: DatasetReport
    refusal: DatasetError | None


def read_dataset(
    config: RunConfig,
    count: CountTokens,
    within: AllowedFolders | None = None,
    family: Family | None = None,
) -> DatasetReading:
    """Read a run file's dataset, as its family decides sizes; no image is decoded.

    `count` gives the tokens of captions, or None where the base is not at hand. Everything that is
    read really has to lie in `within`; None follows every link. A family is given where the caller
    made the base's.

    Raises:
        ConfigError: When no dataset is named.
        DatasetError: When there is no such folder, or nothing in it.
    """
    if not config.dataset.path and not config.dataset.folders:
        raise ConfigError(
            "dataset.path is not set",
            "a folder with images and captions",
            "Name the folder behind the verb, or set dataset.path.",
        )
    family = (family or get_family(config.family)).of_base(config.base)
    found = scan_all(config.dataset, within, stop=False, seed=config.seed, grid=family.clips)
    least = family.latents.size_multiple
    small: tuple[Sample, ...] = ()
    if not config.dataset.upscale:
        small = tuple(each for each in found.samples if min(each.width, each.height) < least)
    left_out = set(map(id, small))
    sized = [each for each in found.samples if id(each) not in left_out]
    plan = plan_buckets(
        sized, config.dataset, family.latents.size_multiple, family.latents.control_size
    )
    limit = count(any(sample.controls for sample in found.samples))
    own = sum(not (each.regularization or each.validation) for each in found.samples)
    steps = run_length(resolved_length(config, max(1, own)))
    training = config.training
    batching = Batching(training.batch_size, training.gradient_accumulation_steps, steps)
    report = make_report(
        found, plan.samples, config.dataset, batching=batching, limit=limit, too_small=small
    )
    refusal = found.refusal
    if refusal is None and small:
        first, least = small[0], family.latents.size_multiple
        refusal = DatasetError(
            f"{first.name} is {first.width} x {first.height} pixels",
            f"at least {least} x {least} pixels",
            KINDS["too_small"].remedy,
        )
    if refusal is None and report.stops:
        worst = report.findings[0]
        refusal = DatasetError(worst.title, "a dataset without it", worst.remedy)
    tokens = {each.name: each.tokens for each in report.images if each.tokens is not None}
    long = long_caption_notes(tokens, limit.tokens, config.base.text_length) if limit else ()
    rules = caption_notes(found.samples, config.dataset)
    return DatasetReading(
        found, plan.samples, (*plan.notes, *long, *rules), report=report, refusal=refusal
    )
