"""What every section of a run file shares: settings, their conditions, and both in words."""

from __future__ import annotations

import math
import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the settings.

    Attributes:
        found: What was found, beginning with the setting's YAML path.
        expected: What would have been right.
        remedy: What the user can do.
    """

    found: str
    expected: str
    remedy: str


class Other:
    """Values of another setting, with which a setting has an effect, or has none.

    Attributes:
        path: The other setting: its name in the same section, or its YAML path.
        values: Without any, every value but false, 0, unset and empty ones.
        because: The reason, for the message.
        such_as: A value of the other setting that helps, for the message.
        of: Values of the setting itself that this is about; without any, all but its default.
    """

    def __init__(
        self,
        path: str,
        *values: Any,
        because: str = "",
        such_as: Any = None,
        of: Sequence[Any] = (),
    ) -> None:
        self.path, self.values, self.because = path, values, because
        self.such_as, self.of = such_as, of

    def holds(self, value: Any) -> bool:
        """Whether the other setting has one of the values."""
        if self.values:
            return value in self.values
        return bool(value.strip() if isinstance(value, str) else value)


Resumed = Literal["decides", "course", "around", "free"]
"""What another value of a setting means for a run that is resumed.

``decides`` which run it is: refused. ``course``: the weights of the steps to come. ``around`` them:
how long it trains, what it measures, generates and writes. Both may change, and are named.
``free``: where something is, or what happens when it is not there; what is there is compared.
"""


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a setting besides its type, bounds and help; see `setting`."""

    advanced: bool
    pattern_in_words: str
    only_with: tuple[Other, ...]
    not_with: tuple[Other, ...]
    neutral: tuple[Any, ...]
    path: Literal["", "anchored", "as written"]
    no_paths: tuple[str, ...]
    resumed: Resumed | None

    def __call__(self, schema: dict[str, Any]) -> None:
        """Add nothing to the JSON schema, where pydantic has a place for traits."""


def setting(
    default: Any,
    text: str,
    *,
    advanced: bool = False,
    pattern_in_words: str = "",
    only_with: Other | tuple[Other, ...] = (),
    not_with: Other | tuple[Other, ...] = (),
    neutral: tuple[Any, ...] = (),
    path: Literal["", "anchored", "as written"] = "",
    no_paths: tuple[str, ...] = (),
    resumed: Resumed | None = None,
    **bounds: Any,
) -> Any:
    """Declare one setting: the one place of its default, bounds, help text and conditions.

    Args:
        default: The value when the run file says nothing; a list or dict is copied for each use.
        text: Help for the run-file template, the node's tooltip and the documentation.
        advanced: Whether the node hides it behind "advanced".
        pattern_in_words: What a message says of the bound ``pattern``; unset: the expression.
        only_with: What other settings must be for this one to have an effect.
        not_with: What other settings must not be.
        neutral: Values besides the default that need no condition.
        path: Whether it holds paths, and whether relative ones are made absolute.
        no_paths: Words that may stand in place of a path; the empty one where none is meant.
        resumed: What another value means for a run that is resumed; unset: as its section's.
        bounds: Pydantic's constraints, such as ``ge``, ``le``, ``gt``, ``lt``, ``min_length``.

    Returns:
        A pydantic field.
    """
    traits = Traits(
        advanced=advanced,
        pattern_in_words=pattern_in_words,
        only_with=only_with if isinstance(only_with, tuple) else (only_with,),
        not_with=not_with if isinstance(not_with, tuple) else (not_with,),
        neutral=neutral,
        path=path,
        no_paths=no_paths,
        resumed=resumed,
    )
    if isinstance(default, list | dict):
        bounds["default_factory"] = default.copy
    elif "default_factory" not in bounds:
        bounds["default"] = default
    return Field(description=text, json_schema_extra=traits, **bounds)


def section(kind: type[BaseModel], text: str, *, resumed: Resumed | None = None) -> Any:
    """Declare a section inside another: its class and help text; ``resumed`` as for `setting`."""
    return setting(None, text, resumed=resumed, default_factory=kind)


