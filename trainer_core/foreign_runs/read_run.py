"""Files of another program in, a run file of ours out, with what became of every key.

What the number of images decides, steps of epochs and repeats of regularization images, is counted
where the dataset is there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config.run import RunConfig, nested
from ..config.run_file_problems import contradictions
from ..config.yaml_dialect import BACKSLASHES
from ..errors import ConfigError, InputError, TrainerError
from ..families.graph_model_denoiser import GRAPH_MODEL, OF_FILES
from ..families.run_files import config_of, run_file_of
from ..printable import listed
from .conversion import ALWAYS_IN_WORDS, Balanced, Conversion, Note, name_of, with_one_outcome
from .documents import Document, split_command
from .program import ConversionInput, NamedFiles, Program, other_script
from .registry import PROGRAMS
from .value_readers import UnfitError


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of a dataset that is there.

    Attributes:
        steps: As the verb ``dataset`` counts them, at least 1.
        apart: How many they are where no step joins what is left of several sizes.
        images: Folders by their places in `dataset_folders` to their images that are not held out,
            as often as names of folders or metadata repeat them.
    """

    steps: int
    apart: int
    images: Mapping[int, int]


Count = Callable[[RunConfig], Epoch]
"""Counts an epoch of a run; raises `TrainerError` or `OSError` where its dataset is not there."""

_BALANCED = "There images of regularization are repeated until they equal the trained ones."


def say_counted(to: Conversion, count: Count | None) -> None:
    """Turn what a conversion has noted in epochs into steps, and equal regularization images.

    Args:
        to: Gets the settings; its ``epochs`` and ``balanced`` are read.
        count: Counts the dataset; called only where something depends on it.
    """
    found, why = _counted(to, count) if to.balanced else (None, "")
    for each in to.balanced:
        repeats = _balance(each, found) if found else {}
        for place in each.ordinary:
            key = f"{each.key} (repeats of regularization images)"
            if place in repeats:
                entry = to.values["dataset.folders"][place - 1]
                entry["num_repeats"] = repeats[place]
                to.applied("dataset.folders", key, repeats[place], _BALANCED)
            else:
                how = f"Set num_repeats of dataset.folders[{place - 1}] so that they do."
                to.missing(key, each.ordinary[place], " ".join((_BALANCED, how, why)).strip())
    if to.epochs:
        _say_epochs(to, *_counted(to, count))


def _counted(to: Conversion, count: Count | None) -> tuple[Epoch | None, str]:
    """An epoch of the settings as they are; or none, and why."""
    if count is None:
        return None, ""
    try:
        return count(RunConfig.model_validate(nested(to.values))), ""
    except TrainerError as error:
        return None, f"They could not be counted: {error.found}."
    except OSError as error:  # a name may be longer than a file system takes
        return None, f"They could not be counted: {error.strerror}."


def _balance(group: Balanced, epoch: Epoch) -> dict[int, int]:
    """Repeats with which regularization images equal the trained ones; those beyond stay."""
    trained = sum(epoch.images.get(at, 0) * repeats for at, repeats in group.trained.items())
    images = sum(epoch.images.get(at, 0) for at in group.ordinary)
    own = sum(epoch.images.get(at, 0) * repeats for at, repeats in group.ordinary.items())
    if not images or not trained:
        return {}
    more = max(0.0, (trained - own) / images)
    return {at: max(1, round(repeats + more)) for at, repeats in group.ordinary.items()}


def _say_epochs(to: Conversion, epoch: Epoch | None, why: str) -> None:
    for setting, (key, epochs) in to.epochs.items():
        # What is counted in steps there is off where epochs are named.
        defaults = [n for n in to.notes if n.setting == setting and n.outcome == "default"]
        to.notes = [each for each in to.notes if each not in defaults]
        if defaults:
            to.values.pop(setting, None)
        if epoch is None or epochs <= 0:
            how = f"Set {setting}: epochs x images x repeats / samples of a step."
            to.missing(key, f"{epochs:g}", f"{how} {why}".strip())
        else:
            near = f"Steps of an epoch, as this dataset is now: {epoch.steps}."
            if epoch.apart > epoch.steps:
                near += f" With a step for each size apart, as there, they are {epoch.apart}."
            to.set(setting, max(1, round(epochs * epoch.steps)), key, f"{epochs:g}", near)


_SURE, _LIKELY = "certain", "likely"
_OF_THE_GUI = ("LoRA_type", "max_resolution")
"""Keys of what kohya_ss, a GUI of sd-scripts, saves; its words and defaults are its own."""


