"""Every bound of every setting gives one message, and every rule between settings has a row.

Both are found by looking: bounds in the schema of a run file, rules in the source. So a new setting
is tested as it is written, and a new rule without a row fails here.
"""

import ast
import importlib.util
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

import trainer_core.config
from trainer_core.config import RunConfig
from trainer_core.config.run import walk_settings
from trainer_core.config.run_file_problems import contradictions, problems_of, raise_problems
from trainer_core.config.section import section_of, traits_of
from trainer_core.errors import ConfigError

HERE = Path(__file__).parent
FOLDER = Path(inspect.getfile(trainer_core.config)).parent
SCHEMA = RunConfig.model_json_schema()
SECTIONS = {"": RunConfig} | {
    f"{path}.": inner for path, field in walk_settings() if (inner := section_of(field)) is not None
}

OF_TYPE = {
    "integer": "text",
    "number": "text",
    "boolean": "perhaps",
    "string": True,
    "array": 3,
    "object": 3,
}
"""What each type refuses."""


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


BOUNDS: dict[str, Callable[[Any, float], Any]] = {
    "minimum": lambda bound, step: bound - step,
    "maximum": lambda bound, step: bound + max(step, abs(bound) * step),
    "exclusiveMinimum": lambda bound, step: bound,
    "exclusiveMaximum": lambda bound, step: bound,
    "minLength": lambda bound, step: "x" * (bound - 1),
    "maxLength": lambda bound, step: "x" * (bound + 1),
    "pattern": lambda bound, step: "\x00",
    "enum": lambda bound, step: "none of these words",
    "const": lambda bound, step: "none of these words",
}
"""A value behind each bound; `step` is what numbers of the type differ by."""


