"""The words of a command, parsed: verb, files, settings and flags, and a verb's own settings."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import RunConfig
from ..errors import InputError
from ..families.run_files import load_config
from ..filesystem.storage import given_path
from ..weights.base_location import EMBEDDED
from . import Verb
from .console import show_note

_SETTING = re.compile(r"[A-Za-z_][\w.]*=")
_SPACED = re.compile(r"([A-Za-z_][\w.]*)\s*=\s+(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_][\w.]*")
_FLAGS = ("--json", "--help", "-h")


@dataclass(frozen=True, slots=True)
class Arguments:
    """The words behind a verb.

    Attributes:
        words: Those that are neither a setting nor a flag, in order: files, names.
        settings: Those of the form ``key=value``, as they were written.
        help: Whether only the verb's help is wanted.
    """

    words: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    json: bool = False
    help: bool = False

    def word(self, what: str, default: str | None = None) -> str:
        """The only word.

        Args:
            what: What the word is, for the error.
            default: Taken when there is none; None makes the word necessary.

        Raises:
            InputError: When there is no word and no default, or more than one.
        """
        self.at_most(1)
        if self.words:
            return self.words[0]
        if default is None:
            raise InputError("nothing behind the verb", what, f"Name {what}; see --help.")
        return default

    def at_most(self, count: int) -> None:
        """Refuse words that the verb has no use for.

        Raises:
            InputError: When there are more than `count` words.
        """
        if len(self.words) > count:
            extra = " ".join(self.words[count:])
            raise InputError(
                f"{extra!r}, which the verb has no use for",
                f"at most {count} word(s) besides key=value settings",
                "Leave it out, or quote a text with spaces as a whole.",
            )

    def config(self) -> RunConfig:
        """Read the run file, if one is named, with the settings on top.

        Raises:
            ConfigError: When something in them is wrong.
            InputError: When there is more than one file.
        """
        self.at_most(1)
        file = Path(self.words[0]) if self.words else None
        return load_config(file, self.settings, show_note)

    def split(self, own: Collection[str]) -> tuple[Mapping[str, list[str]], Arguments]:
        """Take the settings that belong to the verb and not to the run file.

        Returns:
            Name to values in order, as text; and the arguments without them.
        """
        taken: dict[str, list[str]] = {}
        rest = []
        for text in self.settings:
            name, _, value = text.partition("=")
            if name in own:
                taken.setdefault(name, []).append(value)
            else:
                rest.append(text)
        return taken, Arguments(self.words, tuple(rest), self.json, self.help)

    def only(self, own: Collection[str]) -> Mapping[str, str]:
        """The verb's own settings, for a verb that reads no run file; the last value wins.

        Raises:
            InputError: On any other setting, with the nearest name.
        """
        taken, rest = self.split(own)
        for text in rest.settings:
            name = text.partition("=")[0]
            near = difflib.get_close_matches(name, own, n=1)
            raise InputError(
                f"the setting {name}",
                "one of " + ", ".join(own) if own else "no settings",
                f"Did you mean {near[0]}?" if near else "Leave it out.",
            )
        return {name: values[-1] for name, values in taken.items()}


def parse_arguments(words: Sequence[str], verbs: Mapping[str, Verb]) -> tuple[str, Arguments]:
    """Sort the words of a command.

    Args:
        verbs: The verbs there are, with the flags that each knows besides ``--json``, ``--help``.

    Returns:
        The verb and its arguments. Everything behind ``--`` is a word; a verb's own flag is a
        setting of the same name, so that ``--to lycoris`` is ``to=lycoris``.

    Raises:
        InputError: On an unknown verb or flag, with the nearest one.
    """
    verb, *rest = words
    if verb not in verbs:
        near = difflib.get_close_matches(verb, verbs, n=1)
        raise InputError(
            f"the verb {verb!r}",
            "one of " + ", ".join(verbs),
            f"Did you mean {near[0]}?" if near else "See adapter-trainer --help.",
        )
    end = rest.index("--") if "--" in rest else len(rest)
    plain, flags = _without_flags(verb, _joined(rest[:end]), verbs[verb])
    return verb, Arguments(
        words=(*(w for w in plain if not _SETTING.match(w)), *rest[end + 1 :]),
        settings=tuple(w for w in plain if _SETTING.match(w)),
        json="--json" in flags,
        help=bool({"--help", "-h"} & flags),
    )


def _joined(words: Sequence[str]) -> list[str]:
    """Read ``key = value`` and ``key =value`` as the setting that they mean.

    ``key= value`` stays two words: an empty value may stand before a file's name.
    """
    joined: list[str] = []
    waiting = False
    for word in words:
        before = joined[-1] if joined else ""
        if waiting:
            joined[-1] += word
            waiting = False
        elif word.startswith("=") and _NAME.fullmatch(before):
            joined[-1] += word
            waiting = word == "="
        else:
            spaced = _SPACED.fullmatch(word)
            joined.append(f"{spaced[1]}={spaced[2]}" if spaced else word)
    return joined


def _without_flags(verb: str, words: Sequence[str], own: Verb) -> tuple[list[str], set[str]]:
    """Write a verb's own flags as the settings that they mean; take out those of every verb."""
    plain: list[str] = []
    general: set[str] = set()
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        name = flag.removeprefix("--").replace("-", "_")
        if not word.startswith("-"):
            plain.append(word)
        elif word in _FLAGS:
            general.add(word)
        elif flag.startswith("--") and name in own.switches and not equals:
            plain.append(f"{name}=true")
        elif flag.startswith("--") and name in own.options:
            plain.append(f"{name}={value if equals else _value_of(flag, rest)}")
        else:
            raise _unknown_flag(verb, word, own)
    return plain, general


