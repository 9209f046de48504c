"""`Conversion`: applies the rows of another program's table to the keys of its run file.

One key goes through `Source.apply` (its row), `Conversion.set` (our setting and a note) and
`Conversion.finish` (a note for what nothing has named).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

from pydantic import ValidationError

from ..config.run import RunConfig, find_setting, nested
from ..config.section import expectation
from ..config.yaml_dialect import value_in_words
from ..errors import ConfigError
from ..printable import shortened, single_line
from .value_readers import ABSENT, NUMBER, Read, UnfitError, flag, is_nothing, number, text

Outcome = Literal["exact", "near", "default", "lacking", "off", "unknown"]

EVERY: tuple[Any, ...] = (object(),)
"""For `NoCounterpart.harmless`: whatever it says, nothing is learned otherwise."""

_APPLIED: Sequence[Outcome] = ("exact", "near")
_WEAKNESS: Sequence[Outcome] = ("default", "off", "exact", "near", "unknown", "lacking")
_LONGEST = 120
ALWAYS = "(always)"
ALWAYS_IN_WORDS = "what it always does"


@dataclass(frozen=True, slots=True)
class Condition:
    """What another key has to say, so that a row holds.

    Attributes:
        words: Values, or patterns of them; none: the key is on.
        holds: False where the key is to have none of them.
    """

    key: str
    words: Sequence[str]
    holds: bool = True

    def met(self, source: Source) -> bool:
        """Whether a file fulfils it; where the file is silent, the program's default counts."""
        value = source.word(self.key)
        if not self.words:
            return self.holds != is_nothing(value)
        return self.holds == (value is not None and any(_same(value, word) for word in self.words))


def _same(value: Any, word: str) -> bool:
    found = str(value).strip().lower()
    if word[0] in "<>" and NUMBER.fullmatch(found):
        return float(found) < float(word[1:]) if word[0] == "<" else float(found) > float(word[1:])
    if NUMBER.fullmatch(word) and NUMBER.fullmatch(found):
        return float(word) == float(found)
    return fnmatchcase(found, word.lower())


@dataclass(frozen=True, slots=True)
class Row:
    """What keys mean.

    Attributes:
        keys: Of several the first that the file has counts.
        conditions: Where one is not met, the keys ask for nothing.
        usual: The program's own default; None where it is ours, or nothing.
    """

    keys: Sequence[str]
    conditions: Sequence[Condition]
    usual: Any

    def apply(self, source: Source, to: Conversion) -> None:
        """Turn what a file says into settings and notes."""

    def chosen(self, source: Source, to: Conversion) -> str:
        """The key that counts; the others that the file has are noted."""
        key = next(filter(source.has, self.keys), self.keys[-1])
        others = [each for each in self.keys if each != key]
        source.unused(to, *others, why=f"{source.name(key)} wins over it.")
        return key


@dataclass(frozen=True, slots=True)
class Maps(Row):
    """One of our settings says the same.

    Attributes:
        read: Turns the value into ours; None for a length in epochs.
        near: How ours differs; empty for an exact counterpart.
        exact: Values, as ours, with which there is no difference all the same.
        null: What null says, as ours; unset: as much as a key that is not there.
    """

    setting: str
    read: Read | None
    near: str = ""
    exact: tuple[Any, ...] = ()
    null: Any = ABSENT

    def apply(self, source: Source, to: Conversion) -> None:
        """Set it, also where the file is silent and the program's default is not ours."""
        key = self.chosen(source, to)
        if self.null is not ABSENT and source.values.get(key, ABSENT) is None:
            to.set(self.setting, self.null, source.name(key), None)
            return
        stated = source.word(key, self.usual)
        if self.read is None:
            if stated is not None:
                to.epochs[self.setting] = source.name(key), source.check(key, stated, number)
            return
        value = ABSENT if stated is None else source.check(key, stated, self.read)
        if value is ABSENT:
            source.unused(to, key)
        else:
            near = "" if value in self.exact else self.near
            source.set(to, self.setting, value, key, stated, near)


@dataclass(frozen=True, slots=True)
class NoCounterpart(Row):
    """We have nothing for it.

    Attributes:
        harmless: Values with which it asks for nothing; none: what `is_nothing` says.
    """

    why: str
    harmless: tuple[Any, ...] = ()

    def apply(self, source: Source, to: Conversion) -> None:
        """Note it, and a section key by key."""
        for key, value in source.values.items():
            if source.table.name(key) not in self.keys:
                continue
            note = to.unused if self.harmless is EVERY or self.is_harmless(value) else to.missing
            for path, leaf in leaves(source.name(key), value):
                note(path, leaf, self.why)

    def is_harmless(self, value: Any) -> bool:
        """Whether a value asks for nothing; numbers of a command line are texts."""
        if not self.harmless:
            return is_nothing(value)
        if isinstance(value, str) and NUMBER.fullmatch(value):
            return value in self.harmless or float(value) in self.harmless
        return value in ([], {}) or any(value is each or value == each for each in self.harmless)