def traits_of(field: FieldInfo) -> Traits | None:
    """What `setting` knows of a field; None of a field that is declared in another way."""
    extra: object = field.json_schema_extra
    return extra if isinstance(extra, Traits) else None


class Section(BaseModel):
    """A frozen part of a run file; an unknown setting is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False, validate_default=False
    )

    def usual(self, name: str) -> Any:
        """A setting's value where the run file leaves it out."""
        return type(self).model_fields[name].get_default(call_default_factory=True)


_BOUNDS = (
    ("ge", "at least {}"),
    ("gt", "above {}"),
    ("le", "at most {}"),
    ("lt", "below {}"),
    ("min_length", "at least {} long"),
    ("max_length", "at most {} long"),
    ("pattern", "matching {}"),
)
_TYPES = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    type(None): "null",
}


def section_of(field: FieldInfo) -> type[BaseModel] | None:
    """The section that a field holds, or None for a plain setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def listed_in(field: FieldInfo) -> type[BaseModel] | None:
    """The section that each item of a field is, or None for one that holds no list of sections."""
    items = get_args(field.annotation) if get_origin(field.annotation) is list else ()
    found = [each for each in items if isinstance(each, type) and issubclass(each, BaseModel)]
    return found[0] if found else None


def listed_section(root: type[BaseModel], path: Sequence[str]) -> tuple[str, list[str]] | None:
    """The deepest section on a path that leads through an item of a list.

    The last name of the path is not looked at. Gives its path, such as ``dataset.folders.0``, and
    what may be set in it; None for a path through no list.
    """
    section, depth, inside = root, 0, False
    for number, part in enumerate(path[:-1], 1):
        if part.isdigit():
            inside, depth = True, number
            continue
        field = section.model_fields.get(part)
        kinds = () if field is None else (field.annotation, *get_args(field.annotation))
        found = [each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)]
        if not found:
            break
        section, depth = found[0], number
    return (".".join(path[:depth]), list(section.model_fields)) if inside else None


def expectation(field: FieldInfo) -> str:
    """Say what values a setting takes, such as ``a whole number, at least 1 and at most 4096``."""
    if section_of(field) is not None:
        return "a section: 'name: value' lines, indented"
    words = _type_in_words(field.annotation)
    bounds = bounds_in_words(field)
    return f"{words}, {bounds}" if bounds else words


def choices_of(field: FieldInfo) -> list[str]:
    """The words that a setting chooses from; empty for a setting that takes other values."""
    if get_origin(field.annotation) is not Literal:
        return []
    return [str(value) for value in get_args(field.annotation)]


def is_advanced(field: FieldInfo) -> bool:
    """Whether a setting is seldom changed."""
    traits = traits_of(field)
    return traits is not None and traits.advanced


def bounds_in_words(field: FieldInfo) -> str:
    """The bounds of a setting, such as ``at least 1 and at most 4096``, or nothing."""
    traits = traits_of(field)
    pattern = traits.pattern_in_words if traits else ""
    parts = [
        pattern if name == "pattern" and pattern else wording.format(value)
        for name, wording in _BOUNDS
        if (value := _bound(field, name)) is not None
    ]
    return " and ".join(parts)


def most_of(section: type[Section], name: str) -> float:
    """The largest value that a setting takes; infinite without a bound."""
    found = _bound(section.model_fields[name], "le")
    return math.inf if found is None else found


def _bound(field: FieldInfo, name: str) -> Any:
    return next(
        (v for part in field.metadata if (v := getattr(part, name, None)) is not None), None
    )


def _type_in_words(kind: Any) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Literal:
        words = [repr(value) for value in inner]
        return words[0] if len(words) == 1 else "one of " + ", ".join(words)
    if origin in (Union, types.UnionType):
        return " or ".join(_type_in_words(part) for part in inner)
    if origin is list:
        return f"a list of ({_type_in_words(inner[0])})"
    if origin is dict:
        return f"a mapping of text to ({_type_in_words(inner[1])})"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        fields = kind.model_fields.items()
        return (
            "{" + ", ".join(f"{k}: {_type_in_words(each.annotation)}" for k, each in fields) + "}"
        )
    return _TYPES.get(kind, str(kind))
