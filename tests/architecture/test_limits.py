"""What keeps a page readable: arguments that are seen where they are passed, and names.

Lengths are only printed: a long function that reads from top to bottom is better than five that
hide its order.
"""

import ast
import subprocess
import sys
from pathlib import Path

from architecture.source import ROOT, functions, sources

FILE_LINES = 500
FUNCTION_LINES = 60
PACKED = 3
"""Values such as those of a size or a place are passed together."""
POSITIONAL, POSITIONAL_LEFT = 4, 78
"""Values that a call passes without their names; calls that pass more, which may only fall: rows
of tables, operators of torch, functions that are known by their type alone."""
VAGUE_NAMES = {"told", "said", "given", "asked", "begun", "seen", "these"}
VAGUE_NAMES_LEFT = 2
"""Values of the product that are still called so; the number may only fall."""
TEST_LINES = 75_000
"""Of all Python in `tests`: who adds a case that another one shows takes one away."""
PRODUCT = [*sources("trainer_core"), *sources("nodes")]
_NO_CONCEPT = {"utils", "util", "helpers", "helper", "common", "misc"}


def test_long_files_and_functions_are_named(capsys):
    long = [
        f"{source.path} ({lines} lines)"
        for source in sources()
        if (lines := len(source.text.splitlines())) > FILE_LINES
    ]
    long += [
        f"{source.path}: {function.name} ({lines} lines)"
        for source in sources()
        for function in functions(source)
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES
        and function.name != "define_schema"
    ]
    assert len(sources()) > 50
    with capsys.disabled():
        sys.stdout.write(f"\nLong: {', '.join(long) or 'nothing'}\n")


def test_tests_stay_few():
    files = subprocess.run(
        ["git", "ls-files", "-z", "tests/*.py"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout.split("\0")
    paths = [ROOT / name for name in files if name and (ROOT / name).is_file()]
    assert sum(path.read_bytes().count(b"\n") for path in paths) <= TEST_LINES


def packed(function: ast.AST) -> set[str]:
    """Names of a function that hold a tuple of more than `PACKED` values written out in it."""
    found: set[str] = set()
    for node in ast.walk(function):
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign):
            targets = [node.target]
        value = getattr(node, "value", None)
        if isinstance(value, ast.Tuple) and len(value.elts) > PACKED:
            found |= {each.id for each in targets if isinstance(each, ast.Name)}
    return found


def splats(function: ast.AST) -> list[int]:
    """Lines of calls that pass such a tuple as arguments, which hides what is passed."""
    names = packed(function)
    return [
        node.lineno
        for node in ast.walk(function)
        if isinstance(node, ast.Call)
        for argument in node.args
        if isinstance(argument, ast.Starred)
        and isinstance(argument.value, ast.Name)
        and argument.value.id in names
    ]


def test_no_call_hides_its_arguments_in_a_packed_tuple():
    code = "def f():\n    a = (1, 2, 3, 4)\n    b, c = list(a), (1, 2)\n    g(*b, *c)\n    g(*a)\n"
    assert splats(ast.parse(code)) == [5]
    found = {
        f"{source.path}:{line}"
        for source in PRODUCT
        for function in functions(source)
        for line in splats(function)
    }
    assert sorted(found) == []


def test_calls_name_their_values():
    found = [
        f"{source.path}:{node.lineno}"
        for source in PRODUCT
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and len(node.args) > POSITIONAL
        if not any(isinstance(each, ast.Starred) for each in node.args)
    ]
    assert len(found) == POSITIONAL_LEFT


def test_names_say_a_concept():
    vague = [
        source.path
        for source in sources()
        if _NO_CONCEPT & {part.removesuffix(".py") for part in Path(source.path).parts}
    ]
    assert vague == []


def names_of_values(tree: ast.AST) -> list[str]:
    """Names that a module gives to arguments and variables."""
    return [
        node.arg if isinstance(node, ast.arg) else node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.arg)
        or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    ]


def test_values_are_called_what_they_are():
    found = [
        name for source in PRODUCT for name in names_of_values(source.tree) if name in VAGUE_NAMES
    ]
    assert len(found) == VAGUE_NAMES_LEFT
