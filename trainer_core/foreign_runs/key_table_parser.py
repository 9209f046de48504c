"""Reads the tables of other programs in ``keys/``: a row a line, for one key or several.

    [section]             the keys below stand in it; [each section]: in items of a list
    [each section if @fact]         rows that hold under a condition
    key other -> our.setting reader = default ~ How ours differs. ! values without difference
    first > second -> our.setting reader      the first that is there counts
    key -- Why there is none. | values that ask for nothing
    key & the settings that a function of the program sets
    use part name=key                  rows of ``shared.txt``
    key = default
      * word other: our.setting=value; our.other=value ~ How it differs.
      * word if condition: our.setting
      * *: our.setting=value -- Why there is none; ours stands in its place.
    (always) = so       no key: its cases are what the program does whatever its files say

``rate > lr if no @full -> x.rate number null 0 = 3 ~ Halved. ! 0``, for one: where the fact
``full`` does not hold, our ``x.rate`` is the number of ``rate``, else that of ``lr``, else 3, which
is the program's default; null says 0 there, and each value but 0 is near ours, for "Halved."

``if key``, ``if no key``, ``if key is a >1`` and ``if key not a b``, joined by ``and``, stand
behind the keys; ``/`` begins a key outside the section, ``@`` what the program's functions know.
Readers are those of `READERS`; ``on:fp8`` sets fp8 where a switch is on, ``epochs`` counts them.
Behind ``|``, ``any`` is what a switch says, ``every`` whatever is said, and a word such as
``nothing`` stands for itself, in the place of the usual words for off. ``-- -`` gives no reason.
What begins with four blanks goes on with the line above.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import TrainerError
from ..filesystem.text_files import read_text
from .conversion import EVERY, Case, Cases, Condition, Maps, NoCounterpart, Row, Table, Together
from .value_readers import ABSENT, READERS, Read, switch

FOLDER = Path(__file__).parent / "keys"
_ROW = re.compile(r"(?P<keys>.+?)(?: if (?P<condition>.+?))? (?P<mark>->|--|&|=)(?: (?P<rest>.+))?")
_CASE = re.compile(r"  \* (?P<words>.+?)(?: if (?P<condition>.+?))?:(?: (?P<rest>.+))?")
_MAPS = re.compile(r"(\S+) (\S+)(?: null (\S+))?(?: = (.*?))?(?: ~ (.*?))?(?: ! (.*))?")
_MEANS = re.compile(r"(?:(?!-- )(?P<settings>.+?))?(?: ?~ (?P<near>.+?))?(?: ?-- (?P<why>.+))?")
_TERM = re.compile(r"(?P<no>no )?(?P<key>\S+)(?: (?P<verb>is|not) (?P<words>.+))?")
_VALUE = re.compile(r"'[^']*'|\S+")
_EACH = "each "


def read_tables(program: str) -> dict[str, Table]:
    """Read the tables of a program: of its file (an empty name), and of items of its lists."""
    rows: dict[str, list[Row]] = {}
    sections: dict[str, set[str]] = {}
    place = section = ""
    shared: list[Condition] = []
    lines = [part for line in _lines_of(program) for part in _taken_over(line)]
    for at, line in enumerate(lines):
        if line.startswith("["):
            named, _, held = line[1:-1].partition(" if ")
            place = named.removeprefix(_EACH) if named.startswith(_EACH) else ""
            section = f"{named}." if named and not place else ""
            shared = _conditions(held, section)
            rows.setdefault(place, [])
        elif not line.startswith(" "):
            try:
                rows[place] += _rows(line, iter(lines[at + 1 :]), section, shared)
            except ValueError as error:
                raise ValueError(f"{_place_of(line, program)}: {error}") from error
    for place, table in rows.items():
        keys = [key for row in table for key in row.keys]
        sections[place] = {key[:at] for key in keys for at, sign in enumerate(key) if sign == "."}
    return {place: Table(table, sections[place]) for place, table in rows.items()}


def _place_of(line: str, program: str) -> str:
    """File and line of a row; without a line where it is one of ``shared.txt``."""
    path = FOLDER / f"{program}.txt"
    for at, each in enumerate(read_text(path, _refused).splitlines(), 1):
        if each and line.startswith(each):
            return f"{path}, line {at}"
    return str(path)


def _parts(pattern: re.Pattern[str], words: str) -> re.Match[str]:
    if (match := pattern.fullmatch(words)) is None:
        raise ValueError(f"this has no form of the table: {words}")
    return match


def _lines_of(program: str) -> Iterator[str]:
    return _joined(read_text(FOLDER / f"{program}.txt", _refused))


def _taken_over(line: str) -> list[str]:
    """The lines of a part of ``shared.txt`` that a table uses, with its own keys; or the line."""
    if not line.startswith("use "):
        return [line]
    _, name, *words = _VALUE.findall(line)
    keys = dict(word.split("=", 1) for word in words)
    _, _, part = "\n".join(_lines_of("shared")).partition(f"[{name}]\n")
    found = part.partition("\n[")[0].format_map(_Keys(keys)).splitlines()
    return [each.rstrip() for each in found if _MISSING not in each]


_MISSING = "{}"


class _Keys(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return _MISSING


def _refused(reason: str) -> TrainerError:
    return TrainerError(f"{FOLDER} has no table: {reason}", "its files", "Install the pack again.")


def _joined(lines: str) -> Iterator[str]:
    """The lines without remarks, each with those that go on with it."""
    waiting = ""
    for line in lines.splitlines():
        if line.startswith("    "):
            waiting += f" {line.strip()}"
        elif not line.startswith("#"):
            if waiting:
                yield waiting
            waiting = line
    yield waiting


def _rows(
    line: str, below: Iterator[str], section: str, shared: Sequence[Condition]
) -> Iterator[Row]:
    match = _parts(_ROW, line)
    conditions = [*shared, *_conditions(match["condition"], section)]
    rest = match["rest"] or ""
    names = match["keys"].split(" > ")
    groups = [names] if names[1:] else [[each] for each in match["keys"].split()]
    cases = list(_cases(below, section)) if match["mark"] == "=" else []
    for group in groups:
        keys = [section + each for each in group]
        if match["mark"] == "=":
            yield Cases(keys, conditions, _value(rest) if rest else None, cases)
        else:
            yield _row(match["mark"], rest, keys, conditions)


def _row(mark: str, rest: str, keys: Sequence[str], conditions: Sequence[Condition]) -> Row:
    """A row without cases, by its mark and what stands behind it."""
    if mark == "&":
        return Together(keys, conditions, None, rest)
    if mark == "--":
        why, _, off = rest.partition(" | ")
        harmless = EVERY if off == "every" else _values(off)
        return NoCounterpart(
            keys, conditions, None, why="" if why == "-" else why, harmless=harmless
        )
    setting, read, null, usual, near, exact = _parts(_MAPS, rest).groups("")
    return Maps(
        keys,
        conditions,
        _value(usual) if usual else None,
        setting=setting,
        read=_reader(read),
        near=near,
        exact=_values(exact),
        null=_value(null) if null else ABSENT,
    )


def _reader(name: str) -> Read | None:
    kind, _, value = name.partition(":")
    if kind in ("on", "off"):
        return switch(*((_value(value), ABSENT) if kind == "on" else (ABSENT, _value(value))))
    if name not in ("epochs", *READERS):
        raise ValueError(f"there is no reader {name}")
    return READERS.get(name)


def _cases(below: Iterator[str], section: str) -> Iterator[Case]:
    for line in below:
        match = _CASE.fullmatch(line)
        if match is None:
            return
        means = _parts(_MEANS, match["rest"] or "")
        settings = [
            each.partition("=") for each in filter(None, (means["settings"] or "").split("; "))
        ]
        yield Case(
            [str(each) for each in _VALUE.findall(match["words"])],
            _conditions(match["condition"], section),
            [(name, _value(value) if equals else ABSENT) for name, equals, value in settings],
            near=means["near"] or "",
            why=means["why"] or "",
        )


def _conditions(words: str | None, section: str) -> list[Condition]:
    found: list[Condition] = []
    for term in words.split(" and ") if words else ():
        match = _parts(_TERM, term)
        key = match["key"]
        key = key[key.startswith("/") :] if key[0] in "/@" else section + key
        values = (match["words"] or "").split()
        found.append(Condition(key, values, not match["no"] and match["verb"] != "not"))
    return found


def _values(words: str) -> tuple[Any, ...]:
    found: list[Any] = []
    for word in _VALUE.findall(words):
        if word.startswith("0.."):
            found += range(int(word[3:]) + 1)
        else:
            found += (None, True, False) if word == "any" else [_value(word)]
    return tuple(found)


def _value(word: str) -> Any:
    """A value as Python writes it; other words stand for themselves."""
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word
