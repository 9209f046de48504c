"""Tests of GPUs on pretended CUDA devices (`fixtures.pretend_cuda`), in a process of their own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.combinations import rarely
from tests.fixtures.pretend_cuda import build, run

ROOT = Path(__file__).resolve().parents[2]
QUICK = ("pretended", "block_swap", "optimizer")
LATER = ("steps", "checkpointed_inputs", "second_device")


@pytest.mark.parametrize("names", [QUICK, *rarely([(LATER,)])], ids=["quick", "later"])
def test_the_quick_tests_of_gpus_pass_on_a_pretended_one(names, tmp_path):
    try:
        variables = run.environment()
    except build.UnavailableError as error:
        pytest.skip(str(error))
    files = [f"tests/gpu/test_{name}.py" for name in names]
    options = ["-q", "-x", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'gpu'}"]
    chosen = ["-m", "gpu and not exhaustive", "-k", "not learns"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *chosen, *files],
        cwd=ROOT,
        env={**variables, "MARKER_REPORT": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert " skipped" not in done.stdout.splitlines()[-1]


def test_what_is_missing_is_said_in_a_line(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "PLACE", tmp_path)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(build.UnavailableError, match=r"needs Linux and g\+\+"):
        build.build()
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(build.UnavailableError, match=r"does not compile device\.cpp"):
        build.build()
    monkeypatch.setattr(build.importlib.metadata, "version", lambda name: "2.4.0")
    with pytest.raises(build.UnavailableError, match=r"not 2\.4\.0"):
        build.build()
