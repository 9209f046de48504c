"""Sizes and names that keep a file readable at one sitting."""

from pathlib import Path

from architecture.source import functions, sources

FILE_LINES = 500
FUNCTION_LINES = 60
SCHEMA_LINES = 100
SPECIAL_FILE_LINES = {"trainer_core/training/loop.py": 140}
_NO_CONCEPT = {"utils", "util", "helpers", "helper", "common", "misc"}


def test_files_are_short():
    too_long = {
        source.path: length
        for source in sources()
        if (length := len(source.text.splitlines()))
        > SPECIAL_FILE_LINES.get(source.path, FILE_LINES)
    }
    assert too_long == {}


def test_functions_are_short():
    too_long = {
        f"{source.path}: {function.name}": length
        for source in sources()
        for function in functions(source)
        if (length := (function.end_lineno or 0) - function.lineno + 1)
        > (SCHEMA_LINES if function.name == "define_schema" else FUNCTION_LINES)
    }
    assert too_long == {}


def test_names_say_a_concept():
    vague = [
        source.path
        for source in sources()
        if _NO_CONCEPT & {part.removesuffix(".py") for part in Path(source.path).parts}
    ]
    assert vague == []


def test_special_limits_name_files_that_exist():
    paths = {source.path for source in sources()}
    assert set(SPECIAL_FILE_LINES) <= paths
    assert len(paths) > 50
