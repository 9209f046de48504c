"""Reads the tables of another program's keys in ``keys/``: a rule a line, for one key or several.

    learning_rate -> training.optimizer.learning_rate number = 1e-6 ~ How ours differs. ! exact
    wandb_key wandb_run -- Why there is none. | values that ask for nothing
    lr_scheduler & the settings that follow from it together with other keys

Lines that begin with blanks go on with the one above. Behind ``->`` stand our setting, the reader
of the value (``on:fp8`` sets fp8 where a switch is on), the program's default and what differs, but
for some values; behind ``|`` values, with
``any`` for what a switch says, and ``every`` for whatever is said.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import TrainerError
from ..filesystem.text_files import read_text
from .rules import (
    ABSENT,
    EVERY,
    Lacks,
    Maps,
    Read,
    Rule,
    Table,
    Together,
    flag,
    number,
    switch_to,
    text,
    whole,
)
from .vocabulary import FILE_DTYPE, PRECISION, containing, sides

FOLDER = Path(__file__).parent / "keys"
_READERS: Mapping[str, Read] = {
    "flag": flag,
    "number": number,
    "text": text,
    "whole": whole,
    "sides": sides,
    "precision": PRECISION,
    "file_dtype": FILE_DTYPE,
    "containing": containing,
}
_RULE = re.compile(r"(?P<keys>.+?) (?P<mark>->|--|&) (?P<rest>.+)")
_MAPS = re.compile(r"(\S+) (\S+)(?: = (.*?))?(?: ~ (.*?))?(?: ! (.*))?")
_VALUE = re.compile(r"'[^']*'|\S+")
_CONDITION = " if "
_ANY = (None, True, False)


def read_tables(program: str, **readers: Read) -> dict[str, Table]:
    """Read the tables of a program.

    Args:
        program: Name of the file in ``keys/``.
        readers: The program's own readers of values, by the names that they have in the file.

    Returns:
        The place of the keys in that program's files, to its table. What stands in a section
        ``[place if condition]`` is a table of its own, and in that of the place a `Together`.
    """
    tables: dict[str, dict[str, Rule]] = {}
    rules: dict[str, Rule] = {}
    for line in _joined(read_text(FOLDER / f"{program}.txt", _refused)):
        if line.startswith("["):
            rules = tables.setdefault(line[1:-1], {})
            continue
        match = _RULE.fullmatch(line)
        assert match is not None, line
        rule = _rule(match["mark"], match["rest"], {**_READERS, **readers})
        rules |= dict.fromkeys(match["keys"].split(), rule)
    for place in [each for each in tables if _CONDITION in each]:
        owner = tables[place.partition(_CONDITION)[0]]
        for key, rule in tables[place].items():
            assert isinstance(rule, Maps), key
            owner.setdefault(key, Together(rule.setting))
    return {**tables}


def _refused(reason: str) -> TrainerError:
    return TrainerError(f"{FOLDER} has no table: {reason}", "its files", "Install the pack again.")


def _joined(lines: str) -> Iterator[str]:
    """The lines without remarks, each with those that go on with it."""
    waiting = ""
    for line in lines.splitlines():
        if line.startswith(" "):
            waiting += f" {line.strip()}"
            continue
        if waiting:
            yield waiting
        waiting = "" if line.startswith("#") else line
    yield waiting


def _rule(mark: str, rest: str, readers: Mapping[str, Read]) -> Rule:
    if mark == "&":
        return Together(rest)
    if mark == "--":
        why, _, off = rest.partition(" | ")
        why = "" if why == "-" else why
        return Lacks(why, _off(off)) if off else Lacks(why)
    match = _MAPS.fullmatch(rest)
    assert match is not None, rest
    setting, read, usual, near, exact = match.groups("")
    default = _value(usual) if usual else ABSENT
    kind, _, value = read.partition(":")
    reader = switch_to(_value(value)) if kind == "on" else readers[read]
    return Maps(setting, reader, default, near, tuple(map(_value, _VALUE.findall(exact))))


def _off(words: str) -> tuple[Any, ...]:
    if words == "every":
        return EVERY
    found: list[Any] = []
    for word in _VALUE.findall(words):
        if word.startswith("0.."):
            found += range(int(word[3:]) + 1)
        else:
            found += _ANY if word == "any" else [_value(word)]
    return tuple(found)


def _value(word: str) -> Any:
    """A value as Python writes it; other words stand for themselves."""
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
