"""What every section of a run file shares, and what a setting takes, in words."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, JsonValue
from pydantic.fields import FieldInfo


class Section(BaseModel):
    """A frozen part of a run file; an unknown setting is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", defer_build=True, allow_inf_nan=False, validate_default=False
    )


def setting(
    default: Any, text: str, *, advanced: bool = False, pattern_in_words: str = "", **bounds: Any
) -> Any:
    """Declare one setting: the one place of its default, bounds and help text.

    Args:
        default: The value when the run file says nothing; a list or dict is copied for each use.
        text: Help for the run-file template, the node's tooltip and the documentation.
        advanced: Whether the node hides it behind "advanced".
        pattern_in_words: What a message says of the bound ``pattern``; unset: the expression.
        bounds: Pydantic's constraints, such as ``ge``, ``le``, ``gt``, ``lt``, ``min_length``.

    Returns:
        A pydantic field.
    """
    extra: dict[str, JsonValue] = {"advanced": advanced, "pattern_in_words": pattern_in_words}
    if isinstance(default, list | dict):
        value = default
        return Field(
            default_factory=lambda: value.copy(),
            description=text,
            json_schema_extra=extra,
            **bounds,
        )
    return Field(default=default, description=text, json_schema_extra=extra, **bounds)


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


def listed_section(root: type[BaseModel], path: Sequence[str]) -> tuple[str, list[str]] | None:
    """The deepest section on a path that leads through an item of a list.

    Args:
        root: Of all settings.
        path: Names of sections and numbers of items; the last one is not looked at.

    Returns:
        Its path, such as ``dataset.folders.0``, and what may be set in it; None for a path through
        no list.
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
    extra = field.json_schema_extra
    return isinstance(extra, dict) and bool(extra.get("advanced"))


def bounds_in_words(field: FieldInfo) -> str:
    """The bounds of a setting, such as ``at least 1 and at most 4096``, or nothing."""
    extra = field.json_schema_extra
    told = str(extra.get("pattern_in_words", "")) if isinstance(extra, dict) else ""
    parts = [
        told if name == "pattern" and told else wording.format(value)
        for name, wording in _BOUNDS
        if (value := _bound(field, name)) is not None
    ]
    return " and ".join(parts)


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