def beyond(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values behind each bound of a type, and one of another type."""
    kind, chosen = schema.get("type"), "enum" in schema or "const" in schema
    step = 1 if kind == "integer" else 1e-6
    for bound, value in BOUNDS.items():
        if bound in schema:
            yield bound, value(schema[bound], step)
    if "minItems" in schema:
        yield "minItems", []
    if "maxItems" in schema:
        inner = SAMPLES[resolved(schema["items"])["type"]]
        yield "maxItems", [inner] * (schema["maxItems"] + 1)
    if kind == "number":
        yield "nan", math.nan
        yield "infinite", math.inf
    if kind in OF_TYPE and not chosen:
        yield "type", OF_TYPE[kind]


SAMPLES = {"string": "x", "integer": 1, "number": 1.0, "array": [], "object": {}}


def wrong_values(schema: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values that a setting refuses, each with the bound that it breaks."""
    schema = resolved(schema)
    branches = [resolved(each) for each in schema.get("anyOf", [schema])]
    for branch in branches:
        others = [each for each in branches if each is not branch]
        for bound, value in beyond(branch):
            if not any(takes(each, value) for each in others):
                yield bound, value
        if "items" in branch and "properties" not in resolved(branch["items"]):
            for bound, value in wrong_values(branch["items"]):
                yield f"items.{bound}", [value]
        if isinstance(branch.get("additionalProperties"), dict):
            for bound, value in wrong_values(branch["additionalProperties"]):
                yield f"values.{bound}", {"name": value}


def takes(schema: dict[str, Any], value: Any) -> bool:
    """Whether another branch of a setting takes the type of a value, whatever its bounds."""
    named = {
        "integer": int,
        "number": (int, float),
        "string": str,
        "boolean": bool,
        "array": list,
        "object": dict,
    }
    kind = named.get(schema.get("type", ""))
    chosen = "enum" in schema or "const" in schema
    return kind is not None and isinstance(value, kind) and not chosen


def rows() -> Iterator[Any]:
    for path, field in walk_settings():
        if section_of(field) is not None:
            yield pytest.param(path, "not a section", id=f"{path}: section")
            continue
        schema: dict[str, Any] = SCHEMA
        for name in path.split("."):
            schema = resolved(schema)["properties"][name]
        for bound, value in wrong_values(schema):
            yield pytest.param(path, value, id=f"{path}: {bound}")


ROWS = list(rows())


def test_the_walk_has_found_what_there_is():
    """So that an empty table does not pass."""
    settings = {path for path, field in walk_settings() if section_of(field) is None}
    assert {each.values[0] for each in ROWS} >= settings
    assert len(ROWS) > 2 * len(settings)


def nested(path: str, value: Any) -> dict[str, Any]:
    for name in reversed(path.split(".")):
        value = {name: value}
    return value


@pytest.mark.parametrize(("path", "value"), ROWS)
def test_a_value_out_of_bounds_is_one_message_that_names_the_setting(path, value):
    with pytest.raises(ValidationError) as caught:
        RunConfig.model_validate(nested(path, value))
    (problem,) = problems_of(caught.value)
    assert problem.found.startswith((f"{path} is ", f"{path} (at "))
    assert problem.expected
    assert path in problem.remedy or "Did you mean" in problem.remedy
    with pytest.raises(ConfigError) as error:
        raise_problems("run.yaml", [problem])
    assert str(error.value).count("\n") <= 2, "one message"


def rule_modules() -> list[Path]:
    """The modules that may have rules."""
    return sorted(FOLDER.glob("*.py"))


def told_at(path: Path) -> set[tuple[str, int]]:
    """The lines at which a module tells of a contradiction: those of ``yield Problem(...)``."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    yields = (each for each in ast.walk(tree) if isinstance(each, ast.Yield))
    return {
        (path.name, each.lineno)
        for each in yields
        if isinstance(each.value, ast.Call) and getattr(each.value.func, "id", "") == "Problem"
    }


@cache
def table_configs() -> tuple[RunConfig, ...]:
    """The run files in the tables of the tests beside this one."""
    return tuple(configs(table_values()))


def table_values() -> Iterator[Any]:
    """Whatever stands in these tables."""
    for path in sorted(HERE.glob("test_*.py")):
        if path == Path(__file__):
            continue
        spec = importlib.util.spec_from_file_location(f"tables.{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        finally:
            del sys.modules[spec.name]
        for each in vars(module).values():
            for mark in getattr(each, "pytestmark", []):
                if mark.name == "parametrize":
                    yield from mark.args[1]


def configs(values: Iterable[Any]) -> Iterator[RunConfig]:
    """The run files among them."""
    for given in values:
        row = getattr(given, "values", given)
        row = row() if callable(row) else row
        for value in row if isinstance(row, tuple | list) else [row]:
            if isinstance(value, RunConfig):
                yield value
            elif isinstance(value, dict):
                for shape in (value, {"training": value}, {"dataset": value}):
                    try:
                        yield RunConfig.model_validate(shape)
                    except ValidationError:
                        continue


TWO_MESSAGES = [
    {"dataset": {"slider": {"positive": "old", "negative": "young"}, "folders": [{"path": "a"}]}}
]
"""Folders without a first one are refused in any case."""


def lines_run(configs: Iterable[RunConfig]) -> set[tuple[str, int]]:
    """The lines of the rules that telling of some run files passes through."""
    names, seen = {str(each): each.name for each in rule_modules()}, set[tuple[str, int]]()

    def trace(frame: Any, event: str, _: Any) -> Any:
        name = names.get(frame.f_code.co_filename)
        if name is None:
            return None
        if event == "line":
            seen.add((name, frame.f_lineno))
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for config in configs:
            contradictions(config)
    finally:
        sys.settrace(before)
    return seen


def test_every_rule_has_a_row():
    wanted = set[tuple[str, int]]().union(*map(told_at, rule_modules()))
    assert len(wanted) > 30
    more = map(RunConfig.model_validate, TWO_MESSAGES)
    found = lines_run([*table_configs(), *more])
    missing = sorted(wanted - found)
    assert missing == [], "rules that no test of this folder makes speak"


def test_every_condition_has_a_row():
    """A condition of a field is told with both settings by a row of the tables of this folder."""
    found = [each.found for config in table_configs() for each in contradictions(config)]
    missing = []
    for place, section in SECTIONS.items():
        for name, field in section.model_fields.items():
            traits = traits_of(field)
            for other in (*traits.only_with, *traits.not_with) if traits else ():
                path = other.path if "." in other.path else f"{place}{other.path}"
                told = (
                    text for text in found if f"{place}{name}" in text and f"and {path} is" in text
                )
                if next(told, None) is None:
                    missing.append((f"{place}{name}", path))
    assert missing == [], "\n".join(map(str, missing))
