"""Train Sweep in a real ComfyUI: the trials are runs, the best is handed on."""

import json
import shutil

import pytest
from comfyui.graphs import SAVE, TRAIN, changed, graph, node, record, run_folder, runs, weights
from comfyui.test_graph_errors import refused, refused_at_once

pytestmark = pytest.mark.comfy

TEXT = "40"
HELD = {"validation_share": 0.3, "validation_every": 1, "validation_noise_levels": 1}
TRIALS = ("rank_2", "rank_3")


def sweep(name, grid="rank: 2, 3", held=HELD, **more):
    nodes = graph(name, dataset=held, behind=True)
    inputs = nodes[TRAIN]["inputs"]
    for each in ("resume", "resume_from"):
        inputs.pop(each, None)
    own = {"grid": grid, "stop_hopeless": True}
    nodes[TRAIN] = node("AdapterTrainerSweep", **inputs, **own | more)
    nodes[TEXT] = node("PreviewAny", source=[TRAIN, 4])
    return changed(nodes, TRAIN, steps=3)


def table(server, name):
    folder = server.data / "output" / "adapter_trainer" / f"{name}_sweep"
    return json.loads((folder / "sweep.json").read_text()), folder


@pytest.mark.exhaustive
def test_the_best_trial_is_handed_on_and_nothing_is_trained_twice(server):
    result = server.run(sweep("swept"))
    found, folder = table(server, "swept")
    assert [each["status"] for each in found["trials"]] == ["done", "done"]
    best, other = found["trials"]
    assert best["loss"] <= other["loss"]
    adapter = weights(folder / "swept.safetensors")
    version = run_folder(server, best["name"])
    place = version / "checkpoints" / f"{best['best_step']:06d}" / "adapter.safetensors"
    assert adapter == weights(place)
    assert weights(server.data / "models" / "loras" / "swept.safetensors") == adapter
    assert best["name"] in str(result["outputs"][TEXT])
    listed = {each["run"] for each in server.get("/adapter_trainer/runs/list")["runs"]}
    assert {f"swept-{each}/v0" for each in TRIALS} <= listed

    # One trial more: the others are as they were.
    before = {each: record(run_folder(server, f"swept-{each}")) for each in TRIALS}
    server.run(sweep("swept", "rank: 2, 3, 4"))
    assert {each: record(run_folder(server, f"swept-{each}")) for each in TRIALS} == before
    assert len(table(server, "swept")[0]["trials"]) == 3


@pytest.mark.exhaustive
def test_a_trial_is_the_run_that_train_adapter_makes(server):
    server.run(sweep("alone", "rank: 2"))
    plain = graph("plain", dataset=HELD, adapter={"rank": 2}, train={"steps": 3})
    server.run(plain)
    files = [run_folder(server, name) / f"{name}.safetensors" for name in ("alone-rank_2", "plain")]
    assert weights(files[0]) == weights(files[1])
    # Images or base that are others now are trained again.
    shutil.rmtree(server.data / "output" / "adapter_trainer" / "alone_sweep")
    server.run(changed(sweep("alone", "rank: 2"), SAVE, name="again"))
    assert len(runs(server, "alone-rank_2")) == 1


def test_a_wrong_grid_is_refused(server):
    for grid in ("rank", "rank: 0.5.5, [", "dataset.resolution: 64", "nothing: 1"):
        refused_at_once(server, sweep("wrong", grid), TRAIN)
    assert "held out" in refused(server, sweep("wrong", held={}), TRAIN)
    assert "rank of Adapter Config is 0" in refused(server, sweep("wrong", "rank: 2, 0"), TRAIN)
    assert not runs(server, "wrong-rank_2")
