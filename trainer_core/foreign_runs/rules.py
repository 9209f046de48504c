"""Rules of a program's keys, and what becomes of a file that they are applied to."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pydantic import ValidationError

from ..config.dialect import value_in_words
from ..config.run import RunConfig, find_setting, nested
from ..config.section import expectation
from ..errors import ConfigError
from ..printable import shortened, single_line


@dataclass(frozen=True, slots=True)
class Balanced:
    """Folders by their places in `dataset_folders`, to repeats; ``ordinary`` is to equal the rest.

    Attributes:
        key: What the file calls them.
        trained: Those of the trained images.
        ordinary: Those of the regularization images.
    """

    key: str
    trained: dict[int, int]
    ordinary: dict[int, int]


Read = Callable[[Any], Any]
"""Turns a value of another program into ours; raises `UnfitError`."""

Outcome = Literal["exact", "near", "default", "lacking", "off", "unknown"]

ABSENT: Any = object()
"""What stands for no value at all."""

EVERY: tuple[Any, ...] = (object(),)
"""For `Lacks.off`: whatever it says, nothing is learned otherwise."""

_APPLIED: Sequence[Outcome] = ("exact", "near")
_WEAKNESS: Sequence[Outcome] = ("default", "off", "exact", "near", "unknown", "lacking")
_LONGEST = 120
_LARGEST = 1e100
"""So that no product of a few numbers of a file is infinite."""

_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_ON, _OFF = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_FLAGS = {**dict.fromkeys(_ON, True), **dict.fromkeys(_OFF, False)}


class UnfitError(ValueError):
    """A value that a key cannot have; its text is what was expected."""


@dataclass(frozen=True, slots=True)
class Maps:
    """One of our settings says the same.

    Attributes:
        setting: Its YAML path.
        read: Turns the value into ours.
        default: What the other program takes where the key is absent, as our value; `ABSENT` where
            that is the same as ours, or nothing.
        near: How ours differs; empty for an exact counterpart.
        exact: Values, as ours, with which there is no difference all the same.
    """

    setting: str
    read: Read
    default: Any = ABSENT
    near: str = ""
    exact: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Lacks:
    """We have nothing for it.

    Attributes:
        why: The reason, as a sentence.
        off: Values with which it asks for nothing.
    """

    why: str
    off: tuple[Any, ...] = (None, False, "", 0, "none", "None", "NONE", "off")

    def is_off(self, value: Any) -> bool:
        """Whether a value asks for nothing; numbers of a command line are texts."""
        if isinstance(value, str) and _NUMBER.fullmatch(value):
            return value in self.off or float(value) in self.off
        return value in ([], {}) or any(value is off or value == off for off in self.off)


@dataclass(frozen=True, slots=True)
class Together:
    """It says something together with other keys.

    Attributes:
        says: Our settings that follow from it, for the table of the documentation.
    """

    says: str

    def speaks_of(self, setting: str) -> bool:
        """Whether one of our settings follows from it."""
        paths = [path.split(" ")[0] for path in self.says.split(", ")]
        return any(f"{setting}.".startswith(f"{path}.") for path in paths)


Rule = Maps | Lacks | Together
Table = Mapping[str, Rule]
"""Dotted key to its rule. A key that holds a mapping is looked into only where a rule is below."""


@dataclass(frozen=True, slots=True)
class Note:
    """What became of a key.

    Attributes:
        key: As the other program calls it.
        value: What it said, shortened; empty for a default.
        outcome: ``exact``, ``near``, ``default`` (absent there, and its default is not ours),
            ``lacking`` (we have nothing), ``off`` (we have nothing, and it asks for nothing) or
            ``unknown``.
        setting: Our setting, or nothing.
        why: What differs, or why there is none.
    """

    key: str
    value: str
    outcome: Outcome
    setting: str = ""
    why: str = ""


@dataclass(slots=True)
class Conversion:
    """Our settings, as they come together.

    Attributes:
        values: YAML path to value.
        notes: What became of every key.
        sources: Files, or parts of them, whose tables were applied.
        epochs: Settings that count steps, to a key that counts epochs and its value.
        balanced: Folders whose repeats follow from how many images others have.
    """

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[Note] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    epochs: dict[str, tuple[str, float]] = field(default_factory=dict)
    balanced: list[Balanced] = field(default_factory=list)

    def say(
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
        if not _fits(setting, value):
            why = f"{setting} takes {expectation(found)}."
            self.notes.append(Note(name_of(key), shown(value_there), "lacking", setting, why))
            return
        self.values[setting] = value
        outcome: Outcome = ("near" if near else "exact") if stated else "default"
        self.notes.append(Note(name_of(key), shown(value_there), outcome, setting, near))

    def tell(self, setting: str, key: str, value: Any, near: str = "") -> None:
        """Note a key that one of our settings follows from, whose value is set elsewhere."""
        kind: Outcome = "near" if near else "exact"
        self.notes.append(Note(name_of(key), shown(value), kind, setting, near))

    def lack(self, key: str, value: Any, why: str) -> None:
        """Note that a key says something that we have nothing for."""
        self.notes.append(Note(name_of(key), shown(value), "lacking", "", why))

    def off(self, key: str, value: Any, why: str = "") -> None:
        """Note a key without counterpart that asks for nothing."""
        self.notes.append(Note(name_of(key), shown(value), "off", "", why))

    def unknown(self, key: str, value: Any) -> None:
        """Note a key that is in no table."""
        self.notes.append(Note(name_of(key), shown(value), "unknown"))

    def leave_out(self, settings: Set[str], why: str) -> None:
        """Take settings back, and note the keys that they follow from as left out."""
        for setting in settings:
            self.values.pop(setting, None)
        self.notes = [
            replace(note, outcome="lacking", why=why) if note.setting in settings else note
            for note in self.notes
        ]

    def finish(self) -> None:
        """Note the keys that say something together with others, and that no note names yet."""
        outcomes = {
            note.key[:end] for note in self.notes for end in (len(note.key), *_ends_of(note.key))
        }
        for source in self.sources:
            for key, value in source.values.items():
                rule, name = source.table.get(key), name_of(source.prefix + key)
                if isinstance(rule, Together) and name not in outcomes and _is_plain(value):
                    setting = next((each for each in self.values if rule.speaks_of(each)), "")
                    outcome: Outcome = "exact" if setting else "off"
                    self.notes.append(Note(name, shown(value), outcome, setting))
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


def _is_plain(value: Any) -> bool:
    """Whether it says something by itself: no section, and no list of them."""
    return value is not None and not isinstance(value, dict | list)


class Source:
    """The values of a file, by dotted keys of a table.

    Args:
        file: What messages call it.
        values: Nested as in the file.
        table: The keys that are looked for.
        prefix: What the keys begin with in messages.
    """

    def __init__(
        self, file: str, values: Mapping[str, Any], table: Table, prefix: str = ""
    ) -> None:
        self.file, self.table, self.prefix = file, table, prefix
        self.values = dict(_flattened(values, table))

    def has(self, key: str) -> bool:
        """Whether the file says something of a key, and not just null."""
        return self.values.get(key) is not None

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
            raise ConfigError(
                f"{self.file}: {name_of(self.prefix + key)} is {shown(value)}",
                str(error),
                "Correct it there, or take the key out.",
            ) from error

    def apply(self, to: Conversion) -> None:
        """Apply every rule of the table that needs one key alone; note what is in no table."""
        to.sources.append(self)
        for key, rule in self.table.items():
            if isinstance(rule, Maps):
                self._map(key, rule, to)
            elif isinstance(rule, Lacks) and key in self.values:
                value = self.values[key]
                asks = rule.off is not EVERY and not rule.is_off(value)
                for path, leaf in leaves(key, value):
                    (to.lack if asks else to.off)(self.prefix + path, leaf, rule.why)
        self.tell_unknown(to)

    def tell_unknown(self, to: Conversion) -> None:
        """Note what is in no table, in the file's order."""
        for key, value in self.values.items():
            for path, leaf in leaves(key, value) if key not in self.table else ():
                to.unknown(self.prefix + path, leaf)

    def say(
        self,
        to: Conversion,
        setting: str,
        value: Any,
        key: str,
        value_there: Any = ABSENT,
        near: str = "",
    ) -> None:
        """Set one of our settings by a key, or by its default there where the file is silent.

        The arguments are those of `Conversion.say`; what the key says, or its default, is ours
        where it is unset.
        """
        displayed = value if value_there is ABSENT else value_there
        to.say(setting, value, self.prefix + key, displayed, near, stated=self.has(key))

    def take(
        self, to: Conversion, key: str, setting: str, read: Read, default: Any = ABSENT
    ) -> None:
        """Set one of our settings by a key, or by its default there."""
        self._map(key, Maps(setting, read, default), to)

    def when(self, condition: object, to: Conversion, table: Table, why: str = "") -> bool:
        """Apply rules that hold under a condition; else their keys ask for nothing.

        Args:
            condition: Whether they hold.
            table: The rules, each a `Maps`.
            why: Said of the keys where they do not hold.

        Returns:
            Whether they hold.
        """
        for key, rule in table.items():
            assert isinstance(rule, Maps), key
            if condition:
                self._map(key, rule, to)
            else:
                self.off(to, key, why=why)
        return bool(condition)

    def unused(self, to: Conversion, *keys: str, why: str = "") -> None:
        """Note keys that nothing was said of yet, as asking for nothing here."""
        noted = {note.key for note in to.notes}
        self.off(to, *(key for key in keys if name_of(self.prefix + key) not in noted), why=why)

    def off(self, to: Conversion, *keys: str, why: str = "") -> None:
        """Note keys that ask for nothing here, where the file says something of them."""
        for key in keys:
            if self.has(key):
                to.off(self.prefix + key, self.values[key], why)

    def _map(self, key: str, rule: Maps, to: Conversion) -> None:
        if self.has(key):
            value = self.read(key, rule.read)
            if value is ABSENT:
                self.off(to, key)
                return
            near = "" if value in rule.exact else rule.near
            self.say(to, rule.setting, value, key, self.values[key], near)
        elif rule.default is not ABSENT:
            near = "" if rule.default in rule.exact else rule.near
            self.say(to, rule.setting, rule.default, key, near=near)


