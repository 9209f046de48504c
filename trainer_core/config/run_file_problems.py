"""What is wrong with a run file, found all at once and told in one error.

A setting that contradicts another is wrong, and so is one that would have no effect: whoever wrote
it expects something. Facts that need files or the base model are checked where these are opened.
"""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import ConfigError
from ..printable import MOST, grouped, nearest, shortened, single_line
from .run import CONFIG_VERSION, RunConfig, find_setting, walk_settings
from .section import (
    Other,
    Problem,
    Section,
    choices_of,
    expectation,
    listed_section,
    section_of,
    traits_of,
)
from .yaml_dialect import BACKSLASHES, LONGEST_VALUE, value_in_words


def raise_problems(source: str, problems: Sequence[Problem]) -> None:
    """Raise one error for all problems of a source, such as a run file; none are no error.

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
        "Fix the settings named above.",
    )


def problems_of(error: ValidationError) -> list[Problem]:
    """Put pydantic's errors about a `RunConfig` into our words, one problem for each setting."""
    unknown: list[Problem] = []
    wrong: dict[str, tuple[int, Problem]] = {}
    for detail in error.errors(include_url=False, include_context=False):
        location = [str(part) for part in detail["loc"]]
        if detail["type"] == "extra_forbidden":
            name = shortened(".".join(location), LONGEST_VALUE)
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


def unknown_words(
    values: Mapping[str, Any],
    choices: Mapping[str, Sequence[str]],
    unlisted: Mapping[str, Sequence[str]],
) -> list[Problem]:
    """Settings whose value is none of the words that they choose from.

    Args:
        choices: YAML path to words, for settings that take any text in a `RunConfig`. What is no
            text either is one of `problems_of`.
        unlisted: YAML path to words that are known as well, and not offered.
    """
    problems = []
    for path, words in choices.items():
        value: Any = values
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, str) and value not in {*words, *unlisted.get(path, ())}:
            expected = "one of " + ", ".join(map(repr, words))
            problems.append(Problem(_found(path, value), expected, _nearest(path, value, words)))
    return problems


def unknown_setting(path: str) -> Problem:
    """A setting that does not exist, with the nearest one that does."""
    item = listed_section(RunConfig, path.split("."))
    if item is not None:
        parent, names = item
        near = difflib.get_close_matches(path.removeprefix(f"{parent}."), names, n=1, cutoff=0.6)
        remedy = f"Did you mean {parent}.{near[0]}?" if near else "Leave it out."
        expected = f"one of these in {parent}: {', '.join(names)}"
        return Problem(f"{path} is not a setting", expected, remedy)
    known = [name for name, _ in walk_settings()]
    leaf = path.rsplit(".", 1)[-1]
    # Other trainers write lr for learning_rate.
    elsewhere = [name for name in known if leaf in _spellings(name.rsplit(".", 1)[-1])]
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
            f"{value_in_words(value)} at the top", "a run file of sections and settings", "Fix it."
        )
    where = f"{path} (at {shortened(inside, LONGEST_VALUE)})" if inside else path
    remedy = _nearest(path, value, choices_of(field))
    text_expected = "text" in expectation(field) or "'" in expectation(field)
    plain = not isinstance(value, str | list | Mapping)
    if "?" not in remedy and section_of(field) is None and text_expected and plain:
        remedy = f"Put the value of {path} in quotes if text is meant, or leave the setting out."
        if expectation(field).startswith("a list"):
            remedy = f"Write {path} as a list in square brackets, or leave the setting out."
    return Problem(_found(where, value), expectation(field), remedy)


def _found(where: str, value: Any) -> str:
    return f"{where} is {value_in_words(value)}"


def _spellings(name: str) -> tuple[str, str]:
    """A setting's name, and its initials."""
    return name, "".join(word[:1] for word in name.split("_"))


def _nearest(path: str, value: Any, words: Sequence[str]) -> str:
    near = nearest(str(value)[:LONGEST_VALUE], words, cutoff=0.41)
    if near:
        return f"Did you mean {near}?"
    return f"Change {path}, or leave it out for its default."


def _sections() -> set[str]:
    return {name for name, field in walk_settings() if section_of(field) is not None}


def _names_in(path: str) -> Iterable[str]:
    prefix = f"{path}." if path else ""
    names = [name.removeprefix(prefix) for name, _ in walk_settings() if name.startswith(prefix)]
    return [name for name in names if "." not in name]


def check_config(config: RunConfig, source: str = "the settings") -> None:
    """Refuse settings that contradict each other and are valid each for itself.

    The source is what the error calls them, such as the run file's path.

    Raises:
        ConfigError: Naming every contradiction.
    """
    raise_problems(source, contradictions(config))


def contradictions(config: RunConfig) -> list[Problem]:
    """Everything in the settings that contradicts something else, or has no effect."""
    return [*_wrong_paths(config), *_unmet_conditions(config), *config.problems()]