@dataclass(frozen=True, slots=True)
class Together(Row):
    """It says something together with other keys, which a function of the program reads."""

    says: str

    def speaks_of(self, setting: str) -> bool:
        """Whether one of our settings follows from it."""
        paths = [path.split(" ")[0] for path in self.says.split(", ")]
        return any(f"{setting}.".startswith(f"{path}.") for path in paths)


@dataclass(frozen=True, slots=True)
class Case:
    """What some values of a key mean.

    Attributes:
        words: The values, or patterns of them.
        settings: Ours, to their values; `ABSENT` where something else sets them.
        why: Why there is no counterpart; the settings stand in its place.
    """

    words: Sequence[str]
    conditions: Sequence[Condition]
    settings: Sequence[tuple[str, Any]]
    near: str
    why: str


@dataclass(frozen=True, slots=True)
class Cases(Row):
    """Each value means something of its own; the first case that fits counts.

    A default sets what nothing before it has set. ``(always)`` is not a key: it stands for what a
    program does whatever its files say.
    """

    cases: Sequence[Case]

    def apply(self, source: Source, to: Conversion) -> None:
        """Set what the value means."""
        key = self.chosen(source, to)
        value, stated = source.word(key), source.has(key)
        if not stated and value in (None, ""):
            return
        word = source.check(key, str(value) if isinstance(value, bool) else value, text)
        case = next((each for each in self.cases if self._fits(each, source, word)), None)
        if case is None:
            expected = ", ".join(word for each in self.cases for word in each.words)
            raise source.unfit(key, value, f"one of {expected}")
        if case.why:
            to.missing(source.name(key), value, case.why)
        for setting, ours in case.settings:
            if ours is not ABSENT and (stated or setting not in to.values):
                source.set(to, setting, ours, key, ours if key == ALWAYS else value, case.near)
            elif stated:
                to.applied(setting, source.name(key), value, case.near)

    def _fits(self, case: Case, source: Source, word: str) -> bool:
        fits = any(_same(word, each) for each in case.words)
        return fits and all(each.met(source) for each in case.conditions)


class Table:
    """The keys of a file, or of a part of one.

    Args:
        rows: In the order in which they are applied.
        sections: Keys that hold others.
    """

    def __init__(self, rows: Sequence[Row], sections: Set[str] = frozenset()) -> None:
        self.rows, self.sections = rows, sections
        self._rows = {key: row for row in rows for key in row.keys}
        known = [(key, row.usual) for row in rows[::-1] for key in row.keys]
        self.usual = {key: usual for key, usual in known if usual is not None}

    def name(self, key: str) -> str:
        """What rows call a key: ``section.*`` is any other key of a section."""
        return key if key in self._rows else key.rpartition(".")[0] + ".*"

    def row(self, key: str) -> Row | None:
        """The last row of a key."""
        return self._rows.get(self.name(key))

    def __add__(self, other: Table) -> Table:
        """The rows of both; what the other says of a key counts."""
        own = [row for row in self.rows if not any(map(other._rows.__contains__, row.keys))]
        return Table([*own, *other.rows], self.sections | other.sections)


@dataclass(frozen=True, slots=True)
class Note:
    """What became of a key.

    Attributes:
        key: As the other program calls it.
        value: What it said, or is there by default; shortened.
        outcome: ``exact``, ``near``, ``default`` (absent there, and its default is not ours),
            ``lacking`` (we have nothing), ``off`` (we have nothing, and it asks for nothing) or
            ``unknown``.
        why: What differs, or why there is none.
    """

    key: str
    value: str
    outcome: Outcome
    setting: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Balanced:
    """Folders by their places in `dataset_folders`, to repeats; ``ordinary`` is to equal the rest.

    Attributes:
        trained: Those of the trained images.
        ordinary: Those of the regularization images.
    """

    key: str
    trained: dict[int, int]
    ordinary: dict[int, int]