@dataclass(frozen=True, slots=True)
class ForeignRun:
    """A run file of another program, as ours.

    Attributes:
        version: The commit of that program whose source the rules follow.
        certainty: ``certain`` where it has all that tells the program's files from others, else
            ``likely``.
        values: What our run file says beyond its defaults, by YAML path.
    """

    name: str
    program: str
    version: str
    certainty: str
    marks: Sequence[str]
    values: Mapping[str, Any]
    notes: Sequence[Note]

    def config(self) -> RunConfig:
        """The settings, checked.

        Raises:
            ConfigError: When they contradict each other.
        """
        return config_of(self.values)

    def outcome(self, *kinds: str) -> list[Note]:
        """The notes of some outcomes."""
        return [note for note in self.notes if note.outcome in kinds]

    def summary(self) -> list[str]:
        """What a person has to know, as sentences: which program, and what is left out or near."""
        count = len({note.key for note in self.outcome("exact")})
        lines = [
            f"Read from {name_of(Path(self.name).name)} as a run file of {self.program} "
            f"({self.certainty}: {', '.join(self.marks)}). {count} keys say the same here.",
        ]
        for title, kind in (
            ("Left out", "lacking"),
            ("Not known, left out", "unknown"),
            ("Nearly the same", "near"),
            ("Its default, which differs from ours", "default"),
        ):
            lines += [f"{title}: {_line(note)}" for note in self.outcome(kind)]
        if off := [note.key for note in self.outcome("off")]:
            lines.append(f"Without counterpart, and off or of no effect: {listed(off, 200)}.")
        lines.append(
            "Relative paths are as they were written; there they are relative to the folder that "
            "the program was started in."
        )
        return lines

    def run_file(self) -> str:
        """Our commented run file: above each setting what it follows from, at its top the rest."""
        title = f"A run file, turned from one of {self.program}."
        needed = ["base.path", "dataset.path", "output.name"]
        if str(self.values.get("base.path", "")).endswith((".safetensors", ".gguf")):
            needed.insert(1, "base.encoders")
        missing = [each for each in needed if each not in self.values]
        return run_file_of(
            title, self.values, self.summary(), remarks=self._remarks(), missing=missing
        )

    def _remarks(self) -> Mapping[str, str]:
        remarks: dict[str, list[str]] = {}
        for note in self.notes:
            if not note.setting or note.setting not in self.values or note.outcome == "lacking":
                continue
            if note.key.startswith(ALWAYS_IN_WORDS):
                text = f"{self.program}: {note.key}"
            elif note.outcome == "default":
                text = f"{self.program}'s default of {note.key}"
            else:
                text = f"{self.program}: {note.key} = {note.value}"
            why = f" ({note.why})" if note.why else ""
            remarks.setdefault(note.setting, []).append(text + why)
        return {setting: "; ".join(dict.fromkeys(text)) for setting, text in remarks.items()}


def _line(note: Note) -> str:
    entry = f"{note.key} = {note.value}" if note.value else note.key
    at = f" (here {note.setting})" if note.setting and note.outcome != "lacking" else ""
    return f"{entry}{at}. {note.why}".strip()


def command_document(command: str) -> Document:
    """A command line that starts a training.

    Raises:
        InputError: When it starts none that is known.
    """
    try:
        return Document("the command", {"command": split_command(command)}, "command")
    except ValueError as error:
        raise InputError(
            f"the command cannot be read ({error})",
            'a command such as "accelerate launch ... NAME_train_network.py --network_dim 32"',
            "Quote the whole command, or write it into a .txt file and name that.",
        ) from error


def read_foreign(
    documents: Sequence[Document],
    *,
    family: str = "",
    beside: NamedFiles | None = None,
    count: Count | None = None,
    in_graph: bool = False,
) -> ForeignRun:
    """Turn a run file of another program into ours.

    Args:
        documents: The file; behind it others that it names, such as a dataset's.
        family: The architecture, where the file does not say it.
        beside: Opens files that another one names; unset: only what was given is read.
        count: Counts the dataset where that decides a value; unset: nobody looks at it.
        in_graph: Whether the run is for a ComfyUI graph, which brings any model itself.

    Raises:
        InputError: When it is of no program that is known, cannot be understood, or others are
            given with it where one file says all.
    """
    program, marks = _program_of(documents[0])
    if len(documents) > 1 and program.beside is None:
        raise InputError(
            f"{listed([each.name for each in documents])} together",
            f"one file: a run file of {program.name} says all",
            "Read them one after the other.",
        )
    to = Conversion()
    files = ConversionInput(documents, family, beside, in_graph)
    try:
        program.convert(files, to)
    except UnfitError as error:
        raise ConfigError(
            f"{documents[0].name} has a value that {program.name} would not read",
            str(error),
            "Correct the value there.",
        ) from error
    say_counted(to, count)
    to.finish()
    _leave_memory_to_the_graph(to)
    _require_controls(to)
    _leave_out_contradictions(to)
    certainty = _SURE if len(marks) == len(program.marks) else _LIKELY
    notes = with_one_outcome(to.notes)
    return ForeignRun(
        documents[0].name,
        program.name,
        program.version,
        certainty=certainty,
        marks=marks,
        values=to.values,
        notes=notes,
    )