def refuse_newer_version(version: object, source: str) -> None:
    """Refuse a run file that a newer trainer wrote, before its new settings look like typos.

    Raises:
        ConfigError: When the version is a number above ours.
    """
    if isinstance(version, int) and version > CONFIG_VERSION:
        raise ConfigError(
            f"{source}: config_version is {version}",
            f"at most {CONFIG_VERSION}",
            "Update the trainer, or write the file again with `adapter-trainer template`.",
        )


def _sections_in(section: Section, place: str = "") -> Iterator[tuple[str, Section]]:
    """A section and those in it, also in its lists, each with its YAML path."""
    yield place, section
    for name in type(section).model_fields:
        value, path = getattr(section, name), f"{place}.{name}".lstrip(".")
        if isinstance(value, Section):
            yield from _sections_in(value, path)
        for number, item in enumerate(value if isinstance(value, list) else ()):
            if isinstance(item, Section):
                yield from _sections_in(item, f"{path}[{number}]")


def _unmet_conditions(root: Section) -> Iterator[Problem]:
    """Settings whose ``only_with`` or ``not_with`` is not met.

    Settings of one section that miss the same condition are one problem.
    """
    for place, section in _sections_in(root):
        missed: dict[tuple[Other, bool], list[str]] = {}
        for name, field in type(section).model_fields.items():
            value, traits = getattr(section, name), traits_of(field)
            # To ask for the usual value takes long: most settings have no conditions.
            if traits is None or not (traits.only_with or traits.not_with):
                continue
            if value in (section.usual(name), *traits.neutral):
                continue
            conditions = [(each, True) for each in traits.only_with]
            conditions += [(each, False) for each in traits.not_with]
            for other, needed in conditions:
                concerned = not other.of or value in other.of
                if concerned and other.holds(_value_at(root, section, other.path)) != needed:
                    missed.setdefault((other, needed), []).append(name)
                    break
        for (other, needed), names in missed.items():
            now = _value_at(root, section, other.path)
            path = other.path if "." in other.path else f"{place}.{other.path}".lstrip(".")
            paths = " and ".join(f"{place}.{name}".lstrip(".") for name in names)
            one = f"is {value_in_words(getattr(section, names[0]))}"
            expected, remedy = _wanted(other, path, now, needed=needed)
            reason = f": {other.because}" if other.because else ""
            yield Problem(
                f"{paths} {one if len(names) == 1 else 'are set'} and {path} is "
                f"{_shown(other, now)}",
                f"{' and '.join(names)} only {expected}{reason}",
                f"Leave {paths} out, or {remedy}.",
            )


def _value_at(root: Section, section: Section, path: str) -> Any:
    """The value of another setting, by its name or YAML path."""
    value: Any = root if "." in path else section
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _shown(other: Other, now: Any) -> str:
    """A value of another setting, without the text of prompts and paths."""
    if isinstance(now, str) and not other.values:
        return "set" if now.strip() else "empty"
    return value_in_words(now)


def _wanted(other: Other, path: str, now: Any, *, needed: bool) -> tuple[str, str]:
    """What was expected of another setting, and what to do about it."""
    helps = other.such_as
    if needed:
        is_number = type(now) in {int, float}
        any_value = "true" if now is False else "above 0" if is_number else "set"
        words = " or ".join(map(value_in_words, other.values)) or any_value
        helps = (*other.values, True if now is False else None)[0] if helps is None else helps
        expected = f"with {other.path} {words}"
    else:
        expected = f"with another {other.path}" if other.values else f"without {other.path}"
    return expected, f"change {path}" if helps is None else f"set {path} to {value_in_words(helps)}"


def _wrong_paths(root: Section) -> Iterator[Problem]:
    """Texts in a run file that cannot be paths."""
    for place, section in _sections_in(root):
        for name, field in type(section).model_fields.items():
            traits = traits_of(field)
            if traits is None or not traits.path:
                continue
            where = f"{place}.{name}".lstrip(".")
            for text in _texts_in(getattr(section, name)):
                if _has_controls(text):
                    shown = shortened(single_line(text), _LONGEST_PATH)
                    yield Problem(
                        f"{where} is '{shown}', with control characters",
                        "a path without line breaks, tabs and other control characters",
                        BACKSLASHES,
                    )
                elif not text.strip() and text not in traits.no_paths:
                    yield Problem(
                        f"{where} is '{text}'", "a path", f"Write one, or leave {where} out."
                    )


_LONGEST_PATH = 300
_CONTROLS = {"Cc", "Zl", "Zp"}


def can_be_path(text: str) -> bool:
    """Whether it is neither empty nor has control characters."""
    return bool(text.strip()) and not _has_controls(text)


def _has_controls(text: str) -> bool:
    return any(unicodedata.category(letter) in _CONTROLS for letter in text)


def _texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for item in value if isinstance(value, list) else ():
        yield from _texts_in(item)
