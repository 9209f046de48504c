"""The YAML of run files: the plain values of YAML 1.2, safe to read from a stranger.

PyYAML follows YAML 1.1, where ``no`` is false, ``1e-4`` is text, ``010`` is eight and ``12:30`` is
750. Here only ``true`` and ``false`` are truth values and every usual spelling of a number is a
number. Tags, anchors and merge keys are refused: a run file is plain data, and what is refused
cannot grow while it is read.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import Any

import yaml

from ..errors import ConfigError
from ..filesystem.text_files import refuse_deep

SIZE_LIMIT = 1_000_000
"""Largest run file in characters."""

LONGEST_VALUE = 80
"""Of a value in a message, in characters."""

BACKSLASHES = (
    "Write / for each \\, or put the path into single quotes: double quotes take \\n for a line "
    "break, \\t for a tab, and others for what they do not know."
)
"""What to do about a path of Windows in double quotes."""

_PLAIN_VALUES = (
    ("tag:yaml.org,2002:null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("tag:yaml.org,2002:bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("tag:yaml.org,2002:int", r"[-+]?[0-9][0-9_]*", list("-+0123456789")),
    (
        "tag:yaml.org,2002:float",
        r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
)

_LINE_BREAKS = re.compile("[\\t\\n\\r\\x85\\u2028\\u2029\\ufeff]")


class _Reader(yaml.SafeLoader):
    """A safe loader with the values above, that refuses a key written twice."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise yaml.MarkedYAMLError(
                problem="found an anchor or alias", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag != "tag:yaml.org,2002:str":
                raise yaml.MarkedYAMLError(
                    problem="found a name that is not text", problem_mark=key.start_mark
                )
            if key.value in lines:
                raise yaml.MarkedYAMLError(
                    problem=f"found {key.value!r} twice (first in line {lines[key.value]})",
                    problem_mark=key.start_mark,
                )
            lines[key.value] = key.start_mark.line + 1
        return super().construct_mapping(node, deep=True)

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        return int(self.construct_scalar(node))


class _Writer(yaml.SafeDumper):
    """Writes what `_Reader` reads back as the same value."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, data: str) -> yaml.ScalarNode:
        # The emitter breaks lines at these even inside quotes, unless the quotes allow escapes.
        style = '"' if _LINE_BREAKS.search(data) else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


for _class in (_Reader, _Writer):
    _class.yaml_implicit_resolvers = {}  # our own, so that YAML 1.1's are not inherited
    for _tag, _pattern, _first in _PLAIN_VALUES:
        _class.add_implicit_resolver(_tag, re.compile(rf"^(?:{_pattern})$"), _first)
_Writer.add_representer(str, _Writer.represent_text)
# YAML 1.1 reads a leading zero as octal and a colon as base 60.
_Reader.add_constructor("tag:yaml.org,2002:int", _Reader.construct_decimal)


def parse_yaml(text: str, source: str) -> Any:
    """Read one YAML document, as the values of YAML's own types; None for an empty one.

    The source is what errors call it: a file's path or an override.

    Raises:
        ConfigError: On a syntax error, a key written twice, a tag, an anchor, or too much text.
    """
    if len(text) > SIZE_LIMIT:
        raise ConfigError(
            f"{source} has {len(text)} characters",
            f"a run file of at most {SIZE_LIMIT} characters",
            "Check that this is the run file and not another one.",
        )
    try:
        reader = _Reader(text)
        try:
            value = reader.get_single_data()
        finally:
            reader.dispose()
        refuse_deep(value)
    except yaml.YAMLError as error:
        raise ConfigError(
            f"{source}{_place(error)}: {_problem(error)}",
            "plain YAML: 'name: value' lines, sections indented by spaces, each name once",
            BACKSLASHES
            if "escape" in str(error)
            else "Fix that line; text with ':', '#' or quotes in it needs quotes around it.",
        ) from error
    except (RecursionError, ValueError) as error:
        deep = isinstance(error, RecursionError)
        raise ConfigError(
            f"{source} cannot be read as YAML ({'it is nested too deeply' if deep else error})",
            "a run file of sections and settings",
            "Check that this is the run file and not another one.",
        ) from error
    return value


def format_yaml(value: Any) -> str:
    """Write plain values as YAML that `parse_yaml` reads back equal."""
    return yaml.dump(value, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=100)


def format_value(value: Any) -> str:
    """Write one value as YAML on a single line, as it may stand behind ``name:``."""
    text = yaml.dump(
        value, Dumper=_Writer, allow_unicode=True, default_flow_style=True, width=float("inf")
    )
    return text.removesuffix("\n").removesuffix("\n...")


def _place(error: yaml.YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    return f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError):
        return " ".join(part for part in (error.context, error.problem) if part)
    return " ".join(str(error).split())


def value_in_words(value: Any) -> str:
    """A value as it would stand in the run file, shortened."""
    plain = isinstance(value, str | int | float | bool | list | tuple | Mapping | type(None))
    text = format_value(list(value) if isinstance(value, tuple) else value) if plain else str(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."
