"""Which libraries training needs, and which of them are absent or too old here.

The ranges stand once, in ``pyproject.toml``. Nothing is imported to find out what is installed, so
that a pack whose libraries are missing still loads. ``install.py`` loads this file by itself before
anything is installed: at its top it imports the standard library alone.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
import sys
from pathlib import Path
from typing import NamedTuple

HOST_OWNED = (
    "torch",
    "torchvision",
    "torchaudio",
    "transformers",
    "tokenizers",
    "huggingface-hub",
    "numpy",
)
"""What belongs to the environment that the pack is a guest of: held as it is, never installed."""

_DISTRIBUTION = "adapter-trainer"
_DECISIVE = ("torch", "diffusers", "peft", "accelerate", "transformers", "safetensors", "numpy")
_PACK = Path(__file__).resolve().parents[1]
_LINE = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*>=\s*([0-9][0-9A-Za-z.]*)$")
_VERSION = re.compile(r"v?(?:[0-9]+!)?([0-9]+(?:\.[0-9]+)*)(.*)", re.IGNORECASE)
_EARLY = re.compile(r"[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview|dev)", re.IGNORECASE)


class Requirement(NamedTuple):
    """A library and the oldest version that works."""

    name: str
    minimum: str

    def __str__(self) -> str:
        return f"{self.name}>={self.minimum}"


class MissingLibrary(NamedTuple):
    """A needed library that is absent or too old."""

    name: str
    minimum: str
    found: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.name} is not installed"
        return f"{self.name} {self.found} is older than {self.minimum}"


def normalised(name: str) -> str:
    """The one spelling of a distribution's name: ``huggingface_hub`` -> ``huggingface-hub``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def parse_requirement(line: str) -> Requirement:
    """Read ``name>=version``.

    Raises:
        ValueError: When the line says anything else; the pack's ranges are lower bounds alone.
    """
    match = _LINE.match(line.strip())
    if match is None:
        raise ValueError(f"{line!r} is not of the form name>=version")
    return Requirement(normalised(match[1]), match[2])


def pyproject_list(text: str, section: str, key: str) -> list[str]:
    """Read one list of strings of a ``pyproject.toml``.

    ``tomllib`` came with Python 3.11, and the pack runs on 3.10; this reads what our own file has.

    Raises:
        ValueError: When there is no such list.
    """
    body = re.search(rf"^\[{re.escape(section)}\][ \t]*\n(.*?)(?=^\[|\Z)", text, re.M | re.S)
    entry = re.search(rf"^{re.escape(key)} *= *\[([^\]]*)\]", body[1], re.M) if body else None
    if entry is None:
        raise ValueError(f"pyproject.toml has no list {key} in [{section}]")
    lines = re.findall(r"\"([^\"]+)\"|'([^']+)'", re.sub(r"#.*", "", entry[1]))
    return [double or single for double, single in lines]


def all_requirements(pack: Path = _PACK) -> list[Requirement]:
    """What training needs: the project's dependencies and those of its extra ``train``.

    Args:
        pack: The folder that has ``pyproject.toml``. Without one, as when the library was installed
            by itself, its metadata say the same.

    Raises:
        ValueError: When neither is there or a range cannot be read.
    """
    text = _pyproject(pack)
    if text is not None:
        lines = pyproject_list(text, "project", "dependencies")
        lines += pyproject_list(text, "project.optional-dependencies", "train")
    else:
        lines = _metadata_lines()
    return [parse_requirement(line) for line in lines]


def guest_requirements(pack: Path = _PACK) -> list[Requirement]:
    """What the pack brings into its host's environment: all it needs but what the host owns."""
    return [found for found in all_requirements(pack) if found.name not in HOST_OWNED]


def meets(version: str, minimum: str) -> bool:
    """Whether a version is at least the minimum; what comes before a release is older than it."""
    found, wanted = _VERSION.match(version.strip()), _VERSION.match(minimum)
    if found is None or wanted is None:
        return False
    one, other = _numbers(found[1]), _numbers(wanted[1])
    if one != other:
        return one > other
    return not _EARLY.match(found[2])


def installed_version(name: str) -> str | None:
    """The version of a distribution, or None when it is not installed."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def installed_versions() -> dict[str, str]:
    """The versions of Python and of the libraries that decide a run's numbers."""
    from .version import __version__  # loaded by install.py, this file has no package

    found = {name: installed_version(name) for name in _DECISIVE}
    known = {name: version for name, version in found.items() if version is not None}
    return {"adapter_trainer": __version__, "python": platform.python_version(), **known}


def missing_requirements() -> list[MissingLibrary]:
    """The needed libraries that are absent or too old, in the order of ``pyproject.toml``."""
    missing = []
    for requirement in all_requirements():
        found = installed_version(requirement.name)
        if found is None or not meets(found, requirement.minimum):
            missing.append(MissingLibrary(*requirement, found))
    return missing


def require_libraries() -> None:
    """Refuse to start when a needed library is absent or too old.

    Raises:
        InputError: It names each of them and says how to install them.
    """
    from .errors import InputError  # loaded by install.py, this file has no package

    missing = missing_requirements()
    if missing:
        raise InputError(
            "; ".join(str(library) for library in missing),
            ", ".join(f"{library.name}>={library.minimum}" for library in missing),
            remedy(missing),
        )


def remedy(missing: list[MissingLibrary]) -> str:
    """Say what to do about missing libraries, for the pack in ComfyUI and for the library alone."""
    script = _PACK / "install.py"
    if _pyproject(_PACK) is None or not script.is_file():
        return f'Install them: pip install "{_DISTRIBUTION}[train]"'
    hosts = [library.name for library in missing if library.name in HOST_OWNED]
    update = ""
    if hosts:
        # The pack moves none of them: every other pack depends on them too.
        update = f"Update ComfyUI and its requirements ({', '.join(hosts)}). Then run "
    start = update or "Run "
    return f"{start}{shell_word(sys.executable)} {shell_word(script)} and restart ComfyUI."


def shell_word(path: str | Path) -> str:
    """A path to type into a shell: in quotes only where it needs them.

    PowerShell takes a command in quotes for a text, other shells take both.
    """
    text = str(path)
    return f'"{text}"' if re.search(r"[\s&()']", text) else text


def _pyproject(pack: Path) -> str | None:
    """The pack's ``pyproject.toml``, or None when the folder is not the pack."""
    file = pack / "pyproject.toml"
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    return text if re.search(rf'^name *= *"{_DISTRIBUTION}"', text, re.M) else None


def _numbers(release: str) -> tuple[int, ...]:
    # 1.0 and 1.0.0 are the same version.
    numbers = [int(number) for number in release.split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def _metadata_lines() -> list[str]:
    try:
        listed = importlib.metadata.requires(_DISTRIBUTION) or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ValueError(
            f"{_PACK} has no pyproject.toml, and {_DISTRIBUTION} has no metadata"
        ) from error
    lines = []
    for line in listed:
        text, _, marker = line.partition(";")
        if not marker or re.search(r"extra\s*==\s*[\"']train[\"']", marker):
            lines.append(text.strip())
    return lines
