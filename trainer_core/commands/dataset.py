"""``dataset``: what a dataset holds, what is wrong with it, and what a run would make of it."""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import RunConfig
from ..data.sources.list_files import dataset_root
from ..errors import DatasetError, InputError, TrainerError
from ..families.run_files import load_config
from ..filesystem.storage import given_path, require_folder, write_text
from . import VERBS
from .arguments import Arguments, is_set
from .console import overwrite_line, show, show_json
from .local_base import local_text_limit, locate_local_base

if TYPE_CHECKING:
    from ..data.captions.length import TextLimit
    from ..data.report.dataset_report import DatasetReport, ReportedBucket
    from ..families.dataset_reading import DatasetReading
    from ..types import Bucket

_SIMULATED = 6
"""Buckets of which the memory is estimated: a simulated step of a large base takes seconds."""

_TOLD_EVERY = 50


def dataset(arguments: Arguments) -> int:
    """Report a dataset; returns 2 when `train` would refuse it.

    Raises:
        InputError: When there is no such folder, or a setting is wrong.
    """
    options, arguments = arguments.split(VERBS["dataset"].own)
    last = {name: values[-1] for name, values in options.items()}
    config, is_run_file = _config(arguments)
    outputs = _outputs(last)
    decodes = is_set(last, "looks") or bool(outputs)
    reading = _read_dataset(config)
    report = _completed(config, reading.report, arguments.settings, is_run_file=is_run_file)
    if decodes:
        report = _inspected(config, report, quiet=arguments.json)
    files = _write(report, outputs)
    if arguments.json:
        show_json({**_record(reading, report), "files": files})
    else:
        _show(config, reading, report, decoded=decodes)
        for name, file in files.items():
            show(f"{name}: {file}")
    return 2 if report.stops or reading.refusal else 0


def _config(arguments: Arguments) -> tuple[RunConfig, bool]:
    """The run file, or one for the folder that was named; whether it is a file."""
    word = arguments.word("a dataset folder or a run file", default="")
    place = given_path(word, "a dataset folder or a run file") if word else None
    is_run_file = place is not None and place.is_file()
    if is_run_file:
        config = arguments.config()
    else:
        folder = [f"dataset.path={place.absolute()}"] if place is not None else []
        config = load_config(None, [*arguments.settings, *folder])
    if config.dataset.path:
        dataset_root(config.dataset.path)
    return config, is_run_file


def _completed(
    config: RunConfig, report: DatasetReport, settings: Sequence[str], *, is_run_file: bool
) -> DatasetReport:
    """The report without figures of defaults, and with memory where the base was chosen."""
    if not is_run_file and not any(each.startswith("training.steps=") for each in settings):
        # The steps would be those of the defaults.
        schedule = dataclasses.replace(report.schedule, steps=None)
        report = dataclasses.replace(report, schedule=schedule)
    # Without a base of the person's own its figures would be those of the embedded one.
    names_base = any(each.startswith(("base.", "base=")) for each in settings)
    return with_vram(config, report) if is_run_file or names_base else report


def _show(
    config: RunConfig, reading: DatasetReading, report: DatasetReport, *, decoded: bool
) -> None:
    """Print the report, and what a run would note of captions and flips."""
    from ..data.captions.notes import caption_notes
    from ..data.flips import with_flips
    from ..data.report.report_text import report_text

    show(report_text(report))
    _, unflipped = with_flips(reading.planned, config.dataset)
    for note in (*unflipped, *caption_notes(reading.found.samples, config.dataset)):
        show(f"note: {note}")
    if not decoded:
        show("Images were not decoded; --looks finds those that are there twice or alike.")


def _read_dataset(config: RunConfig) -> DatasetReading:
    from ..families.dataset_reading import read_dataset

    def count(has_controls: bool) -> TextLimit | None:
        try:
            return local_text_limit(config, has_controls)
        except InputError:
            return None

    return read_dataset(config, count)


def with_vram(config: RunConfig, report: DatasetReport) -> DatasetReport:
    """Add what a step at each of the largest buckets is expected to take.

    Returns:
        The same report where the base is not at hand, or cannot be simulated.
    """
    controls = max((len(image.controls) for image in report.images), default=0)
    largest = sorted(report.buckets, key=lambda each: -each.width * each.height)[:_SIMULATED]
    try:
        sizes = _vram(config, largest, controls)
    except (TrainerError, ImportError):
        return report
    buckets = tuple(
        dataclasses.replace(each, vram_bytes=sizes.get(each.bucket)) for each in report.buckets
    )
    return dataclasses.replace(report, buckets=buckets)


