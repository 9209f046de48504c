"""Importing the package costs nothing that a host would notice: few modules, and none heavy."""

import ast
import json
import re
import site
import subprocess
import sys
from collections.abc import Iterable

import pytest
import tomllib
from architecture.source import ROOT, Source, sources

HEAVY = {"torch", "diffusers", "peft", "transformers", "accelerate", "comfy", "tensorboard"}
_PROBE = """
import json, sys
sys.path += {paths}
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
MOST = {"trainer_core": 40, "trainer_core.families.run_files": 260, "trainer_core.cli": 280}
MOST |= {"trainer_core.commands.runs": 320, "trainer_core.training.checkpoints.run_folder": 160}
"""A module to how many others its import may load, the standard library's included."""
_IN_EVERY_GUEST = {"filelock", "hypothesis", "pytest", "tensorboard"}
"""Optional libraries that the environments of tests/matrix have."""


def loaded_by(module: str) -> set[str]:
    """The modules that an import loads in a bare interpreter, of which no user's site is a part."""
    paths = [str(ROOT), *site.getsitepackages()]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROBE.format(module=module, paths=paths)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("module", MOST)
def test_import_loads_few_modules_and_nothing_heavy(module):
    loaded = loaded_by(module)
    assert module in loaded
    assert not {name.split(".")[0] for name in loaded} & HEAVY
    assert len(loaded) <= MOST[module]


def test_the_probe_sees_what_is_heavy():
    assert "torch" in loaded_by("torch")


def test_public_names_resolve():
    import trainer_core

    for name in trainer_core.__all__:
        assert getattr(trainer_core, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = trainer_core.no_such_name


def optional_imports(files: Iterable[Source]) -> list[str]:
    """Imports of optional libraries that are made as a file is loaded."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [line for name in set(extras) - {"train"} for line in extras[name]]
    optional = {re.split(r"[^\w-]", line)[0].replace("-", "_") for line in lines}
    found = []
    for source in files:
        for node in source.tree.body:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            libraries = {name.split(".")[0] for name in names} & (optional - _IN_EVERY_GUEST)
            found += [f"{source.path}:{node.lineno} {name}" for name in libraries]
    return found


def test_tests_load_without_optional_libraries():
    """The packs' tests run in environments without them; ComfyUI's interpreter has its own."""
    files = [source for source in sources("tests") if not source.path.startswith("tests/comfyui/")]
    files += [source for source in sources("tests/comfyui") if source.path.endswith("_files.py")]
    assert optional_imports(files) == []


def test_an_optional_import_is_found():
    assert optional_imports(
        [Source("tests/x.py", "import av.video\n\ndef f():\n    import av\n")]
    ) == ["tests/x.py:1 av"]
