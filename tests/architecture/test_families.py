"""A family is one folder and one line of the registry: nothing else of the product names it."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from architecture.source import ROOT, Source, sources
from fixtures.tables import table

from trainer_core.families.registry import FAMILIES

ELSEWHERE = table(__file__, "families elsewhere")
"""Files that may name a family, and why."""


@cache
def words_of_families() -> re.Pattern[str]:
    """What names a family: its own name, its title's first word, and the classes of its base.

    A word of one letter is none, and a longer word that begins like a name is another word.
    """
    words: set[str] = set()
    for family in FAMILIES.values():
        classes = {family.files.single_file.class_name, *family.files.folder.pipelines}
        first = re.split(r"[-_.0-9]", family.title)[0]
        words |= {family.name, first if len(first) > 1 else family.title, *classes}
    names = "|".join(sorted(map(re.escape, words)))
    return re.compile(rf"(?:{names})(?![a-z])", re.IGNORECASE)


def is_docstring(node: ast.AST) -> bool:
    """Whether a statement is a text that stands by itself."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def said(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Every name and text of a file's code, with its line; no comment and no docstring."""
    for node in ast.iter_child_nodes(tree):
        if is_docstring(node):
            continue
        line = getattr(node, "lineno", 0)
        for field in ("id", "attr", "name", "arg", "module", "value"):
            value = getattr(node, field, None)
            if isinstance(value, str):
                yield value, line
        yield from said(node)


@cache
def names_of_families(source: Source) -> list[str]:
    """Where a file names a family."""
    pattern = words_of_families()
    if not pattern.search(source.text):
        return []  # most files, which need not be parsed
    return [
        f"{source.path}:{line}: {text}" for text, line in said(source.tree) if pattern.search(text)
    ]


def product() -> Iterator[Source]:
    """The files of the product outside the families' own folders."""
    own = tuple(f"trainer_core/families/{name}/" for name in FAMILIES)
    for folder in ("trainer_core", "nodes"):
        yield from (each for each in sources(folder) if not each.path.startswith(own))


def test_only_a_familys_folder_and_the_registry_name_it():
    found = [
        place
        for each in product()
        if each.path not in ELSEWHERE
        for place in names_of_families(each)
    ]
    assert found == []


def test_every_exception_is_needed():
    named = {each.path for each in product() if names_of_families(each)}
    assert named == set(ELSEWHERE)


def test_a_name_is_noticed_and_a_docstring_is_not():
    def found(text: str) -> list[str]:
        return names_of_families(Source("x.py", text))

    for text in ('x = "flux"', "def load_qwen(): ...", 'f"{x} of FLUX.1"', "from .flux import x"):
        assert found(text), text
    assert found("import diffusers\ndiffusers.FluxTransformer2DModel")
    assert found('def f():\n    """FLUX.1."""  # flux\n') == []


def test_docs_list_every_family():
    pages = (ROOT / "docs" / "run-file.md", ROOT / "docs" / "verified.md")
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    names = ", ".join(f"`{name}`" for name in FAMILIES)
    assert f"| `family` | architecture of the base: {names} |" in text
    for family in FAMILIES.values():
        assert f"\n| {family.title} ({family.models}) |" in text, family.name


def test_a_family_has_its_modules():
    for name in FAMILIES:
        folder = Path(ROOT / "trainer_core" / "families" / name)
        assert (folder / "spec.py").is_file()
        assert (folder / "templates.py").is_file()
        assert (folder / "presets.yaml").is_file()
