"""The embedded graph in small, and what tests look at after it ran."""

import copy
import json
import time
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comfyui.server import ROOT, ComfyServer

DATASET, BASE, PROMPTS, CACHE, ADAPTER, SETTINGS, TRAIN, PREVIEW, SHOW, SAVE = map(
    str, range(1, 11)
)
_SMALL_GRAPH = {*map(str, range(1, 11))}
DENOISER = "QwenImageTransformer2DModel"
ENCODER = "QwenImageEncoder3d"
STEPS = 8

_WORKFLOW = ROOT / "tests" / "workflows" / "51_advanced_first_adapter.json"
_SMALL = {
    # What the base is held to is sampled before the first step, which takes longer than the steps.
    DATASET: {"folder": "datasets/four", "preservation": 0.0},
    PROMPTS: {"prompts": "a red diamond", "width": 32, "height": 32, "steps": 3, "guidance": 1.0},
    ADAPTER: {"rank": 4, "targets": "attention", "dropout": 0.1},
    SETTINGS: {
        "batch_size": 2,
        "warmup_steps": 0,
        "preview_every": 0,
        "checkpoint_every": 0,
        "keep_checkpoints": 100,
    },
    TRAIN: {"steps": STEPS, "learning_rate": 1e-3},
}


def graph(
    name: str, *, previews: bool = False, behind: bool = False, **changes: Mapping[str, Any]
) -> dict[str, Any]:
    """The shipped graph at a size that trains in a second.

    Args:
        name: Name of the run.
        previews: Whether prompts are encoded and drawn.
        behind: Whether the nodes behind Train Adapter stay.
        changes: Inputs by node, which is named in lower case, such as ``train``.
    """
    nodes = json.loads(_WORKFLOW.read_text(encoding="utf-8"))
    # The images of the base alone and the plotted losses would cost every test its time.
    nodes = {node: value for node, value in nodes.items() if node in _SMALL_GRAPH}
    for node, inputs in _SMALL.items():
        nodes[node]["inputs"] |= inputs
    nodes[TRAIN]["inputs"]["name"] = name
    nodes[SAVE]["inputs"]["name"] = name
    if not behind:
        for node in (PREVIEW, SHOW, SAVE):
            del nodes[node]
    if not previews:
        del nodes[CACHE]["inputs"]["previews"]
        for node in {PROMPTS, PREVIEW, SHOW} & nodes.keys():
            del nodes[node]
    for node, inputs in changes.items():
        nodes[globals()[node.upper()]]["inputs"] |= inputs
    return nodes


def changed(nodes: Mapping[str, Any], node: str, **inputs: Any) -> dict[str, Any]:
    """A copy with other inputs on one node."""
    copied = copy.deepcopy(dict(nodes))
    copied[node]["inputs"] |= inputs
    return copied


def node(kind: str, **inputs: Any) -> dict[str, Any]:
    """A node of the prompt."""
    return {"class_type": kind, "inputs": inputs}


def loaded_run(run: str, checkpoint: int = 0, name: str = "loaded") -> dict[str, Any]:
    """A graph that shows the images of a run, and saves its adapter."""
    saved = {"run": ["1", 3], "name": name, "layout": "comfyui", "overwrite": True}
    return {
        "1": node("AdapterTrainerLoadRun", run=run, checkpoint=checkpoint),
        "2": node("PreviewImage", images=["1", 2]),
        "3": node("AdapterTrainerSave", **saved),
    }


def adapter_kind(kind: str, **own: Any) -> dict[str, Any]:
    """What the DynamicCombo of Adapter Config says for a kind, for `graph`."""
    shown = {"init": "default"} if kind == "lora" else {}
    return {"kind": kind, **{f"kind.{name}": value for name, value in (shown | own).items()}}


def runs(server: ComfyServer, name: str) -> list[Path]:
    """A run's version folders."""
    root = server.data / "output" / "adapter_trainer" / name
    return sorted(root.glob("v*"), key=lambda path: int(path.name[1:]))


def run_folder(server: ComfyServer, name: str) -> Path:
    """The only version of a run."""
    (folder,) = runs(server, name)
    return folder


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def checkpoints(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in (folder / "checkpoints").glob("[0-9]*"))


def weights(path: Path) -> dict[str, bytes]:
    """An adapter's tensors as bytes, so that equal means equal in every bit."""
    from safetensors.torch import load_file

    return {name: t.contiguous().numpy().tobytes() for name, t in load_file(path).items()}


def cached_nodes(result: Mapping[str, Any]) -> set[str]:
    """The nodes that ComfyUI did not run again."""
    return {
        node
        for event, content in result["status"]["messages"]
        if event == "execution_cached"
        for node in content["nodes"]
    }


def cache_files(server: ComfyServer, kind: str) -> set[str]:
    """Encoded entries of a kind: ``latents``, ``text`` or ``prompts``."""
    root = server.data / "output" / "adapter_trainer" / "cache" / kind
    return {path.name for path in root.glob("*.safetensors")}


def panel(server: ComfyServer, node: str = TRAIN, **about: str) -> dict[str, Any]:
    """What the browser would show of a train node, of which it may know more than its id."""
    query = urllib.parse.urlencode({"node_id": node, **about})
    return server.get(f"/adapter_trainer/state?{query}")


def forget_panel(server: ComfyServer) -> None:
    """Let the server forget what the panels show, as a restart does."""
    server.post("/instruments/forget_panel", {})


def wish(server: ComfyServer, name: str, node: str = TRAIN) -> tuple[int, Any]:
    return server.post("/adapter_trainer/wish", {"node_id": node, "wish": name})


def hold(server: ComfyServer, at: int, where: str = DENOISER) -> None:
    """Let the next work stop at the n-th call of a module until `release`."""
    disturb(server, "hold", at, where)


def disturb(server: ComfyServer, what: str, at: int, where: str = DENOISER) -> None:
    """Let something go wrong at the n-th call of a module: ``memory``, ``poison`` or ``worse``."""
    server.post("/instruments/disturb", {"what": what, "where": where, "at": at})


def wait_until_held(server: ComfyServer) -> None:
    server.wait(lambda: server.get("/instruments/disturbance")["holding"], 120)


def release(server: ComfyServer) -> None:
    server.post("/instruments/disturb", {"what": "release"})


def cancelled(
    server: ComfyServer, nodes: Mapping[str, Any], at: int, where: str = DENOISER
) -> dict[str, Any]:
    """Run a graph and cancel it in the middle of the n-th call of a module; gives what is said."""
    hold(server, at, where)
    prompt = server.queue(nodes)
    wait_until_held(server)
    assert server.post("/interrupt", {"prompt_id": prompt})[0] == 200
    release(server)
    failure = server.failure(server.result(prompt))
    assert failure["event"] == "execution_interrupted", failure
    return failure


def forget(server: ComfyServer) -> None:
    """Drop all that ComfyUI keeps of earlier prompts, as its button "free memory" does."""

    def settled() -> bool:
        # A request is overheard by a worker that is just busy, so it may need another.
        server.post("/free", {"unload_models": True, "free_memory": True})
        time.sleep(0.2)
        return server.get("/instruments/settled")

    server.wait(settled, 60)
    # The request is taken a moment before it is acted on.
    time.sleep(0.2)
