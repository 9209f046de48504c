"""docs/architecture.md and tests/seed-claims.md: each claim leads to one place that is there."""

import ast
import re

import pytest
from architecture.source import ROOT

PAGE = ROOT / "docs" / "architecture.md"
_LINK = re.compile(r"\[`?([^\]`]+)`?\]\(([^)]+)\)")
_TEST = re.compile(r"`(tests/[\w/]+\.py)`")
CLAIMS = ROOT / "tests" / "seed-claims.md"
LINKS = [
    (page, *link)
    for page in (PAGE, CLAIMS)
    for link in _LINK.findall(page.read_text(encoding="utf-8"))
]


def defined(path):
    """Names that a file defines at its top."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (target.id for target in targets if isinstance(target, ast.Name))


@pytest.mark.parametrize(("page", "name", "target"), LINKS)
def test_a_link_leads_to_what_it_names(page, name, target):
    path = (page.parent / target).resolve()
    assert path.exists(), target
    if path.suffix == ".py":
        assert name in {path.name, *defined(path)}
    elif path.is_dir():
        assert path.as_posix().endswith(name.rstrip("/"))


def test_a_claim_of_ours_has_its_test():
    rows = [line.split("|")[1:-1] for line in CLAIMS.read_text(encoding="utf-8").splitlines()]
    claims = [row for row in rows if len(row) == 3 and row[0].strip() not in {"Claim", "---"}]
    lacking = [claim for claim, here, test in claims if not test.strip() and "another" not in here]
    assert (len(claims), lacking) == (81, [])


def test_the_tests_that_it_names_are_there():
    named = _TEST.findall(PAGE.read_text(encoding="utf-8"))
    assert len(named) > 5
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_every_package_is_on_the_image():
    drawn = (ROOT / "docs" / "images" / "architecture.svg").read_text(encoding="utf-8")
    packages = {path.parent.name for path in (ROOT / "trainer_core").glob("*/__init__.py")}
    packages |= {path.parent.name for path in (ROOT / "nodes").glob("*/__init__.py")}
    assert {name for name in packages if not re.search(rf"[>/]{name}<", drawn)} == set()
