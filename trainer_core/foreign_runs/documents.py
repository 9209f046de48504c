"""Files of other programs as plain values: YAML 1.1, TOML, JSON, or a command line.

They come from strangers. What is read is bounded in size, depth and in what references in it can
grow to, and only ever becomes texts, numbers, truth values, lists and dicts.
"""

from __future__ import annotations

import datetime
import importlib
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import yaml

from ..config.yaml_dialect import BACKSLASHES
from ..errors import InputError
from ..filesystem.text_files import parse_json, read_text, refuse_deep

LARGEST = 2**20
"""Bytes of a file that is read."""

MOST_VALUES = 50_000
"""Values of a file, each counted as often as it is referred to."""

COMMANDS = (".txt", ".sh", ".bat", ".cmd", ".ps1")
"""Extensions of files that hold a command line."""

SCRIPT = ".py"
"""How the word of a command ends that names what it starts."""

_CONTINUED = re.compile(r"[\\^`][ \t]*\n")
_ENDS = frozenset({"&&", "||", ";", "|", "&", ">", ">>", "2>&1"})
_TRAINS = "train_network"
_EXPECTED = (
    "a run file of another trainer, in UTF-8: .yaml, .toml, .json, or a command line as .txt or .sh"
)


@dataclass(frozen=True, slots=True)
class Document:
    """A file that was read.

    Attributes:
        values: Its plain values; a command line is ``{"command": [words]}``.
        format: ``yaml``, ``toml``, ``json`` or ``command``.
    """

    name: str
    values: Mapping[str, Any]
    format: str
    text: str = ""


def open_document(path: Path | str) -> Document:
    """Read a file.

    Raises:
        InputError: When it cannot be read, is too large, too deep, or none of the formats.
    """
    refuse = _refusal(str(path))
    return parse_document(str(path), read_text(path, refuse, LARGEST))


def parse_document(name: str, text: str) -> Document:
    """Parse a file's text; its extension says the format, and else its first letters do.

    Raises:
        InputError: As `open_document`.
    """
    refuse = _refusal(name)
    if len(text) > LARGEST:
        raise refuse(f"it has more than {LARGEST} characters")
    kind = _format(name, text)
    try:
        values = _PARSERS[kind](text)
        refuse_deep(values)
        _count(values)
    except (ValueError, yaml.YAMLError) as error:
        raise refuse(" ".join(str(error).split())[:400]) from error
    except RecursionError as error:
        raise refuse("it is nested too deeply") from error
    if not isinstance(values, dict):
        if kind == "json" and isinstance(values, list):
            values = {"list": values}
        else:
            raise refuse("it holds no names with values")
    return Document(name, values, kind, text)


def split_command(text: str) -> list[str]:
    """The words of the command that starts a training, in a line or a script.

    Of several commands, in a line or in many, the last one of a training is taken, else the last
    one that starts a Python script.

    Raises:
        ValueError: When quotes do not end, or no command starts a Python script.
    """
    lines = _CONTINUED.sub(" ", text).splitlines()
    for wanted in (_TRAINS, SCRIPT):
        for line in reversed(lines):
            if wanted not in line.lower() or _remark(line):
                continue
            for words in reversed(_commands(line)):
                if wanted in script_of(words).lower():
                    return words
    raise ValueError("no line of it starts a Python script")


def script_of(words: Sequence[str]) -> str:
    """The name of the Python script that a command starts; empty where there is none."""
    return next((PurePath(each).name for each in words if each.lower().endswith(SCRIPT)), "")


_BACKSLASH = "\ue000"
"""Stands for one while a shell's quotes are read; a character of private use."""
_PATTERNS = "patterns="


def _commands(line: str) -> list[list[str]]:
    """The words of each command of a line, such as of ``cd folder && python script.py``."""
    # A backslash parts the folders of a path, and stays what it is in a regular expression. A
    # semicolon ends a word without a space before it.
    words = shlex.shlex(line.replace("\\", _BACKSLASH), posix=True, punctuation_chars=";")
    words.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in words:
        if word in _ENDS:
            commands.append([])
        else:
            kept = "\\" if _PATTERNS in word else "/"
            commands[-1].append(word.replace(_BACKSLASH, kept))
    return commands


def _remark(line: str) -> bool:
    return line.strip().lower().startswith(("#", "rem ", "::"))


def _format(name: str, text: str) -> str:
    extension = Path(name).suffix.lower()
    known = {".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json", ".jsonc": "json"}
    known |= dict.fromkeys(COMMANDS, "command")
    if extension in known:
        return known[extension]
    return "json" if text.lstrip().startswith(("{", "[")) else "yaml"


def _refusal(name: str) -> Callable[[str], InputError]:
    def refuse(reason: str) -> InputError:
        if "escape" in reason.lower():
            return InputError(f"{name} cannot be read ({reason})", _EXPECTED, BACKSLASHES)
        if "UTF-" in reason:
            return InputError(
                f"{name} cannot be read ({reason})",
                _EXPECTED,
                "Open it in a text editor that shows its letters right, and save it as UTF-8.",
            )
        remedy = "Check the path and the file; see docs/other-trainers.md for what is read."
        return InputError(f"{name} cannot be read ({reason})", _EXPECTED, remedy)

    return refuse


class _Loader(yaml.SafeLoader):
    """YAML 1.1 without code, in which references cannot grow without bound."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        referred = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        if node is None:
            return None
        if referred and id(node) not in self._sizes:
            raise yaml.MarkedYAMLError(
                problem="found a value that refers to itself", problem_mark=node.start_mark
            )
        size = self._sizes.get(id(node)) or 1 + sum(self._sizes[id(each)] for each in _below(node))
        if size > MOST_VALUES:
            raise yaml.MarkedYAMLError(
                problem=f"found more than {MOST_VALUES} values, with those that are referred to",
                problem_mark=node.start_mark,
            )
        self._sizes[id(node)] = size
        return node


def _below(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _toml(text: str) -> Any:
    for name in ("tomllib", "tomli"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        return module.loads(text)
    raise ValueError("TOML needs Python 3.11 or the package tomli: pip install tomli")


_PARSERS: Mapping[str, Callable[[str], Any]] = {
    "yaml": _yaml,
    "toml": _toml,
    "json": parse_json,
    "command": lambda text: {"command": split_command(text)},
}


def _count(value: Any) -> None:
    """Refuse too many values, and ones that are none of the plain ones."""
    waiting, count = [value], 0
    while waiting:
        each = waiting.pop()
        count += 1
        if count > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} values")
        if isinstance(each, dict):
            if not all(isinstance(name, str | int | float | bool | None) for name in each):
                raise ValueError("it has a name that is not text")
            waiting += each.values()
        elif isinstance(each, list | tuple | set):
            waiting += each
        elif not isinstance(each, _PLAIN):
            raise ValueError(f"it has a value of type {type(each).__name__}")


_PLAIN = (str, int, float, bool, type(None), datetime.date, datetime.time, bytes)
