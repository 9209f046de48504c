"""The project's Python files, read and parsed once for all architecture tests."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("trainer_core", "nodes", "scripts", "benchmarks", "tests")


@dataclass(frozen=True)
class Source:
    """A Python file: path relative to the repository, text, and its syntax tree when asked for."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """Parsed once."""
        return ast.parse(self.text)

    @property
    def package(self) -> str:
        """First folder or module below the top folder: ``trainer_core/data/x.py`` -> ``data``."""
        return Path(self.path).parts[1].removesuffix(".py")

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """Everything in the tree, which a dozen tests look through."""
        return tuple(ast.walk(self.tree))


@cache
def sources(folder: str = "") -> tuple[Source, ...]:
    """Every Python file below a folder, or of the whole project."""
    paths = [ROOT / "__init__.py"] if not folder else []
    for name in [folder] if folder else FOLDERS:
        paths += sorted((ROOT / name).rglob("*.py"))
    return tuple(_source(path) for path in paths)


@cache
def _source(path: Path) -> Source:
    text = path.read_text(encoding="utf-8")
    return Source(path.relative_to(ROOT).as_posix(), text)


def functions(source: Source) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    for node in source.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def absolute_imports(source: Source) -> Iterator[tuple[str, int]]:
    """Module names that a file imports absolutely, with their lines."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module, node.lineno


def internal_imports(source: Source) -> Iterator[tuple[str, int]]:
    """What a file of trainer_core imports of trainer_core: ``data.cache``, with lines."""
    folder = Path(source.path).parent.parts
    for node in source.nodes:
        if not isinstance(node, ast.ImportFrom) or node.level == 0:
            continue
        base = folder[: len(folder) - node.level + 1]
        inside = ".".join(base[1:])
        if node.module:
            yield ".".join(part for part in (inside, node.module) if part), node.lineno
        else:
            for alias in node.names:
                yield ".".join(part for part in (inside, alias.name) if part), node.lineno


def module_name(path: str) -> str:
    """``trainer_core/data/x.py`` -> ``data.x``; a package's own file has the package's name."""
    parts = [*Path(path).with_suffix("").parts[1:]]
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def imported_names(source: Source) -> Iterator[str]:
    """Each name that a file of trainer_core imports of trainer_core: ``data.cache.build_cache``."""
    folder = Path(source.path).parent.parts
    for node in source.nodes:
        if isinstance(node, ast.ImportFrom) and node.level > 0:
            base = folder[1 : len(folder) - node.level + 1]
            stem = [*base, *([node.module] if node.module else [])]
            yield from (".".join([*stem, alias.name]) for alias in node.names)
