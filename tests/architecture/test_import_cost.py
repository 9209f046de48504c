"""Importing the package costs nothing that a host would notice."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {"torch", "diffusers", "peft", "transformers", "accelerate", "comfy", "tensorboard"}
SECONDS = 0.2
_PROBE = """
import json, sys, time
start = time.perf_counter()
import {module}
seconds = time.perf_counter() - start
print(json.dumps([seconds, sorted({{name.split(".")[0] for name in sys.modules}})]))
"""


def fresh_import(module: str) -> tuple[float, set[str]]:
    """Seconds of an import in a fresh interpreter, and the top-level modules after it."""
    done = subprocess.run(
        [sys.executable, "-c", _PROBE.format(module=module)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    seconds, names = json.loads(done.stdout)
    return seconds, set(names)


@pytest.mark.parametrize(
    "module", ["trainer_core", "trainer_core.families.run_files", "trainer_core.cli"]
)
def test_import_loads_nothing_heavy(module):
    _, names = fresh_import(module)
    assert "trainer_core" in names
    assert not names & HEAVY


def test_the_probe_sees_what_is_heavy():
    assert "torch" in fresh_import("torch")[1]


def test_import_takes_at_most_a_fifth_of_a_second():
    # The fastest of several: a busy machine makes single runs slow, never fast.
    assert min(fresh_import("trainer_core")[0] for _ in range(5)) <= SECONDS


def test_public_names_resolve():
    import trainer_core

    for name in trainer_core.__all__:
        assert getattr(trainer_core, name).__name__ == name
    with pytest.raises(AttributeError):
        _ = trainer_core.no_such_name
