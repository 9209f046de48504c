"""One ComfyUI server for all tests that run graphs, and small data for it."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy
import pytest
from comfy.server import comfy_server
from PIL import Image

CAPTIONS = ("a red diamond", "a blue circle", "a green square", "a yellow diamond")


def comfy_programs() -> tuple[Path, Path]:
    """ComfyUI's folder and interpreter; skips where they are not there."""
    folder = Path(os.environ.get("COMFYUI_PATH") or Path.home() / "ComfyUI")
    python = Path(os.environ.get("COMFYUI_PYTHON") or folder / "venv" / "bin" / "python")
    if not python.is_file():
        pytest.skip(f"no interpreter for ComfyUI at $COMFYUI_PYTHON or {python.name} in its venv")
    return folder, python


@pytest.fixture(scope="session")
def comfyui() -> tuple[Path, Path]:
    """ComfyUI's folder and interpreter, for tests that run its code without a server."""
    folder, python = comfy_programs()
    probe = subprocess.run(
        [python, "-c", "import torch, safetensors"], capture_output=True, check=False, timeout=300
    )
    if probe.returncode:
        pytest.skip("ComfyUI's interpreter lacks torch or safetensors")
    return folder, python


def write_pictures(folder: Path, captions=CAPTIONS, size: int = 64, first: int = 0) -> Path:
    """Write smooth coloured pictures, and a caption beside each."""
    folder.mkdir(parents=True)
    for number, caption in enumerate(captions):
        generator = numpy.random.default_rng(first + number)
        coarse = generator.integers(0, 256, (4, 4, 3), dtype=numpy.uint8)
        picture = Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)
        picture.save(folder / f"{number}.png")
        if caption is not None:
            (folder / f"{number}.txt").write_text(caption, encoding="utf-8")
    return folder


def write_example(data: Path) -> None:
    """Write the picture that every ComfyUI has in its input folder; this base directory is new."""
    shutil.copyfile(data / "input" / "loose" / "0.png", data / "input" / "example.png")


def make_data(data: Path) -> Path:
    """A base directory for a server, with a dataset and the instruments."""
    write_pictures(data / "datasets" / "four")
    write_pictures(data / "input" / "loose")
    for pack in ("instruments", "panel_meter"):
        folder = data / "custom_nodes" / pack
        folder.mkdir(parents=True)
        shutil.copyfile(Path(__file__).with_name(f"{pack}.py"), folder / "__init__.py")
    return data


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory):
    folder, python = comfy_programs()
    data = make_data(tmp_path_factory.mktemp("server"))
    with comfy_server(folder, python, data) as server:
        yield server


@pytest.fixture
def server(shared_server):
    """The shared server; nothing runs when a test begins."""
    yield shared_server
    shared_server.post("/instruments/disturb", {"what": "nothing"})
    if shared_server.remaining():
        shared_server.post("/queue", {"clear": True})
        shared_server.post("/interrupt", {})
        shared_server.wait(lambda: not shared_server.remaining(), 60)
