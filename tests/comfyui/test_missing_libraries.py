"""A ComfyUI whose Python lacks what training needs: the nodes appear, and Run says what to do."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from comfyui.conftest import comfy_programs, make_data
from comfyui.environment import comfyui_folder, interpreter, packages_of, show_packages
from comfyui.graphs import CACHE, TRAIN, graph
from comfyui.server import ROOT, comfy_server

# A server and an environment of its own, for what changes with neither ComfyUI nor training.
pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

ABSENT = ("diffusers", "accelerate")
OLD = "peft"


def poorer_python(python: Path, folder: Path) -> Path:
    """An environment with the packages of another by links, some left out, one too old."""
    subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True, timeout=120)
    poorer = interpreter(folder)
    show_packages(poorer, [])
    (site,) = packages_of(poorer)
    compiled, own = bytecode_of(python), bytecode_of(poorer)
    for folder in (comfyui_folder(), Path(sysconfig.get_path("stdlib"))):
        share_bytecode(compiled, own, folder, folder)
    for package in (package for place in packages_of(python) for package in place.iterdir()):
        name = package.name.split("-")[0]
        if name in ABSENT or name == "pip":
            continue
        if name == OLD and package.suffix == ".dist-info":
            shutil.copytree(package, site / package.name)
            metadata = site / package.name / "METADATA"
            version = package.name.removesuffix(".dist-info").split("-")[1]
            text = metadata.read_text(encoding="utf-8")
            assert f"\nVersion: {version}\n" in text
            older = text.replace(f"\nVersion: {version}\n", "\nVersion: 0.17.1\n", 1)
            metadata.write_text(older, encoding="utf-8")
        elif not os.path.lexists(site / package.name):
            (site / package.name).symlink_to(package)
            share_bytecode(compiled, own, package, site / package.name)
    return poorer


def bytecode_of(python: Path) -> Path:
    """Where `show_packages` lets an environment keep its bytecode."""
    return packages_of(python)[0].parent / "bytecode"


def share_bytecode(compiled: Path, own: Path, folder: Path, seen: Path) -> None:
    """Let what is imported from ``seen`` be found compiled, as the same files in ``folder`` are.

    To compile torch again takes longer than all that is tested here.
    """
    there, here = (
        place / at.relative_to(at.anchor) for place, at in ((compiled, folder), (own, seen))
    )
    if there.is_dir():
        here.parent.mkdir(parents=True, exist_ok=True)
        here.symlink_to(there)


@pytest.fixture(scope="module")
def poor(tmp_path_factory):
    folder, python = comfy_programs()
    poorer = poorer_python(python, tmp_path_factory.mktemp("python") / "venv")
    lacking = subprocess.run([poorer, "-c", "import torch, diffusers"], capture_output=True)
    assert b"No module named 'diffusers'" in lacking.stderr
    data = make_data(tmp_path_factory.mktemp("poor"))
    with comfy_server(folder, poorer, data) as server:
        yield server, poorer


def test_every_node_appears(poor):
    server, _ = poor
    pages = {page.stem for page in (ROOT / "js" / "docs").glob("*.md")}
    assert len(pages) >= 13
    listed = server.get("/object_info")
    assert pages <= listed.keys()
    assert "Cannot import" not in server.log.read_text(errors="replace")


def test_run_says_what_is_missing_and_how_to_get_it(poor):
    server, python = poor
    failure = server.failure(server.result(server.queue(graph("poor"))))
    assert failure["event"] == "execution_error"
    assert failure["node_id"] == CACHE
    found, expected, todo = failure["exception_message"].strip().splitlines()
    assert "diffusers is not installed" in found
    assert "accelerate is not installed" in found
    assert "peft 0.17.1 is older than 0.18" in found
    assert "torch" not in found
    assert "diffusers>=" in expected
    assert str(python) in todo
    assert "install.py" in todo


def test_the_server_goes_on(poor):
    server, _ = poor
    server.run({"1": {"class_type": "InstrumentsNoteState", "inputs": {"number": 0}}})
    assert server.get("/object_info/AdapterTrainerTrain")["AdapterTrainerTrain"]
    assert server.status(f"/adapter_trainer/state?node_id={TRAIN}") < 500
