"""Runs and adapter files after the training: what is loaded, saved, deleted, damaged or linked."""

import io
import json
import shutil
import urllib.parse

import numpy
import pytest
from comfyui.conftest import write_images
from comfyui.graphs import BASE, graph, loaded_run, run_folder
from comfyui.test_graph_errors import convert, refused, refused_soon
from comfyui.test_run_file_graph import opened
from PIL import Image
from safetensors.torch import load_file

pytestmark = pytest.mark.comfy

LOAD, SHOWN, IMAGE = "1", "2", "30"


def shown(server, result, node=SHOWN):
    (place,) = result["outputs"][node]["images"]
    content = server.fetch(f"/view?{urllib.parse.urlencode(place)}")
    return numpy.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


def loras(server):
    folder = server.data / "models" / "loras"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def landmarks(shared_server):
    """A run with checkpoints and images at steps 4 and 8."""
    nodes = graph(
        "landmarks",
        previews=True,
        settings={"preview_every": 4, "checkpoint_every": 4},
        train={"learning_rate": 0.05},
    )
    shared_server.run(nodes)
    return run_folder(shared_server, "landmarks")


@pytest.mark.parametrize(("checkpoint", "step"), [(4, 4), (0, 8)])
def test_a_checkpoint_comes_with_its_own_images(server, landmarks, checkpoint, step):
    result = server.run(loaded_run(f"landmarks/{landmarks.name}", checkpoint))
    found = shown(server, result)
    drawn = {
        int(path.name): numpy.asarray(Image.open(path / "0.png").convert("RGB"))
        for path in (landmarks / "samples").iterdir()
    }
    assert {4, 8} <= drawn.keys()
    assert not (drawn[4] == drawn[8]).all(), "the steps could not be told apart"
    assert (found == drawn[step]).all()


def test_a_run_that_wrote_another_layout_alone_is_loaded_or_refused(server, landmarks):
    """Only a run file can ask for that."""
    file = convert("none", lora=[LOAD, 0], layout="diffusers", name="layouts/one", overwrite=True)
    nodes = {**loaded_run("landmarks/v0"), "9": file["1"]}
    server.run(nodes)
    folder = landmarks.parent / "v91"
    shutil.copytree(landmarks, folder)
    (folder / "landmarks.safetensors").unlink()
    other = folder / "landmarks_diffusers.safetensors"
    shutil.copyfile(loras(server) / "layouts" / "one.safetensors", other)
    try:
        server.run(loaded_run("landmarks/v91", name="from-checkpoint"))
        (path,) = loras(server).glob("from-checkpoint.safetensors")
        assert load_file(path).keys() == load_file(landmarks / "landmarks.safetensors").keys()
        shutil.rmtree(folder / "checkpoints")
        message = refused(server, loaded_run("landmarks/v91", name="y"), LOAD)
        assert "layout" in message
        assert "Convert Adapter" in message
    finally:
        shutil.rmtree(folder)


def test_linked_models_are_read_as_comfyui_reads_them(server, landmarks, tmp_path):
    """A Hugging Face cache consists of links, and no workflow can make one."""
    outside = tmp_path / "blob"
    shutil.copyfile(landmarks / "landmarks.safetensors", outside)
    (loras(server) / "linked.safetensors").symlink_to(outside)
    server.run(convert("linked.safetensors", name="from-link", overwrite=True))
    bases = server.data / "models" / "diffusion_models"
    bases.mkdir(parents=True, exist_ok=True)
    (bases / "linked.safetensors").symlink_to(outside)
    message = refused_soon(
        server, graph("x", base={"source": "diffusion_models/linked.safetensors"}), BASE
    )
    assert "link that leads out" not in message
    # A new file goes nowhere through a link.
    (loras(server) / "elsewhere").symlink_to(tmp_path, target_is_directory=True)
    message = refused(server, convert("linked.safetensors", name="elsewhere/x"), "1")
    assert "link" in message
    assert [path.name for path in tmp_path.iterdir()] == ["blob"]
    # A link to nothing among the models is nobody's fault but its own.
    outside.unlink()
    answer = opened(server, "run.yaml", json.dumps({"base": {"path": str(bases / "gone.gguf")}}))
    assert "nodes" in answer
    (bases / "linked.safetensors").unlink()
    for name in ("linked.safetensors", "elsewhere"):
        (loras(server) / name).unlink()


def test_our_own_folder_is_no_list_of_datasets(server, landmarks):
    write_images(server.data / "output" / "theirs")
    node = server.get("/object_info/AdapterTrainerDatasetFolder")["AdapterTrainerDatasetFolder"]
    names = node["input"]["required"]["folder"][1]["options"]
    assert "output/theirs" in names
    assert [name for name in names if "adapter_trainer" in name] == []
