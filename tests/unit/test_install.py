"""install.py as far as it needs no network; `make matrix` runs it in real environments."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fixtures.tables import table

import install
from trainer_core import requirements as facts

ROOT = Path(install.__file__).resolve().parent
HOST = table(__file__, "versions of a host")
OURS = {"diffusers": "0.39.0", "peft": "0.21.2", "accelerate": "1.15.0"}


def needs(*names):
    return [need for need in facts.guest_requirements() if need.name in names]


def test_everything_is_held_with_the_label_of_its_build():
    lines = install.constraint_lines(HOST, [])
    assert len(lines) == len(HOST)
    assert {"torch==2.8.0+cu128", "huggingface-hub==0.36.2"} <= set(lines)


def test_what_is_too_old_is_let_go():
    lines = install.constraint_lines({**HOST, "peft": "0.17.0"}, ["peft"])
    assert len(lines) == len(HOST)
    assert not [line for line in lines if line.startswith("peft")]


def test_a_changed_distribution_is_noticed():
    after = {**HOST, **OURS, "huggingface-hub": "2.4.0"}
    assert install.changes(HOST, after, list(OURS)) == {
        "huggingface-hub": "huggingface-hub 0.36.2 -> 2.4.0"
    }
    assert install.changes(HOST, {**HOST, **OURS}, list(OURS)) == {}
    del after["numpy"]
    assert "numpy 2.2.6 -> removed" in install.changes(HOST, after, []).values()
    assert install.changes(HOST, {**HOST, "torch": "2.8.0"}, []), "it is another build"


@pytest.mark.parametrize(("code", "after"), [(1, HOST), (0, HOST), (1, {**HOST, **OURS})])
def test_a_failed_installer_is_told_in_three_parts(code, after, capfd):
    assert install.report(code, HOST, after, needs(*OURS), facts) == 1
    lines = capfd.readouterr().err.splitlines()
    assert [line.split(": ")[1] for line in lines] == ["Found", "Expected", "To do"]
    assert "huggingface-hub 0.36.2" in lines[0]


def test_a_host_that_nothing_can_be_installed_beside_is_refused():
    assert install.host_problem(HOST, facts) is None
    found, _, todo = install.host_problem({"numpy": "2.0"}, facts)
    assert "torch, transformers" in found
    assert "ComfyUI's Python" in todo
    found, expected, todo = install.host_problem({**HOST, "transformers": "4.50.3"}, facts)
    assert found == "transformers 4.50.3"
    assert expected.startswith("transformers>=")
    assert todo.startswith("Update ComfyUI")
    found, *_ = install.host_problem({**HOST, "tokenizers": "unknown"}, facts)
    assert "tokenizers unknown" in found


def test_pip_of_the_running_python_is_used():
    command = install.installer_command(sys.executable)
    assert command is not None
    assert command[0] == sys.executable
    assert "only-if-needed" in command


def test_the_search_for_pip_leaves_distutils_as_it_was():
    """Where setuptools brings its own, a look for pip through its import hook takes it away."""
    code = "import install; install.installer_command('python'); import setuptools"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def run_install(*words, without_libraries=False):
    alone = ["-I", "-S"] if without_libraries else []
    return subprocess.run(
        [sys.executable, *alone, str(ROOT / "install.py"), *words],
        env={**os.environ, "PATH": "", "PIP_NO_INDEX": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


def test_nothing_is_called_when_everything_is_there():
    """In this environment; without a PATH and an index no installer could have worked."""
    done = run_install()
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "Everything is there" in done.stdout


def test_a_python_that_has_nothing_is_refused_before_anything_is_installed():
    """Isolated and without site-packages, as an embedded Python that is not ComfyUI's."""
    done = run_install(without_libraries=True)
    assert done.returncode == 1
    assert "has no torch, transformers, numpy" in done.stderr
    assert done.stdout == ""


def test_letters_that_the_code_page_lacks_end_no_installation():
    code = r"install.load_requirements = lambda: sys.exit(install.say('\u0141')); install.main([])"
    env = {**os.environ, "PYTHONIOENCODING": "cp1252:strict"}
    command = [sys.executable, "-c", f"import install, sys; {code}"]
    told = subprocess.check_output(command, cwd=ROOT, env=env)
    assert told == b"Adapter Trainer: \\u0141\n"


def test_constraints_reach_the_installer_whole(tmp_path):
    """The installer is stood in for by a Python that copies the file it is given."""
    copy = "import shutil, sys; shutil.copy(sys.argv[2], sys.argv[-1])"
    kept = tmp_path / "kept.txt"
    command = [sys.executable, "-c", copy]
    assert install.resolve(command, [str(kept)], HOST, []) == (0, "")
    assert kept.read_text(encoding="utf-8").splitlines() == install.constraint_lines(HOST, [])


def test_a_dry_run_says_what_would_be_installed(monkeypatch, capfd):
    monkeypatch.setattr(install, "installed_versions", lambda facts: {**HOST, "peft": "0.1.0"})
    monkeypatch.setattr(install, "resolve", None)
    assert install.main(["--dry-run"]) == 0
    told = capfd.readouterr().out
    for name in OURS:
        assert f"{name}>=" in told
    assert "Would hold as they are: torch 2.8.0+cu128" in told
