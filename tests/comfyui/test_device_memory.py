"""ComfyUI on a pretended device: gradients through its MODELs, and its memory after a run."""

import json
import os
import subprocess
import time
from pathlib import Path

import pytest
from comfyui.graphs import disturb, forget, graph, hold, release, wait_until_held
from comfyui.test_trainable_model import check_gradients

from tests.fixtures.pretend_cuda import runtime

pytestmark = [
    pytest.mark.comfy,
    pytest.mark.skipif(not runtime.is_here(), reason="make pretend-gpu has a device"),
]
SWAPPED = {"gradient_checkpointing": True, "blocks_to_swap": 2, "checkpoint_inputs": "ram"}


def taken(server):
    """Bytes of the device, and of RAM that count as pinned."""
    device = server.get("/system_stats")["devices"][0]
    assert device["type"] == "cuda"
    return device["vram_total"] - device["vram_free"], server.get("/instruments/pinned")[0]


def left(server):
    """What is taken when ComfyUI has forgotten its results."""
    forget(server)
    return taken(server)


def test_it_has_its_memory_back_after_the_end_an_error_and_a_cancel(server):
    def ends(name):
        server.run(graph(name, previews=True, settings=SWAPPED))

    def fails(name):
        disturb(server, "memory", at=4)
        nodes = graph(name, settings={**SWAPPED, "recovery_smaller": False})
        assert server.failure(server.result(server.queue(nodes)))["event"] == "execution_error"
        server.post("/instruments/disturb", {"what": "nothing"})

    def stops(name):
        hold(server, 4)
        prompt = server.queue(graph(name, settings=SWAPPED))
        wait_until_held(server)
        assert all(now > then for now, then in zip(taken(server), before, strict=True))
        server.post("/interrupt", {"prompt_id": prompt})
        release(server)
        assert server.failure(server.result(prompt))["event"] == "execution_interrupted"

    ends("warm")
    before = left(server)
    for way in (ends, fails, stops):
        way(way.__name__)
        limit = time.monotonic() + 10
        while left(server) != before and time.monotonic() < limit:
            time.sleep(0.2)
        assert left(server) == before, way.__name__


def test_gradients_through_a_model_on_the_device_are_torchs_and_leave_it_as_it_was(
    comfyui, tmp_path
):
    root, python = comfyui
    script = Path(__file__).with_name("trainable_model_process.py")
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(root)])
    names = ("flux", "sdxl", "qwen_image", "z_image")
    command = [python, script, tmp_path, *names]
    subprocess.run(command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": path}, check=True)
    found = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    for name in names:
        check_gradients(found["gradients"][name])
    assert all(each["left"] == {} for each in found["ways out"].values())