@dataclass(slots=True)
class Conversion:
    """Our settings, as they come together.

    Attributes:
        values: YAML path to value.
        sources: Files, or parts of them, whose tables were applied.
        epochs: Settings that count steps, to a key that counts epochs and its value.
        balanced: Folders whose repeats follow from how many images others have.
    """

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    epochs: dict[str, tuple[str, float]] = field(default_factory=dict)
    balanced: list[Balanced] = field(default_factory=list)

    def set(
        self,
        setting: str,
        value: Any,
        key: str,
        value_there: Any,
        near: str = "",
        *,
        stated: bool = True,
        ours: Any = ABSENT,
    ) -> None:
        """Set one of our settings, where it can have the value.

        Args:
            key: What it follows from, in the other program's words.
            near: How ours differs; empty for an exact counterpart.
            stated: Whether the file says so; else it is the program's default, which is left out
                where it is ours as well.
            ours: Our default, where it depends on other settings.
        """
        found = find_setting(setting)
        assert found is not None, setting
        usual = found.get_default(call_default_factory=True) if ours is ABSENT else ours
        if not stated and value == usual:
            return
        outcome: Outcome = ("near" if near else "exact") if stated else "default"
        if fits(setting, value):
            self.values[setting] = value
        else:
            outcome, near = "lacking", f"{setting} takes {expectation(found)}."
        self._note(key, value_there, outcome, setting=setting, why=near)

    def _note(self, key: str, value: Any, outcome: Outcome, setting: str, why: str) -> None:
        self.notes.append(Note(name_of(key), shown(value), outcome, setting=setting, why=why))

    def applied(self, setting: str, key: str, value: Any, near: str = "") -> None:
        """Note a key that one of our settings follows from, whose value is set elsewhere."""
        self._note(key, value, "near" if near else "exact", setting=setting, why=near)

    def missing(self, key: str, value: Any, why: str) -> None:
        """Note that a key says something that we have nothing for."""
        self._note(key, value, "lacking", setting="", why=why)

    def unused(self, key: str, value: Any, why: str = "") -> None:
        """Note a key without counterpart that asks for nothing."""
        self._note(key, value, "off", setting="", why=why)

    def unknown(self, key: str, value: Any) -> None:
        """Note a key that is in no table."""
        self._note(key, value, "unknown", setting="", why="")

    def leave_out(self, settings: Set[str], why: str) -> None:
        """Take settings back, and note the keys that they follow from as left out."""
        for setting in settings:
            self.values.pop(setting, None)
        self.notes = [
            replace(note, outcome="lacking", why=why) if note.setting in settings else note
            for note in self.notes
        ]

    def finish(self) -> None:
        """Note the keys that no note names yet."""
        noted = {
            note.key[:end] for note in self.notes for end in (len(note.key), *_ends_of(note.key))
        }
        for source in reversed(self.sources):
            for key, value in source.values.items():
                row, name = source.table.row(key), source.name(key)
                if row is None or value is None or name_of(name) in noted:
                    continue
                noted.add(name_of(name))
                failed = [each.key for each in row.conditions if not each.met(source)]
                if failed:
                    other = next((each for each in failed if each not in row.keys), "")
                    stated = f"{source.name(other)} {shown(source.word(other))}"
                    self.unused(name, value, other and f"It means nothing with {stated}.")
                elif isinstance(row, Cases):
                    self.unused(name, value)
                elif isinstance(row, Together) and not isinstance(value, dict | list):
                    setting = next(filter(row.speaks_of, self.values), "")
                    self._note(name, value, "exact" if setting else "off", setting=setting, why="")
        self.sources = []


def with_one_outcome(notes: Sequence[Note]) -> list[Note]:
    """Say one thing of each key: what it sets nearly is not set exactly, nor left out."""
    notes_of: dict[str, list[Note]] = {}
    for note in notes:
        if note.outcome != "default":
            notes_of.setdefault(note.key, []).append(note)
    found: list[Note] = []
    for note in notes:
        own = [note] if note.outcome == "default" else notes_of[note.key]
        weakest = max(own, key=lambda each: _WEAKNESS.index(each.outcome))
        if any(each.outcome in _APPLIED for each in own):
            if note.outcome not in (*_APPLIED, "default"):
                continue
            if weakest.outcome in {"near", "lacking"}:
                note = replace(note, outcome="near", why=note.why or weakest.why)
        elif note.outcome != weakest.outcome:
            continue
        found.append(note)
    return list(dict.fromkeys(found))


def _ends_of(key: str) -> list[int]:
    """Where the parts of a key end, such as ``datasets`` and ``datasets[0]``."""
    return [place for place, sign in enumerate(key) if sign in ".[ "]


