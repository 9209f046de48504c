"""`Program`: what is known of another trainer: how its files are recognised, read and turned."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError, TrainerError
from ..families.graph_model_denoiser import GRAPH_MODEL
from ..families.registry import FAMILIES
from ..families.run_files import words_elsewhere
from ..filesystem.text_files import read_text
from .conversion import Conversion, Table, name_of, shown
from .documents import LARGEST, Document, open_document, script_of
from .value_readers import ABSENT

Found = TypeVar("Found")


class NamedFiles:
    """Opens files that a file names: from the current folder, or beside it."""

    def __init__(self, name: str) -> None:
        self._folders = (Path(), Path(name).parent)

    def document(self, name: str) -> Document | None:
        """A file, read; None where there is none that can be."""
        return self._first(name, open_document)

    def text(self, name: str) -> str | None:
        """The text of a file; None where there is none that can be read."""
        return self._first(
            name, lambda path: read_text(path, lambda why: InputError(why, "", ""), LARGEST)
        )

    def _first(self, name: str, read: Callable[[Path], Found]) -> Found | None:
        for folder in self._folders:
            with contextlib.suppress(TrainerError, OSError, ValueError):
                return read(folder / name)
        return None


@dataclass(frozen=True, slots=True)
class ConversionInput:
    """What a conversion starts from.

    Attributes:
        documents: The files, the one that was asked for first.
        family: The family that the user named, or nothing.
        beside: Opens what they name; None where nothing may be opened.
        in_graph: Whether a model that is not a family comes from a ComfyUI graph.
    """

    documents: Sequence[Document]
    family: str = ""
    beside: NamedFiles | None = None
    in_graph: bool = False

    def find(self, name: str) -> Document | None:
        """A file that another one names; None where it may not be opened, or cannot."""
        return self.beside.document(name) if self.beside and name else None

    def lines(self, name: str) -> list[str] | None:
        """The lines of a text file that a file names; None where it cannot be read."""
        found = self.beside.text(name) if self.beside else None
        return None if found is None else found.splitlines()

    @property
    def name(self) -> str:
        """What messages call the file."""
        return self.documents[0].name


@dataclass(frozen=True, slots=True)
class Program:
    """A program whose run files are read.

    Attributes:
        version: The commit whose source the tables were read from.
        tables: Where in its files to the keys that stand there.
        marks: Words for what its files have, to a test of a document for it. A file with all of
            them is surely of this program.
        beside: Test of a document for what may be read together with another one; unset: one file
            says all.
        scripts: Gives the names of the scripts whose command lines are read.
    """

    name: str
    version: str
    tables: Mapping[str, Table]
    marks: Mapping[str, Callable[[Mapping[str, Any]], bool]]
    convert: Callable[[ConversionInput, Conversion], None]
    beside: Callable[[Mapping[str, Any]], bool] | None = None
    scripts: Callable[[], Sequence[str]] = tuple

    def marks_of(self, document: Document) -> list[str]:
        """The marks that a document has."""
        return [words for words, has in self.marks.items() if has(document.values)]


def has(*path: str) -> Callable[[Mapping[str, Any]], bool]:
    """A mark: a test for a key, or one below others."""

    def found(values: Mapping[str, Any]) -> bool:
        place: Any = values
        for name in path:
            if not isinstance(place, Mapping) or name not in place:
                return False
            place = place[name]
        return True

    return found


def trains_clips(files: ConversionInput, to: Conversion) -> bool:
    """Whether the base may be one of videos: a MODEL of the graph, or one that no file names."""
    return files.in_graph and to.values.get("family", GRAPH_MODEL) == GRAPH_MODEL


def other_script(name: str, words: Sequence[str], scripts: Sequence[str]) -> InputError:
    """The error of a command that starts no script, or one whose arguments are not known here."""
    expected = "a command line that starts one of " + ", ".join(scripts)
    script = script_of(words)
    if not script:
        remedy = "Give the whole command, with the script and its arguments."
        return InputError(f"{name} starts no Python script", expected, remedy)
    return InputError(
        f"{name} starts {name_of(script)}",
        expected,
        "Give the run file that the command names, if docs/other-trainers.md lists its program. "
        "Other scripts are not read: they train whole models or embeddings, or their arguments "
        "mean something else. Drop musubi-tuner's commands for Wan, HunyuanVideo and Kandinsky 5 "
        "on ComfyUI's canvas: these models train there, with Base From Model.",
    )


def set_family(
    to: Conversion, files: ConversionInput, program: str, key: str, word: str, stated: Any = ABSENT
) -> None:
    """Say family and variant, from the program's word for the architecture.

    Args:
        word: The architecture; empty where the file names none.
        stated: What the key says there; unset: the word.

    Raises:
        InputError: When it is an architecture that is not trained here, or none is named.
    """
    known = words_elsewhere(program)
    values, named = known.get(word), word if stated is ABSENT else stated
    if values is None and files.family:
        to.set("family", files.family, "family", files.family)
        if word:
            to.missing(key, named, f"family={files.family} was named in its place.")
        return
    if values is None and word and files.in_graph:
        to.set("family", GRAPH_MODEL, key, named, "Connect its loader to Base From Model.")
        return
    if values is None:
        found = f"{key} is {shown(named)}" if word else f"{key} is not set"
        raise InputError(
            f"{files.name}: {found}",
            "one of " + ", ".join(known),
            "Other architectures train in ComfyUI alone: drop the file on the canvas, and connect "
            "the loader of the model to Base From Model. Where the file means one of ours all the "
            f"same, name it behind the file: family=NAME, of {', '.join(FAMILIES)}.",
        )
    for setting, value in values.items():
        if setting not in to.values:
            to.set(setting, value, key, named)
