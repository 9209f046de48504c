"""What every section of a run file shares."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, JsonValue


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