def _flattened(
    values: Mapping[str, Any], table: Table, before: str = ""
) -> Sequence[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in values.items():
        key = f"{before}{name}"
        inside = any(known.startswith(f"{key}.") for known in table)
        if isinstance(value, Mapping) and key not in table and inside:
            found += _flattened(value, table, f"{key}.")
        else:
            found.append((key, value))
    return found


def leaves(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A value with its key, or those inside a section."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(f"{key}.{name}", inner)
    else:
        yield key, value


def _fits(setting: str, value: Any) -> bool:
    try:
        RunConfig.model_validate(nested({setting: value}), strict=True)
    except ValidationError:
        return False
    return True


def shown(value: Any) -> str:
    """A value of a stranger's file, in one short line."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return shortened(value, _LONGEST)  # words of a command line are no YAML
    return shortened(single_line(value_in_words(value)), _LONGEST)


def name_of(key: str) -> str:
    """A key of a stranger's file, in one short line."""
    return shortened(single_line(key), _LONGEST)


def number(value: Any) -> float:
    """A number, also as YAML 1.1 gives ``1e-4``: as text."""
    if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UnfitError("a number")
    if not -_LARGEST <= value <= _LARGEST:
        raise UnfitError(f"a number of at most {_LARGEST:g}")
    return float(value)


def whole(value: Any) -> int:
    """A whole number."""
    if (found := number(value)) != int(found):
        raise UnfitError("a whole number")
    return int(found)


def flag(value: Any) -> bool:
    """True or false."""
    if isinstance(value, str) and value.strip().lower() in _FLAGS:
        return _FLAGS[value.strip().lower()]
    if isinstance(value, bool) or value in (0, 1):
        return bool(value)
    raise UnfitError("true or false")


def text(value: Any) -> str:
    """A text; a number is written as one."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        return str(value)
    raise UnfitError("a text")


def texts(value: Any) -> list[str]:
    """A list of texts; one alone is a list of one."""
    return [text(each) for each in value] if isinstance(value, list | tuple) else [text(value)]


def mapping(value: Any) -> Mapping[str, Any]:
    """Names with values."""
    if not isinstance(value, Mapping):
        raise UnfitError("names with values")
    return value


def mappings(value: Any) -> list[Mapping[str, Any]]:
    """A list of names with values."""
    if isinstance(value, list) and all(isinstance(each, Mapping) for each in value):
        return value
    raise UnfitError("a list of names with values")


def numbers(value: Any) -> list[float]:
    """A list of numbers."""
    if isinstance(value, list | tuple):
        return [number(each) for each in value]
    raise UnfitError("a list of numbers")


def switch_to(value: Any) -> Read:
    """A reader of a switch that sets a value where it is on, and else nothing."""
    return lambda stated: value if flag(stated) else ABSENT


def word_of(choices: Mapping[str, Any]) -> Read:
    """A reader of words, whatever their case."""

    def read(value: Any) -> Any:
        name = text(value).strip().lower()
        if name not in choices:
            raise UnfitError("one of " + ", ".join(choices))
        return choices[name]

    return read
