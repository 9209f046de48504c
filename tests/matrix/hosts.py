"""Environments like those of ComfyUI's users, made in a folder of their own."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FIVE = ("torch", "transformers", "tokenizers", "huggingface-hub", "numpy")
"""What must not change; in truth nothing that is installed may."""

# What ComfyUI itself installs and training touches.
_HOST = ("numpy", "pyyaml", "Pillow", "psutil", "safetensors", "pydantic~=2.0", "tqdm", "filelock")
# Both are slow to build, and each needs one core: `make -j2 matrix` runs them side by side.
_ALL_HOSTS = {
    "old": ("transformers==4.57.6", "huggingface-hub<1", *_HOST),
    "new": ("transformers", *_HOST),
}
HOSTS = {
    name: parts
    for name, parts in _ALL_HOSTS.items()
    if name in os.environ.get("MATRIX_HOSTS", "old new").split()
}
_LONGEST_SECONDS = 1800
_VERSIONS = """
import importlib.metadata, json, re
print(json.dumps({re.sub(r"[-_.]+", "-", d.name).lower(): d.version
                  for d in importlib.metadata.distributions()}))
"""


@dataclass(frozen=True)
class Host:
    """One environment."""

    name: str
    python: Path

    def run(
        self, *words: str, check: bool = True, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run its Python from the pack's folder, as ComfyUI's manager does."""
        return execute([str(self.python), *words], check=check, **environment)

    def versions(self) -> dict[str, str]:
        """Every installed version by normalised name."""
        return json.loads(self.run("-I", "-c", _VERSIONS).stdout)

    def pip(self, *words: str) -> str:
        """Run its pip; returns what it printed."""
        return self.run("-m", "pip", "--disable-pip-version-check", *words).stdout


def execute(
    command: Sequence[str], check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in the pack's folder; when it fails, say what it printed."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=_LONGEST_SECONDS,
    )
    if check and done.returncode:
        words = " ".join(command)
        raise AssertionError(f"{words}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}")
    return done


def make_host(folder: Path, name: str, own_pip: bool = True) -> Host:
    """Build an environment that has what ComfyUI has, and nothing of ours.

    Args:
        folder: Where; it must not exist.
        name: ``old`` or ``new``.
        own_pip: Whether pip is in it, as in a plain venv; not so in one that uv made.
    """
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    execute([sys.executable, "-m", "venv", "--without-pip", str(folder)])
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    install = [*pip, "--python", str(python), "install", "--quiet"]
    # torch comes first and alone, so that the build that was asked for (CPU, CUDA) stays.
    torch = shlex.split(os.environ.get("MATRIX_TORCH", "torch"))
    execute([*install, *torch, "--constraint", "constraints/development.txt"])
    execute([*install, *_ALL_HOSTS[name], *(["pip"] if own_pip else [])])
    return Host(name, python)


def moved(before: dict[str, str], after: dict[str, str]) -> dict[str, tuple[str, str | None]]:
    """What was installed before and is not as it was."""
    return {
        name: (version, after.get(name))
        for name, version in before.items()
        if after.get(name) != version
    }
