"""A commented run file, made from the settings' own help texts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from .describe import bounds_in_words, choices_of, is_advanced, section_of
from .dialect import format_value
from .run import RunConfig

_WIDTH = 96


def commented_run_file(
    title: str, values: Mapping[str, Any], choices: Mapping[str, Sequence[str]]
) -> str:
    """Write a run file that explains itself.

    Args:
        title: Its first line.
        values: What differs from the defaults, by YAML path.
        choices: As `load_config` takes them.

    Returns:
        YAML. Settings for experts are commented out and show their default.
    """
    lines = [
        f"# {title}",
        "#",
        "# Set dataset.path and output.name, then:",
        "#   adapter-trainer doctor run.yaml                     what will be trained",
        "#   adapter-trainer train run.yaml                      train",
        "#   adapter-trainer train run.yaml training.steps=500   with another value for this time",
        "# Relative paths are relative to this file's folder. Lines that begin with '#' and a name",
        "# show the default of a setting that is seldom changed.",
        *_section_lines(RunConfig, "", values, choices),
    ]
    return "\n".join(lines) + "\n"


def _section_lines(
    section: type[BaseModel],
    prefix: str,
    values: Mapping[str, Any],
    choices: Mapping[str, Sequence[str]],
) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, field in section.model_fields.items():
        inner = section_of(field)
        if inner is not None or not prefix:
            yield ""
        path = prefix + name
        words = choices.get(path) or choices_of(field)
        yield from _comment(_help_text(field, words), indent)
        if inner is not None:
            yield f"{indent}{name}:"
            yield from _section_lines(inner, f"{path}.", values, choices)
            continue
        value = values.get(path, field.get_default(call_default_factory=True))
        hidden = is_advanced(field) and path not in values
        yield f"{indent}{'# ' if hidden else ''}{name}: {format_value(value)}"


def _help_text(field: FieldInfo, choices: Sequence[str]) -> str:
    text = field.description or ""
    if sum(word not in text for word in choices) > 1:
        text += " One of " + ", ".join(choices) + "."
    bounds = "" if _bounded_by_pattern(field) else bounds_in_words(field)
    return f"{text} ({bounds})" if bounds else text


def _bounded_by_pattern(field: FieldInfo) -> bool:
    return any(getattr(part, "pattern", None) for part in field.metadata)


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent + "# ", subsequent_indent=indent + "# "
    )
