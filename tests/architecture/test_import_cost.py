"""Importing the package costs nothing that a host would notice: few modules, and none heavy."""

import json
import site
import subprocess
import sys

import pytest
from architecture.source import ROOT

HEAVY = {"torch", "diffusers", "peft", "transformers", "accelerate", "comfy", "tensorboard"}
_PROBE = """
import json, sys
sys.path += {paths}
before = set(sys.modules)
import {module}
print(json.dumps(sorted(set(sys.modules) - before)))
"""
MOST = {"trainer_core": 40, "trainer_core.families.run_files": 260, "trainer_core.cli": 280}
"""A module to how many others its import may load, the standard library's included."""


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