class Source:
    """The values of a file, by dotted keys of a table.

    Args:
        values: Nested as in the file.
        prefix: What the keys begin with in messages.
        facts: What conditions may ask for beside keys, such as the name of a script.
        defaults: Values of keys of which the file says nothing, where they are not the table's.
        listed: Sections that are lists ``name=value`` there, and are shown so.

    Raises:
        ConfigError: When a section is none.
    """

    def __init__(
        self,
        file: str,
        values: Mapping[str, Any],
        table: Table,
        prefix: str = "",
        *,
        facts: Mapping[str, Any] | None = None,
        defaults: Mapping[str, Any] | None = None,
        listed: Sequence[str] = (),
    ) -> None:
        self.file, self.table, self.prefix, self.listed = file, table, prefix, listed
        self.facts, self.defaults = dict(facts or {}), defaults or {}
        self.values = dict(self._flattened(values, ""))

    def _flattened(self, values: Mapping[str, Any], before: str) -> Iterator[tuple[str, Any]]:
        for name, value in values.items():
            key = f"{before}{name}"
            if key not in self.table.sections:
                yield key, value
            elif isinstance(value, Mapping):
                yield from self._flattened(value, f"{key}.")
            elif self.table.row(key) is not None:
                yield key, value
            elif value is not None:
                raise self.unfit(key, value, "names with values")

    def name(self, key: str) -> str:
        """What messages call a key."""
        if key == ALWAYS:
            place = self.prefix.rstrip(".")
            return f"{ALWAYS_IN_WORDS} ({place})" if place else ALWAYS_IN_WORDS
        if key.startswith("@"):
            return key[1:]
        section, _, name = key.partition(".")
        return self.prefix + (f"{section} ({name})" if name and section in self.listed else key)

    def has(self, key: str) -> bool:
        """Whether the file says something of a key, and not just null."""
        return self.values.get(key) is not None

    def word(self, key: str, usual: Any = ABSENT) -> Any:
        """What a key says, or is there where the file is silent.

        Args:
            usual: That default; unset: that of the first row which has one.
        """
        if key in self.facts or self.has(key):
            return self.facts.get(key, self.values.get(key))
        return self.defaults.get(key, self.table.usual.get(key) if usual is ABSENT else usual)

    def read(self, key: str, read: Read, default: Any = None) -> Any:
        """The value of a key.

        Raises:
            ConfigError: When it is of another type than the other program reads.
        """
        return self.check(key, self.values[key], read) if self.has(key) else default

    def check(self, key: str, value: Any, read: Read) -> Any:
        """A value of a key, or of a part of it.

        Raises:
            ConfigError: When it is of another type than the other program reads.
        """
        try:
            return read(value)
        except UnfitError as error:
            raise self.unfit(key, value, str(error)) from error

    def unfit(self, key: str, value: Any, expected: str) -> ConfigError:
        """The error of a value that the other program would not read."""
        found = f"{self.file}: {name_of(self.name(key))} is {shown(value)}"
        return ConfigError(found, expected, "Correct it there, or take the key out.")

    def apply(self, to: Conversion) -> None:
        """Apply every row that holds; note what is in no table, in the file's order."""
        to.sources.append(self)
        for row in self.table.rows:
            if all(each.met(self) for each in row.conditions):
                row.apply(self, to)
        self.note_unknown_keys(to)

    def note_unknown_keys(self, to: Conversion) -> None:
        """Note what is in no table, in the file's order."""
        for key, value in self.values.items():
            if self.table.row(key) is None:
                for path, leaf in leaves(self.name(key), value):
                    to.unknown(path, leaf)

    def set(
        self,
        to: Conversion,
        setting: str,
        value: Any,
        key: str,
        value_there: Any = None,
        near: str = "",
    ) -> None:
        """Set one of our settings by a key, or by its default there where the file is silent.

        The arguments are those of `Conversion.set`; what the key says, or its default, is ours
        where it is unset.
        """
        displayed = value if value_there is None else value_there
        to.set(setting, value, self.name(key), displayed, near, stated=self.has(key))

    def unused(self, to: Conversion, *keys: str, why: str = "") -> None:
        """Note keys that ask for nothing here, where the file says something of them."""
        for key in filter(self.has, keys):
            to.unused(self.name(key), self.values[key], why)

    def missing(self, to: Conversion, key: str, why: str) -> None:
        """Note a key that we have nothing for, where the file says something of it."""
        if self.has(key):
            to.missing(self.name(key), self.values[key], why)

    def on(self, key: str) -> bool:
        """Whether a switch is on."""
        return self.read(key, flag, False)


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value with its key, or those inside a section."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(f"{key}.{name}", inner)
    else:
        yield key, value


def fits(setting: str, value: Any) -> bool:
    """Whether one of our settings can have a value."""
    try:
        RunConfig.model_validate(nested({setting: value}), strict=True)
    except ValidationError:
        return False
    return True


def shown(value: Any) -> str:
    """A value of a stranger's file, in one short line."""
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return shortened(value, _LONGEST)  # words of a command line are not YAML
    return shortened(single_line(value_in_words(value)), _LONGEST)


def name_of(key: str) -> str:
    """A key of a stranger's file, in one short line."""
    return shortened(single_line(key), _LONGEST)