def _vram(config: RunConfig, buckets: Sequence[ReportedBucket], controls: int) -> dict[Bucket, int]:
    from ..families.registry import get_family

    family = get_family(config.family)
    from ..families.trainable_text import with_text

    location = family.joined(locate_local_base(config.base, family, controls > 0), config)
    config = with_text(config)
    from ..device import resolve_device
    from ..offload.empty_base import empty_base
    from ..offload.machine import Machine
    from ..training.memory.memory_estimate import memory_estimate, run_simulation
    from .memory_report import planned_memory

    base, device = empty_base(location, family), resolve_device(config.memory.device)
    least = int(location.variant in family.latents.filled)
    found: dict[Bucket, int] = {}
    memory = None
    together = config.dataset.batch_size or config.training.batch_size
    training = config.training.model_copy(update={"batch_size": together})
    stepped = config.model_copy(update={"training": training})
    for each in buckets:
        images = [each.bucket] * (1 + max(controls, least))
        simulation = run_simulation(stepped, base, images, device)
        # The plan is made for the largest, and holds for all.
        memory = memory or planned_memory(simulation, base, device, Machine()).memory
        estimate = memory_estimate(base, simulation, memory)
        if "activations" in estimate:
            found[each.bucket] = estimate["total"]
    return found


def _inspected(config: RunConfig, report: DatasetReport, *, quiet: bool) -> DatasetReport:
    from ..data.cache.build_cache import cache_folder
    from ..data.report.image_findings import find_in_images

    shown = not quiet and sys.stdout.isatty()

    def progress(done: int, total: int) -> None:
        if shown and (done % _TOLD_EVERY == 0 or done == total):
            overwrite_line("" if done == total else f"looking at images: {done} of {total}")

    return find_in_images(report, config.dataset, cache_folder(config), progress)


def _outputs(options: Mapping[str, str]) -> dict[str, Path]:
    """Where the page and the sheet go that were asked for, in folders that take files."""
    found: dict[str, Path] = {}
    for name, what in (("html", "a file for the page"), ("sheet", "a file for the contact sheet")):
        if name in options:
            found[name] = given_path(options[name], what)
            require_folder(found[name].parent)
    return found


def _write(report: DatasetReport, outputs: Mapping[str, Path]) -> dict[str, str]:
    """Write page and sheet; gives their files by name."""
    if "html" in outputs:
        from ..data.report.html_page import report_page

        write_text(outputs["html"], report_page(report))
    if "sheet" in outputs:
        from ..data.report.contact_sheet import save_sheet

        save_sheet(report, outputs["sheet"])
    return {name: str(place) for name, place in outputs.items()}


def dataset_report(config: RunConfig) -> tuple[dict[str, Any], DatasetError | None] | None:
    """Describe the dataset that a run file names, in short.

    Returns:
        The report, and why `train` would refuse the dataset, or None. No report of a slider, which
        has no files to look at.

    Raises:
        ConfigError: When no dataset is named.
        DatasetError: When there is no such folder.
    """
    if config.dataset.slider.is_on:
        return None
    reading = _read_dataset(config)
    return {"steps": reading.report.schedule.steps, **_summary(reading)}, reading.refusal


def _record(reading: DatasetReading, report: DatasetReport) -> dict[str, Any]:
    """Everything, for a program."""
    from ..data.report.dataset_report import as_json

    whole = as_json(report)
    own = ("findings", "schedule", "folders", "counts", "looked", "images")
    plain = {name: whole[name] for name in own}
    captions = {"captions": whole["captions"], "bucket_plan": whole["buckets"]}
    summary = _summary(reading)
    if reading.refusal is None and report.stops:
        summary["train_would_stop"] = report.of("error")[0].title  # decoding has found it
    return {**summary, **plain, **captions}


def _summary(reading: DatasetReading) -> dict[str, Any]:
    from ..data.report.dataset_report import as_json

    found, report = reading.found, reading.report
    texts = [sample.caption for sample in found.samples]
    tokens = report.captions.tokens
    limit = {"limit": report.captions.limit}
    sizes = Counter(each.bucket for each in reading.planned)
    return {
        "train_would_stop": str(reading.refusal.found) if reading.refusal else None,
        "problems": found.problems,
        "folder": report.folders[0].path if report.folders else "",
        "samples": len(found.samples),
        "regularization_images": sum(sample.regularization for sample in found.samples),
        "validation_images": sum(sample.validation for sample in found.samples),
        "with_captions": sum(bool(text.strip()) for text in texts),
        "layers": _counted(len(sample.layers) for sample in found.samples),
        "controls": _counted(len(sample.controls) for sample in found.samples),
        "picture_sizes": _counted(f"{sample.width}x{sample.height}" for sample in found.samples),
        "caption_characters": _spread([len(text) for text in texts]),
        "caption_tokens": None if tokens is None else {**as_json(tokens), **limit},
        "buckets": {str(bucket): sizes[bucket] for bucket in sorted(sizes)},
        "notes": list(reading.notes),
    }


def _counted(values: Any) -> dict[str, int]:
    return {str(value): count for value, count in Counter(values).most_common()}


def _spread(numbers: list[int]) -> dict[str, int] | None:
    from ..data.report.caption_findings import length_spread
    from ..data.report.dataset_report import as_json

    return as_json(length_spread(numbers))
