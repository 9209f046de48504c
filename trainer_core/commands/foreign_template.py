"""``template --from``: a run file of another program, turned into ours."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ..config import RunConfig
from ..config.read_run_file import parse_override
from ..errors import DatasetError, InputError
from ..families.dataset_reading import read_dataset
from ..families.run_files import load_config
from ..filesystem.storage import given_path, write_text
from ..foreign_runs import (
    Document,
    Epoch,
    ForeignRun,
    NamedFiles,
    command_document,
    open_document,
    read_foreign,
)
from .arguments import Arguments
from .console import show, show_json, show_note

_SOURCES = ("from", "from_command")


def template_of(arguments: Arguments) -> int:
    """Print or write our run file, and say what became of the other's keys; returns the exit code.

    Raises:
        InputError: When a file cannot be read, is of no known program, or cannot be meant here, or
            there is such a file as is to be written.
    """
    arguments.at_most(1)
    own, rest = arguments.split(_SOURCES)
    documents = [command_document(each) for each in own.get("from_command", ())]
    documents += [open_document(each) for each in own.get("from", ())]
    family, changes = _family(rest.settings)
    files = own.get("from") or ["."]
    beside = NamedFiles(documents[0].name if documents[0].format != "command" else files[0])
    run = read_foreign(documents, family=family, beside=beside, count=count_epoch)
    run = _changed(run, changes)
    run.config()
    text = run.run_file().rstrip("\n")
    if arguments.json:
        show_json(_as_json(run, text))
    elif not arguments.words:
        show(text)
    if arguments.words:
        _write(given_path(arguments.words[0]), text)
    _tell(run, documents)
    return 0


def count_epoch(config: RunConfig) -> Epoch:
    """Count an epoch as the verb ``dataset`` does.

    Raises:
        TrainerError: When the dataset is not there, or nothing of it is trained.
    """
    reading = read_dataset(config, lambda has_controls: None)
    steps = math.ceil(reading.report.schedule.steps_per_epoch)
    if not steps:
        raise reading.refusal or DatasetError(
            "no image of the dataset is trained", "images", "Check dataset.path."
        )
    batches = sum(bucket.batches for bucket in reading.report.buckets)
    apart = math.ceil(batches / reading.report.schedule.micro_batches)
    images: Counter[int] = Counter()
    for sample in reading.found.samples:
        images[sample.folder] += 0 if sample.validation else sample.repeats
    return Epoch(steps, apart, images)


def _family(settings: Sequence[str]) -> tuple[str, list[str]]:
    """The family that was named, and the other settings."""
    family, others = "", []
    for text in settings:
        key, value = parse_override(text)
        if key == "family":
            family = str(value)
        else:
            others.append(text)
    return family, others


def _changed(run: ForeignRun, settings: Sequence[str]) -> ForeignRun:
    """The run with settings of the command line on top."""
    if not settings:
        return run
    load_config({}, settings)
    overrides = dict(map(parse_override, settings))
    return dataclasses.replace(run, values={**run.values, **overrides})


def _write(path: Path, text: str) -> None:
    if path.exists():
        raise InputError(
            f"{path} is there already",
            "a name for a new run file",
            "Name another file, or remove this one.",
        )
    write_text(path, text + "\n")
    show_note(f"Written: {path}")


def _tell(run: ForeignRun, documents: Sequence[Document]) -> None:
    lost = len(run.outcome("lacking", "unknown"))
    show_note(
        f"{documents[0].name}: a run file of {run.program} ({run.certainty}), of which "
        f"{len(run.outcome('exact'))} keys say the same here, {len(run.outcome('near'))} nearly; "
        f"{lost} are left out. The reasons stand at the top of the run file."
    )


def _as_json(run: ForeignRun, text: str) -> dict[str, object]:
    return {
        "program": run.program,
        "version": run.version,
        "certainty": run.certainty,
        "marks": list(run.marks),
        "notes": [dataclasses.asdict(note) for note in run.notes],
        "run_file": text,
    }
