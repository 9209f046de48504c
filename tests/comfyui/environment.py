"""An environment of the tests' own over that of a ComfyUI, which is only read.

ComfyUI's packages are visible in it through a ``.pth`` file; what training needs comes from this
pack's ``install.py``, run with the new environment's Python. Bytecode goes to a folder of the
environment (`package_bytecode`), so that no process of a test writes beside ComfyUI's modules.
"""

import functools
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from filelock import FileLock

ROOT = Path(__file__).resolve().parents[2]
PLACE = ROOT / "build" / "comfy"
"""Where environments are kept, one for each interpreter of a ComfyUI."""

_SOURCES = (
    "install.py",
    "pyproject.toml",
    "trainer_core/requirements.py",
    "tests/comfyui/environment.py",
    "tests/comfyui/cpu_libraries.py",
    "tests/comfyui/package_bytecode.py",
)
_NEEDED = ("torchvision", "torchaudio", "aiohttp", "diffusers", "peft", "accelerate")
_LONGEST_SECONDS = 900
_FACTS = """
import importlib.metadata, json, os, sys
folders = ("site-packages", "dist-packages")
sys.path = [path for path in sys.path if path]  # without what lies in the caller's folder
print(json.dumps({
    "python": sys.executable,
    "version": sys.version,
    "packages": [path for path in sys.path if os.path.basename(path) in folders],
    "installed": sorted(f"{d.metadata['Name']}=={d.version}"
                        for d in importlib.metadata.distributions()),
}))
"""


class UnavailableError(Exception):
    """Why the tests that need a ComfyUI cannot run here."""


def comfyui_folder() -> Path | None:
    """The real ComfyUI of this machine, or None."""
    folder = Path(os.environ.get("COMFYUI_PATH") or Path.home() / "ComfyUI")
    return folder if (folder / "main.py").is_file() else None


def comfyui_python(folder: Path) -> Path:
    """The Python that a user runs this ComfyUI with.

    Raises:
        UnavailableError: When it is not there.
    """
    named = os.environ.get("COMFYUI_PYTHON")
    python = Path(named) if named else interpreter(folder / "venv")
    if not python.is_file():
        raise UnavailableError(f"no interpreter for ComfyUI at $COMFYUI_PYTHON or at {python}")
    return python


def interpreter(environment: Path) -> Path:
    """The interpreter of a virtual environment."""
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


@functools.cache
def environment_over(host: Path, place: Path = PLACE) -> Path:
    """Make the tests' environment over a ComfyUI's, or find it made.

    It is made again when the interpreter, a version that is installed there, or what this pack
    needs has changed. Test processes that come at the same time wait for the first.

    Returns:
        The interpreter of the environment.

    Raises:
        UnavailableError: When it cannot be made, with the reason.
    """
    facts = _facts(host)
    key = _key(facts)
    folder = place / hashlib.sha256(str(host).encode()).hexdigest()[:12]
    python, ready = interpreter(folder), folder / "ready"
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock", timeout=2 * _LONGEST_SECONDS):
        if not (ready.is_file() and ready.read_text(encoding="utf-8") == key):
            shutil.rmtree(folder, ignore_errors=True)
            # With pip, venv may bring an old setuptools, which would hide that of ComfyUI.
            _output([host, "-B", "-m", "venv", "--without-pip", folder])
            show_packages(python, facts["packages"])
            if not any(line.startswith("pip==") for line in facts["installed"]):
                _output([sys.executable, "-m", "pip", "--python", python, "install", "pip"])
            _output([python, ROOT / "install.py"])
            _check(python)
            ready.write_text(key, encoding="utf-8")
    return python


def packages_of(python: Path) -> list[Path]:
    """The folders of packages that an interpreter sees, its own first."""
    return [Path(folder) for folder in _facts(python)["packages"]]


def show_packages(python: Path, others: Iterable[Path | str]) -> None:
    """Let an environment see other folders of packages, and keep its bytecode to itself."""
    packages = packages_of(python)[0]
    shutil.copy(Path(__file__).with_name("package_bytecode.py"), packages)
    cache, folders = str(packages.parent / "bytecode"), tuple(map(str, others))
    compiled = (str(packages), *folders)
    lines = [f"import package_bytecode; package_bytecode.install({cache!r}, {compiled!r})"]
    lines += [f"import site; site.addsitedir({folder!r})" for folder in folders]
    (packages / "comfyui_packages.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _check(python: Path) -> None:
    """Import what the tests stand on; torchvision and torchaudio may need what is beside this."""
    words = [python, "-c", "import " + ", ".join(_NEEDED)]
    try:
        _output(words)
    except UnavailableError:
        packages = packages_of(python)[0]
        shutil.copy(Path(__file__).with_name("cpu_libraries.py"), packages)
        pth = packages / "cpu_libraries.pth"
        pth.write_text("import cpu_libraries; cpu_libraries.install()\n", encoding="utf-8")
        _output(words)


def _facts(python: Path) -> dict[str, Any]:
    return json.loads(_output([python, "-B", "-c", _FACTS]))


def _key(facts: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for source in _SOURCES:
        digest.update((ROOT / source).read_bytes())
    return digest.hexdigest()


def _output(words: list[Path | str]) -> str:
    """Run a program and give what it printed; a failure is the reason why there is no ComfyUI."""
    environment = {name: os.environ[name] for name in os.environ if not name.startswith("PYTHON")}
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=_LONGEST_SECONDS,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnavailableError(f"{' '.join(command[:4])}: {error}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-4:]
        raise UnavailableError(f"{' '.join(command[:4])}: {' '.join(said)}")
    return done.stdout
