"""Every fault that new and hostile use found, and the tests that hold its repair."""

import ast
from pathlib import Path

import pytest
from fixtures.tables import table

TESTS = Path(__file__).resolve().parents[1]

REPAIRS = table(__file__, "repairs repairs")
"""Fault to tests: ``file::function``, or ``file::`` for a file that is about nothing else."""


@pytest.mark.parametrize("fault", REPAIRS)
def test_a_repair_has_its_tests(fault):
    missing = [each for each in REPAIRS[fault] if not _exists(each)]
    assert missing == []


def test_a_test_that_is_not_there_is_noticed():
    assert not _exists("architecture/test_repairs.py::test_that_is_not_there")
    assert not _exists("architecture/test_that_is_not_there.py::")


def _exists(test: str) -> bool:
    file, _, wanted = test.partition("::")
    path = TESTS / file
    if not path.is_file():
        return False
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    return wanted in found if wanted else any(name.startswith("test_") for name in found)
