"""What a user gets: the registry's archive, and what ComfyUI reads from pyproject.toml."""

import json
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

import pytest
from comfyui.conftest import comfy_programs

ROOT = Path(__file__).resolve().parents[2]
MOST_BYTES = 30_000_000
_PARSE = """
import json, sys
from comfy_config.config_parser import extract_node_configuration
found = extract_node_configuration(sys.argv[1])
print(json.dumps({"project": found.project.model_dump(), "comfy": found.tool_comfy.model_dump()}))
"""


def tracked(*options: str) -> set[str]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this folder is not a git checkout, from which an archive is made")
    command = ["git", "-C", str(ROOT), "-c", f"safe.directory={ROOT}", "ls-files", "-z", *options]
    done = subprocess.run(command, capture_output=True, check=True)
    return {name for name in done.stdout.decode().split("\0") if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def archive():
    """The files that publishing packs: those that git knows, without those of .comfyignore."""
    left_out = tracked("--cached", "--ignored", "--exclude-from=.comfyignore")
    assert left_out
    return tracked() - left_out


def test_the_archive_has_what_runs(archive):
    single = {"__init__.py", "install.py", "requirements.txt", "pyproject.toml", "LICENSE"}
    assert single <= archive
    kinds = ("nodes/**/*.py", "js/**/*.js", "js/docs/*.md", "workflows/*.json", "locales/*/*.json")
    for pattern in kinds:
        present = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
        known = present & tracked()
        assert known
        assert known <= archive
    library = {name for name in tracked() if name.startswith("trainer_core/")}
    assert library <= archive
    folders = {"/".join(name.split("/")[:3]) for name in library}
    for name in (
        "assets/tiny-qwen-image",
        "assets/demo-generate",
        "assets/demo-edit",
        "assets/demo-own",
    ):
        assert f"trainer_core/{name}" in folders
    assert any("/configs/" in name for name in library)


def test_the_archive_leaves_out_what_only_developers_need(archive):
    tops = {name.split("/")[0] for name in archive}
    assert not tops & {"tests", "benchmarks", "scripts", ".ci", "node_modules", ".venv"}
    assert sum((ROOT / name).stat().st_size for name in archive) < MOST_BYTES


def test_names_in_the_archive_work_on_every_system(archive):
    """On Windows: no reserved name or character, and no two names that differ in case alone."""
    reserved = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\.|$)", re.IGNORECASE)
    for name in archive:
        assert len(name) < 120
        for part in name.split("/"):
            assert not reserved.match(part)
            assert not set(part) & set('<>:"\\|?*')
            assert part[-1] not in ". "
    assert len({name.lower() for name in archive}) == len(archive)
    links = [name for name in archive if (ROOT / name).is_symlink()]
    assert links == []


@pytest.mark.comfy
def test_comfyui_reads_the_metadata():
    folder, python = comfy_programs()
    words = [str(python), "-c", _PARSE, str(ROOT)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    project, comfy = found["project"], found["comfy"]
    assert project["name"] == "adapter-trainer"
    assert not project["name"].lower().startswith("comfyui")
    assert re.fullmatch(r"\d+\.\d+\.\d+", project["version"])
    # A form that the parser does not know is dropped by it with a warning.
    assert re.fullmatch(r">=\d+\.\d+\.\d+", project["supported_comfyui_version"])
    assert project["supported_os"] == ["OS Independent"]
    assert project["supported_accelerators"]
    assert project["license"]["file"] == "LICENSE"
    assert project["urls"]["repository"].startswith("https://")
    assert comfy["publisher_id"]
    assert comfy["display_name"] == "Adapter Trainer"
    # Served by WEB_DIRECTORY; with both, the browser would load the panel twice.
    assert comfy["web"] is None
    assert comfy["includes"] == []
    icon = urllib.parse.urlsplit(comfy["icon"])
    assert icon.scheme == "https"
    assert (ROOT / icon.path.split("/main/")[1]).is_file()


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_the_wheel_takes_every_file_of_the_library():
    """Package data are named by pattern; a file outside of them would be missing silently."""
    import tomllib

    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    patterns = tomllib.loads(text)["tool"]["setuptools"]["package-data"]["trainer_core"]
    base = ROOT / "trainer_core"
    taken = {path for pattern in patterns for path in base.glob(pattern)}
    others = {path for path in base.rglob("*") if path.is_file() and path.suffix != ".py"}
    missed = {path for path in others - taken if "__pycache__" not in path.parts}
    assert missed == set()
