"""The pack as a guest: installing it moves nothing of the host, and it works there.

A host is an environment with torch, an old or the newest transformers, and what ComfyUI installs.
The tests of a host build on each other, in the order in which ComfyUI's manager proceeds.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from .hosts import FIVE, HOSTS, ROOT, Host, execute, make_host, moved

pytestmark = pytest.mark.matrix

GUESTS = ("diffusers", "peft", "accelerate")
NO_NETWORK = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}
TEST_TOOLS = ("pytest", "hypothesis", "lycoris-lora", "tensorboard")
SUITES = (
    "tests/unit",
    "tests/integration/test_command_line.py",
    "tests/integration/test_flux.py",
    "tests/integration/test_pipelines.py",
    "tests/integration/test_resume.py",
)
LEFT_OUT = (
    # Scripts remake the bundled base, and benchmarks count, with the development environment.
    "tests/unit/demo/test_embedded_base.py",
    "tests/unit/benchmarks",
    # They know no library that a host may have in another version.
    "tests/unit/config",
    "tests/unit/foreign_runs",
    "tests/unit/nodes",
    "tests/unit/test_locks.py",
)


@dataclass
class Guest:
    """A host on which the pack is being installed, and its versions before that."""

    host: Host
    before: dict[str, str]


@pytest.fixture(scope="module", params=sorted(HOSTS))
def guest(request: pytest.FixtureRequest) -> Iterator[Guest]:
    with tempfile.TemporaryDirectory(prefix="matrix_") as folder:
        host = make_host(Path(folder) / "host", request.param)
        yield Guest(host, host.versions())


def test_the_host_is_as_described_and_has_none_of_our_libraries(guest):
    assert set(FIVE) <= set(guest.before)
    assert not set(GUESTS) & set(guest.before)
    major = int(guest.before["transformers"].split(".")[0])
    assert (major >= 5) == (guest.host.name == "new")


def test_nodes_can_say_what_is_missing(guest):
    probe = "from trainer_core.requirements import require_libraries; require_libraries()"
    done = guest.host.run("-c", probe, check=False, PYTHONPATH=str(ROOT))
    assert done.returncode != 0
    assert "diffusers is not installed; peft is not installed" in done.stderr
    assert "install.py" in done.stderr


def test_without_constraints_the_old_host_would_be_moved(guest):
    """The negative control: what plain dependencies would do to the user's environment."""
    if guest.host.name != "old":
        pytest.skip("the newest versions cannot be moved further")
    planned = guest.host.pip("install", "--dry-run", "diffusers>=0.37", "peft>=0.18")
    # Names are spelt as the distributions spell them.
    would = planned.lower().replace("_", "-").split("would install")[-1]
    assert " huggingface-hub-" in would
    assert " transformers-" in would


def test_the_requirements_move_nothing(guest):
    """Line by line and without constraints, as the manager does it."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    wanted = [line for line in lines if line and not line.startswith("#")]
    assert wanted
    for line in wanted:
        guest.host.pip("install", line)
    assert moved(guest.before, guest.host.versions()) == {}


def test_what_cannot_be_had_changes_nothing(guest, tmp_path):
    pack = tmp_path / "pack"
    (pack / "trainer_core").mkdir(parents=True)
    shutil.copy(ROOT / "install.py", pack)
    shutil.copy(ROOT / "trainer_core" / "requirements.py", pack / "trainer_core")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (pack / "pyproject.toml").write_text(text.replace("peft>=0.18", "peft>=99"), encoding="utf-8")
    present = guest.host.versions()
    done = guest.host.run(str(pack / "install.py"), check=False)
    assert done.returncode == 1
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()[-3:]] == [
        "Found",
        "Expected",
        "To do",
    ]
    assert guest.host.versions() == present


def test_installing_moves_nothing(guest):
    done = guest.host.run("install.py")
    after = guest.host.versions()
    assert moved(guest.before, after) == {}
    assert {name: after[name] for name in FIVE} == {name: guest.before[name] for name in FIVE}
    assert set(GUESTS) <= set(after)
    assert "Nothing else changed its version" in done.stdout
    guest.host.run("-c", "import diffusers, peft, accelerate; diffusers.QwenImageEditPlusPipeline")


def test_a_second_time_needs_no_network(guest):
    present = guest.host.versions()
    done = guest.host.run("install.py", **NO_NETWORK)
    assert done.stdout.count("\n") == 1
    assert "Everything is there" in done.stdout
    assert guest.host.versions() == present


def test_the_packs_tests_pass(guest, tmp_path, pytestconfig):
    held = tmp_path / "held.txt"
    lines = [f"{name}=={version}" for name, version in guest.host.versions().items()]
    held.write_text("\n".join(lines) + "\n", encoding="utf-8")
    guest.host.pip("install", "--quiet", "--constraint", str(held), *TEST_TOOLS)
    # Tests start programs of their own, which find the pack as they would find an installed one.
    site = guest.host.run("-c", "import sysconfig; print(sysconfig.get_path('purelib'))").stdout
    Path(site.strip(), "pack.pth").write_text(f"{ROOT}\n", encoding="utf-8")
    ignored = [f"--ignore={path}" for path in LEFT_OUT]
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not exhaustive"]
    words += [*ignored, *SUITES]
    done = guest.host.run(*words, check=False, MATRIX="", MARKER_REPORT="")
    terminal = pytestconfig.pluginmanager.get_plugin("terminalreporter")
    terminal.write_line(f"\n{guest.host.name} host: {done.stdout.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stdout[-8000:]
    assert moved(guest.before, guest.host.versions()) == {}


@pytest.mark.skipif("old" not in HOSTS, reason="it uses the old host, which runs by itself")
def test_uv_installs_where_there_is_no_pip():
    """An environment that uv made has no pip; its uv is a program on the PATH."""
    with tempfile.TemporaryDirectory(prefix="matrix_") as folder:
        tool = make_tool(Path(folder) / "tool")
        host = make_host(Path(folder) / "host", "old", own_pip=False)
        before = host.versions()
        assert "pip" not in before
        without = host.run("install.py", check=False, PATH=str(host.python.parent))
        assert without.returncode == 1
        assert "neither pip nor uv" in without.stderr
        path = os.pathsep.join([str(tool), os.environ["PATH"]])
        host.run("install.py", PATH=path)
        after = host.versions()
        assert moved(before, after) == {}
        assert set(GUESTS) <= set(after)


def make_tool(folder: Path) -> Path:
    """A folder of programs that has uv."""
    execute([sys.executable, "-m", "venv", str(folder)])
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    execute([str(programs / "python"), "-m", "pip", "install", "--quiet", "uv"])
    alone = folder / "programs"
    alone.mkdir()
    # Beside uv itself there is uvx, in no certain order.
    for program in programs.glob("uv*"):
        shutil.copy(program, alone)
    return alone
