"""An adapter kind is known in its own files and in the registry, and nowhere else."""

import ast
import re
from collections.abc import Iterator
from functools import cache

from architecture.source import Source, sources
from fixtures.tables import table

_KINDS = "trainer_core/adapters/kinds/"
_WORD = re.compile(r"(?<![A-Za-z])(lora|loha|lokr|hada|oft|boft)(?![A-Za-z])")

NO_KIND = table(__file__, "kinds no kind")
"""A piece of text to why it names no kind."""

EXCEPTIONS = table(__file__, "kinds exceptions")
"""File to why it names a kind."""


def texts(source: Source) -> Iterator[str]:
    """Identifiers and strings of a file, docstrings aside."""
    told = {
        id(node.value)
        for node in source.nodes
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.value
        for field in ("id", "attr", "name", "arg", "module"):
            name = getattr(node, field, None)
            if isinstance(name, str):
                yield re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()


def named(source: Source) -> set[str]:
    """The texts of a file that name a kind.

    ComfyUI says lora for every adapter, and so do the nodes.
    """
    found = set()
    for text in texts(source):
        rest = text
        for piece in NO_KIND:
            rest = rest.replace(piece, "")
        words = set(_WORD.findall(rest)) - ({"lora"} if source.path.startswith("nodes/") else set())
        if words:
            found.add(text)
    return found


@cache
def _all() -> dict[str, set[str]]:
    files = (*sources("trainer_core"), *sources("nodes"))
    found = {each.path: named(each) for each in files if not each.path.startswith(_KINDS)}
    return {path: names for path, names in found.items() if names}


def test_no_file_names_a_kind_besides_its_own():
    assert {path: names for path, names in _all().items() if path not in EXCEPTIONS} == {}


def test_no_exception_is_out_of_use():
    assert set(EXCEPTIONS) - set(_all()) == set()
    code = " ".join(each.text for folder in ("trainer_core", "nodes") for each in sources(folder))
    assert [piece for piece in NO_KIND if piece not in code] == []


def test_a_kind_that_is_named_is_noticed():
    def of(text: str) -> set[str]:
        return named(Source("trainer_core/x.py", text))

    assert of('if kind == "lokr":\n    pass') == {"lokr"}
    assert of("def _lokr_rank(layer): ...") == {"_lokr_rank"}
    assert of('factors = tensors["hada_w1_a"]') == {"hada_w1_a"}
    assert of('x = f"{name}.lora_up"') == {".lora_up"}
    assert of('"""Of a lokr."""\nprefix = "lora_unet_"\nrslora = 1') == set()
