"""What is wrong with a run file: found all at once, told in one error."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import ConfigError
from ..printable import MOST, grouped, shortened
from .describe import choices_of, expectation, find_setting, section_of, walk_settings
from .dialect import format_value
from .run import RunConfig

_LONGEST_VALUE = 80


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        found: What was found, beginning with the setting's YAML path.
        expected: What would have been right.
        remedy: What the user can do.
    """

    found: str
    expected: str
    remedy: str


def raise_problems(source: str, problems: Sequence[Problem]) -> None:
    """Raise one error for all problems; nothing happens when there are none.

    Args:
        source: What was read: the run file's path, or ``the overrides``.
        problems: What was found.

    Raises:
        ConfigError: Naming every problem.
    """
    if not problems:
        return
    if len(problems) == 1:
        only = problems[0]
        raise ConfigError(f"{source}: {only.found}", only.expected, only.remedy)
    lines = [
        f"  {number}. {problem.found}; expected {problem.expected}. {problem.remedy}"
        for number, problem in enumerate(problems[:MOST], 1)
    ]
    if len(problems) > MOST:
        lines.append(f"  and {grouped(len(problems) - MOST)} more")
    raise ConfigError(
        f"{source}: {len(problems)} problems\n" + "\n".join(lines),
        "every setting known, of its type, within its range and not against another",
        "Mend the settings named above.",
    )


def problems_of(error: ValidationError) -> list[Problem]:
    """Put pydantic's errors about a `RunConfig` into our words, one problem for each setting."""
    unknown: list[Problem] = []
    wrong: dict[str, tuple[int, Problem]] = {}
    for detail in error.errors(include_url=False, include_context=False):
        location = [str(part) for part in detail["loc"]]
        if detail["type"] == "extra_forbidden":
            name = shortened(".".join(location), _LONGEST_VALUE)
            # Only those that will be told are worth the search for a near name.
            few = len(unknown) < MOST
            unknown.append(unknown_setting(name) if few else Problem(name, "a setting", ""))
            continue
        path, inside = _setting_at(location)
        # A union reports every alternative; the one that reached deepest was meant.
        if path not in wrong or len(location) > wrong[path][0]:
            problem = _wrong_value(path, inside, detail["input"])
            wrong[path] = (len(location), problem)
    return unknown + [problem for _, problem in wrong.values()]


def unknown_words(values: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> list[Problem]:
    """Settings whose value is none of the words that they choose from.

    Args:
        values: Of a run file.
        choices: YAML path to words, for settings that take any text in a `RunConfig`. What is no
            text either is one of `problems_of`.
    """
    problems = []
    for path, words in choices.items():
        value: Any = values
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, str) and value not in words:
            expected = "one of " + ", ".join(map(repr, words))
            problems.append(Problem(_found(path, value), expected, _nearest(path, value, words)))
    return problems


def unknown_setting(path: str) -> Problem:
    """A setting that does not exist, with the nearest one that does."""
    known = [name for name, _ in walk_settings()]
    leaf = path.rsplit(".", 1)[-1]
    elsewhere = [name for name in known if name.rsplit(".", 1)[-1] == leaf]
    near = elsewhere[:3] or difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    if not near:
        leaves = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
        near = [leaves[name] for name in difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.6)]
    parent = path.rpartition(".")[0]
    while parent and parent not in _sections():
        parent = parent.rpartition(".")[0]
    names = ", ".join(_names_in(parent))
    where = f"in {parent}" if parent else "at the top of a run file"
    remedy = f"Did you mean {' or '.join(near)}?" if near else "Leave it out."
    return Problem(f"{path} is not a setting", f"one of these {where}: {names}", remedy)


def value_in_words(value: Any) -> str:
    """A value as it would stand in the run file, shortened."""
    plain = isinstance(value, str | int | float | bool | list | tuple | Mapping | type(None))
    text = format_value(list(value) if isinstance(value, tuple) else value) if plain else str(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 3] + "..."


def _setting_at(location: Sequence[str]) -> tuple[str, str]:
    """Split pydantic's location into the setting's YAML path and the place inside its value."""
    section: type[BaseModel] | None = RunConfig
    depth = 0
    for part in location:
        if section is None or part not in section.model_fields:
            break
        section = section_of(section.model_fields[part])
        depth += 1
    # What is left holds indices, keys and the names of a union's alternatives, such as list[str].
    inside = [part for part in location[depth:] if "[" not in part and part != "str"]
    return ".".join(location[:depth]), ".".join(inside)


def _wrong_value(path: str, inside: str, value: Any) -> Problem:
    field = find_setting(path)
    if field is None:
        return Problem(
            f"{value_in_words(value)} at the top", "a run file of sections and settings", "Mend it."
        )
    where = f"{path} (at {shortened(inside, _LONGEST_VALUE)})" if inside else path
    remedy = _nearest(path, value, choices_of(field))
    text_expected = "text" in expectation(field) or "'" in expectation(field)
    plain = not isinstance(value, str | list | Mapping)
    if "?" not in remedy and section_of(field) is None and text_expected and plain:
        remedy = f"Put the value of {path} in quotes if text is meant, or leave the setting out."
    return Problem(_found(where, value), expectation(field), remedy)


def _found(where: str, value: Any) -> str:
    return f"{where} is {value_in_words(value)}"


def _nearest(path: str, value: Any, words: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(value)[:_LONGEST_VALUE], words, n=1, cutoff=0.4)
    if near:
        return f"Did you mean {near[0]}?"
    return f"Change {path}, or leave it out for its default."


def _sections() -> set[str]:
    return {name for name, field in walk_settings() if section_of(field) is not None}


def _names_in(path: str) -> Iterable[str]:
    prefix = f"{path}." if path else ""
    names = [name.removeprefix(prefix) for name, _ in walk_settings() if name.startswith(prefix)]
    return [name for name in names if "." not in name]