def _value_of(flag: str, rest: Iterator[str]) -> str:
    value = next(rest, None)
    if value is None or value.startswith("--"):
        found = f"{value or 'nothing'} behind {flag}"
        raise InputError(found, "its value", f"Write {flag} VALUE, or {flag}=VALUE.")
    return value


def _unknown_flag(verb: str, flag: str, own: Verb) -> InputError:
    of_verb = [f"--{name}" for name in own.own]
    near = difflib.get_close_matches(flag, [*of_verb, *_FLAGS], n=1, cutoff=0.75)
    return InputError(
        f"the flag {flag!r}",
        ", ".join(["key=value settings", *of_verb, "--json"]) + " or --help",
        f"Did you mean {near[0]}?" if near else f"Settings are written {verb} key=value.",
    )


def word_or(own: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    """A setting that is one of some words.

    Raises:
        InputError: When it is another.
    """
    value = own.get(name, default)
    if value not in choices:
        raise InputError(f"{name}={value}", f"one of {', '.join(choices)}", f"Correct {name}.")
    return value


def is_set(own: Mapping[str, str], name: str) -> bool:
    """A switch, written ``--name`` or ``name=true``.

    Raises:
        InputError: When it is neither true nor false.
    """
    return word_or(own, name, ("true", "false"), "false") == "true"


def whole_number(own: Mapping[str, str], name: str, least: int) -> int | None:
    """A setting that is a whole number; None where it is not given.

    Raises:
        InputError: When it is none, or below `least`.
    """
    if name not in own:
        return None
    try:
        value = int(own[name])
    except ValueError:
        value = least - 1
    if value < least:
        raise InputError(
            f"{name}={own[name]}", f"a whole number of at least {least}", f"Correct {name}."
        )
    return value


def numbers(own: Mapping[str, str], name: str, count: int) -> tuple[float, ...]:
    """A setting like ``1,0.5``: a number for each of some adapters, or one for all; 1 if unset.

    Raises:
        InputError: When it is something else, or a number is not finite.
    """
    text = own.get(name, "1")
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (math.nan,)
    if len(values) == 1:
        values *= count
    if len(values) != count or not all(math.isfinite(value) for value in values):
        raise InputError(
            f"{name}={text} for {count} adapter(s)",
            "one number, or one for each adapter with commas between, such as 1,0.5"
            if count > 1
            else "a number; 1 is the adapter as it was trained",
            f"Correct {name}, or leave it out for 1.",
        )
    return values


def existing(path: str, what: str) -> Path:
    """A path that a word names.

    Raises:
        InputError: When nothing is there, or the system does not let anybody look.
    """
    place = given_path(path, what)
    if not place.exists():
        raise InputError(f"there is no {place}", what, "Check the path.")
    return place


def existing_base(path: str) -> None:
    """See that a base which a word names is there, before anything heavy is imported.

    Raises:
        InputError: When it is not, or the system does not let anybody look.
    """
    if path != EMBEDDED and not given_path(path, "a base model").exists():
        raise InputError(
            f"{path} does not exist",
            "a folder or file with a base model, or the word embedded",
            "Correct the path, or download the model first.",
        )


def check_words(
    arguments: Arguments, least: int, expected: str, example: str, *, more: bool = False
) -> None:
    """See that as many words stand behind a verb as it takes.

    Args:
        example: How the verb is written with them.
        more: Whether there may be more.

    Raises:
        InputError: When there are others.
    """
    count = len(arguments.words)
    if count < least or (count > least and not more):
        raise InputError(
            f"{count} word(s) behind the verb", expected, f"Write adapter-trainer {example}."
        )
