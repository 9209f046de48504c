"""One ComfyUI server for all tests that run graphs, and small data for it."""

import functools
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
from comfyui.environment import (
    UnavailableError,
    comfyui_folder,
    comfyui_python,
    environment_over,
    packages_of,
)
from comfyui.host import ComfyHost
from comfyui.server import comfy_server
from comfyui.snapshot import Snapshot, changes, snapshot
from PIL import Image

CAPTIONS = ("a red diamond", "a blue circle", "a green square", "a yellow diamond")


@functools.cache
def comfy_programs() -> tuple[Path, Path]:
    """ComfyUI's folder, and the interpreter of the tests' environment over it; skips without."""
    folder = comfyui_folder()
    if folder is None:
        pytest.skip("no ComfyUI at $COMFYUI_PATH or ~/ComfyUI")
    try:
        return folder, environment_over(comfyui_python(folder))
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="session")
def comfyui() -> tuple[Path, Path]:
    """ComfyUI's folder and the interpreter, for tests that run its code without a server."""
    return comfy_programs()


@pytest.fixture(scope="session")
def comfy_host(tmp_path_factory) -> Iterator[ComfyHost]:
    """One process with ComfyUI's loaders for all scripts that need no fresh one."""
    root, python = comfy_programs()
    if not hasattr(os, "fork"):
        pytest.skip("a process cannot be forked here")
    host = ComfyHost(root, python, tmp_path_factory.mktemp("host") / "log")
    yield host
    host.close()


@pytest.fixture(scope="session", autouse=True)
def files_of_the_user() -> Iterator[Snapshot]:
    """What a ComfyUI and its environment hold before the tests; they leave it as it is."""
    try:
        folder, _ = comfy_programs()
        folders = [folder, *packages_of(comfyui_python(folder))]
    except pytest.skip.Exception:
        folders = []
    before = snapshot(folders)
    yield before
    assert changes(before, snapshot(folders)) == []


def write_images(folder: Path, captions=CAPTIONS, size: int = 64, first: int = 0) -> Path:
    """Write smooth coloured images, and a caption beside each."""
    folder.mkdir(parents=True)
    for number, caption in enumerate(captions):
        generator = numpy.random.default_rng(first + number)
        coarse = generator.integers(0, 256, (4, 4, 3), dtype=numpy.uint8)
        image = Image.fromarray(coarse).resize((size, size), Image.Resampling.BICUBIC)
        image.save(folder / f"{number}.png")
        if caption is not None:
            (folder / f"{number}.txt").write_text(caption, encoding="utf-8")
    return folder


def write_layers(folder: Path, count: int = 2) -> Path:
    """Write images with two layers each: the image itself, and a transparent one."""
    write_images(folder / "training_images", captions=("two layers",) * count)
    (folder / "layers").mkdir()
    for number in range(count):
        with Image.open(folder / "training_images" / f"{number}.png") as image:
            image.save(folder / "layers" / f"{number}_0.png")
            image.putalpha(Image.linear_gradient("L").resize(image.size))
            image.save(folder / "layers" / f"{number}_1.png")
    return folder


def write_example(data: Path) -> None:
    """Write the image that every ComfyUI has in its input folder; this base directory is new."""
    shutil.copyfile(data / "input" / "loose" / "0.png", data / "input" / "example.png")


def install_stand_in_encoders(data: Path) -> None:
    """Add nodes that load small text encoders, for a server that is not yet started."""
    pack = data / "custom_nodes" / "stand_in_encoders"
    pack.mkdir()
    for file in ("stand_in_encoders", "small_models", "small_qwen"):
        name = "__init__" if file == "stand_in_encoders" else file
        shutil.copyfile(Path(__file__).with_name(f"{file}.py"), pack / f"{name}.py")


def make_data(data: Path) -> Path:
    """A base directory for a server, with a dataset, the instruments and tiny MODELs."""
    write_images(data / "datasets" / "four")
    write_images(data / "input" / "loose")
    for pack in ("instruments", "panel_meter"):
        folder = data / "custom_nodes" / pack
        folder.mkdir(parents=True)
        shutil.copyfile(Path(__file__).with_name(f"{pack}.py"), folder / "__init__.py")
    tiny = Path(__file__).with_name("tiny_models")
    shutil.copytree(tiny, data / "custom_nodes" / tiny.name, ignore=lambda *_: {"__pycache__"})
    return data


@pytest.fixture(scope="session")
def running_server(tmp_path_factory):
    folder, python = comfy_programs()
    data = make_data(tmp_path_factory.mktemp("server"))
    install_stand_in_encoders(data)
    with comfy_server(folder, python, data) as server:
        yield server


@pytest.fixture(scope="module")
def shared_server(running_server):
    """The server of this process, without runs, adapters or cached results of other files.

    Which files share a server differs from run to run, so none may see another's.
    """
    running_server.forget()
    return running_server


@pytest.fixture
def server(shared_server):
    """The shared server; nothing runs when a test begins."""
    yield shared_server
    shared_server.post("/instruments/disturb", {"what": "nothing"})
    if shared_server.remaining():
        shared_server.post("/queue", {"clear": True})
        shared_server.post("/interrupt", {})
        shared_server.wait(lambda: not shared_server.remaining(), 60)
