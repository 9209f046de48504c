"""install.py in environments whose packages do not fit each other, with real pip and local wheels.

The packages are empty ones with the names and needs of the real ones; nothing is downloaded.
"""

import importlib.machinery
import os
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest
from fixtures.tables import table

import install

ROOT = Path(install.__file__).resolve().parent
HOST = table(__file__, "needs of a host")
OURS = [
    ("diffusers", "0.42.1", ["huggingface-hub>=1.2", "importlib-metadata"]),
    ("diffusers", "0.39.0", ["huggingface-hub>=0.34", "importlib-metadata"]),
    ("peft", "0.21.2", ["torch", "transformers", "accelerate>=1.0"]),
    ("accelerate", "1.15.0", ["torch", "huggingface-hub>=0.21", "psutil"]),
    ("importlib-metadata", "8.0.0", []),
    ("psutil", "7.0.0", []),
    ("fsspec", "2024.6", []),
]


def header(name: str, version: str, needs: list[str]) -> str:
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    return "\n".join([*lines, *(f"Requires-Dist: {need}" for need in needs), ""])


def make_wheels(folder: Path) -> None:
    folder.mkdir()
    for name, version, needs in OURS:
        stem = f"{name.replace('-', '_')}-{version}"
        inside = f"{stem}.dist-info"
        files = {
            f"{inside}/METADATA": header(name, version, needs),
            f"{inside}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        }
        files[f"{inside}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{inside}/RECORD"])
        with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as wheel:
            for path, text in files.items():
                wheel.writestr(path, text)


@pytest.fixture
def guest(tmp_path):
    """Runs install.py in an environment with the host's packages, some of them changed."""
    make_wheels(tmp_path / "wheels")
    place = tmp_path / "environment"
    venv.create(place, with_pip=False, symlinks=os.name != "nt")
    (packages,) = place.glob("lib/python*/site-packages")
    python = place / "bin" / "python"
    tools = tmp_path / "tools"
    tools.mkdir()
    # Asked for pip, setuptools' import hook would leave this process with another distutils than it
    # expects itself, and torch could compile nothing after that.
    found = importlib.machinery.PathFinder.find_spec("pip")
    assert found is not None
    assert found.origin is not None
    (tools / "pip").symlink_to(Path(found.origin).parent)

    def run(changed: dict[str, tuple[str, list[str]]]):
        for name, (version, needs) in {**HOST, **changed}.items():
            info = packages / f"{name.replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            (info / "METADATA").write_text(header(name, version, needs))
            (info / "RECORD").write_text(f"{info.name}/METADATA,,\n{info.name}/RECORD,,\n")
            (info / "INSTALLER").write_text("pip\n")
        before = listed(packages)
        done = subprocess.run(
            [python, "-s", ROOT / "install.py"],
            env={
                "PATH": "",
                "PYTHONPATH": str(tools),
                "PIP_NO_INDEX": "1",
                "PIP_FIND_LINKS": str(tmp_path / "wheels"),
                "PIP_NO_CACHE_DIR": "1",
                "PIP_CONFIG_FILE": os.devnull,
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        return done, before, listed(packages)

    return run


def listed(packages: Path) -> dict[str, str]:
    found = [file.parent.name for file in packages.glob("*.dist-info/METADATA")]
    return dict(name.removesuffix(".dist-info").split("-") for name in found)


posix = pytest.mark.skipif(os.name == "nt", reason="the environment is laid out as on POSIX")


@posix
@pytest.mark.exhaustive
def test_a_conflict_of_other_packages_is_got_round_and_told(guest):
    done, before, after = guest({"fsspec": ("2022.1", [])})
    assert done.returncode == 0, done.stdout + done.stderr
    moved = {name for name in before if after[name] != before[name]}
    assert moved == {"fsspec"}
    assert "fsspec 2022.1 -> 2024.6" in done.stdout


@pytest.mark.exhaustive
@posix
def test_a_conflict_of_what_is_promised_leaves_it_as_it_is(guest):
    done, before, after = guest({"tokenizers": ("0.23.1", [])})
    assert done.returncode == 0, done.stdout + done.stderr
    assert {name: after[name] for name in before} == before
    assert after["diffusers"] == "0.39.0"  # the newer one needs another huggingface-hub
    assert after["importlib_metadata"] == "8.0.0"
    assert "With them came: importlib-metadata 8.0.0" in done.stdout
    assert "trying another version of diffusers" in done.stdout


@posix
@pytest.mark.exhaustive
def test_what_is_in_the_way_is_named_and_nothing_stays(guest):
    changed = {"huggingface-hub": ("0.30.0", []), "tokenizers": ("0.23.1", [])}
    done, before, after = guest(changed)
    assert done.returncode == 1
    assert after == before
    assert "needs huggingface-hub" in done.stderr
    assert "tokenizers" in done.stderr
