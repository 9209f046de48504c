"""Packages that are carried to a machine without a network, beside those that it has.

A folder on the path instead of an environment: one over another environment's packages would see
those of the Python below it. Imports the standard library alone.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "gpu_wheels"
"""What `make gpu-wheels` fetched."""

COMMIT = "commit.txt"
"""In that folder: of which commit the copy of the tree is, where git is not carried along."""

_WHEEL = re.compile(r"([^-]+)-([^-]+)(?:-\d[^-]*)?-[^-]+-[^-]+-[^-]+\.whl")


def add_missing(wheels: Path, site: Path) -> list[str]:
    """Install the wheels of what is absent or too old for this Python into a folder.

    What the project needs is too old below its own least version; anything else, which other
    wheels need, below the version that is carried.

    Args:
        wheels: The folder of wheels; it may be absent.
        site: The folder for the path; made when something is missing.

    Returns:
        What was installed, as ``name version``.

    Raises:
        RuntimeError: When pip refuses, such as wheels of another Python.
    """
    facts = _requirements()
    least = {each.name: each.minimum for each in facts.all_requirements(ROOT)}
    wanted: list[Path] = []
    for wheel in sorted(wheels.glob("*.whl")):
        match = _WHEEL.fullmatch(wheel.name)
        if match is None:
            continue
        name = facts.normalised(match[1])
        found = facts.installed_version(name)
        if found is None or not facts.meets(found, least.get(name, match[2])):
            wanted.append(wheel)
    if not wanted:
        return []
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--no-compile", "--disable-pip-version-check", "--upgrade", "--target", str(site)]
    done = subprocess.run(
        [*command, *map(str, wanted)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip()[-2000:])
    return [" ".join(wheel.name.split("-")[:2]) for wheel in wanted]


def carried_commit(wheels: Path) -> str | None:
    """The commit that was noted beside the wheels, or None."""
    file = wheels / COMMIT
    return file.read_text(encoding="utf-8").strip() if file.is_file() else None


def _requirements() -> ModuleType:
    path = ROOT / "trainer_core" / "requirements.py"
    spec = importlib.util.spec_from_file_location("adapter_trainer_requirements", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