def _leave_memory_to_the_graph(to: Conversion) -> None:
    """Leave out how the weights of a file are kept, where the base is a MODEL of the graph."""
    if to.values.get("family") == GRAPH_MODEL:
        settings = {f"memory.{name}" for name in OF_FILES}
        to.leave_out(settings, "A MODEL of the graph is kept in memory as ComfyUI keeps it.")
        to.leave_out({"base.adapters"}, "Put it on the MODEL with Load LoRA.")


def _leave_out_contradictions(to: Conversion) -> None:
    """Leave out what does not go together here, one setting after the other, and say so."""
    while True:
        wrong = contradictions(RunConfig.model_validate(nested(to.values)))
        # A path that was misread is not a contradiction, and is told by the settings' own check.
        named = {each.found.split()[0]: each for each in wrong if each.remedy != BACKSLASHES}
        for path, each in named.items():
            why = f"It does not go with the rest here, which wants {each.expected}."
            if path in to.values:
                to.leave_out({path}, why)
                break
            if _pop_of_folder(to.values, path):
                to.missing(path, "", why)
                break
        else:
            return  # what is left is told by the settings' own check


def _pop_of_folder(values: Mapping[str, Any], path: str) -> bool:
    """Take a setting out of an item of ``dataset.folders``; whether it was there."""
    found = re.fullmatch(r"dataset\.folders\[(\d+)\]\.([\w.]+)", path)
    if found is None:
        return False
    place: Any = values["dataset.folders"][int(found[1])]
    *sections, name = found[2].split(".")
    for section in sections:
        place = place.get(section, {})
    return name != "path" and place.pop(name, place) is not place


def in_reading_order(documents: Sequence[Document]) -> list[Document]:
    """Find the run file of another program among documents that may be anything.

    A single mark is not enough here: many files have a key ``job``.

    Returns:
        The run file, and behind it what belongs to it; nothing where there is none.
    """
    for document in documents:
        for program in PROGRAMS:
            if 3 * len(program.marks_of(document)) < 2 * len(program.marks):
                continue
            belongs = program.beside or (lambda values: False)
            others = [each for each in documents if each is not document]
            return [document, *(each for each in others if belongs(each.values))]
    return []


def _require_controls(to: Conversion) -> None:
    """Leave previews out that a base which edits cannot make: those without a control image."""
    prompts = to.values.get("preview.prompts", [])
    controls = to.values.get("preview.controls", [])
    edits = to.values.get("base.variant") in {"edit", "edit_plus", "fill"}
    if not prompts or not edits or (len(controls) == len(prompts) and all(controls)):
        return
    for setting in ("preview.prompts", "preview.controls", "preview.every"):
        to.values.pop(setting, None)
    why = "Not each has a control image, which this base needs: see preview.controls."
    to.missing("the prompts of samples", prompts, why)


def _program_of(document: Document) -> tuple[Program, list[str]]:
    if all(key in document.values for key in _OF_THE_GUI):
        raise InputError(
            f"{document.name} holds what the GUI kohya_ss has saved",
            "what it starts sd-scripts with: a .toml, or a command line",
            "Give the .toml that it writes into its output folder when it trains, or what its "
            "button Print training command prints.",
        )
    found = [(program, program.marks_of(document)) for program in PROGRAMS]
    best, marks = max(found, key=lambda each: len(each[1]) / len(each[0].marks))
    if not marks and document.format == "command":
        scripts = [script for program in PROGRAMS for script in program.scripts()]
        raise other_script(document.name, document.values["command"], scripts)
    if not marks:
        known = "; ".join(f"{each.name} ({', '.join(each.marks)})" for each in PROGRAMS)
        raise InputError(
            f"{document.name} is a run file of no program that is known here",
            known,
            "Give the file that starts the training there. Our own run files need no change.",
        )
    return best, marks
