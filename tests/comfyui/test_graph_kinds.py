"""Each kind of adapter through the whole graph, and out of it: files, run files, runs on disk."""

import io
import json
import urllib.parse

import numpy
import pytest
import yaml
from comfyui.graphs import (
    PREVIEW,
    SETTINGS,
    SHOW,
    STEPS,
    TRAIN,
    adapter_kind,
    graph,
    loaded_run,
    node,
    run_folder,
    weights,
)
from fixtures.combinations import some
from PIL import Image

pytestmark = pytest.mark.comfy

RUN_FILE, COPIED, DIFFUSERS, BACK, PLAIN, SHOW_PLAIN, TRAINED, COMPARE, CELLS = map(
    str, range(20, 29)
)
KINDS = {
    "lora": adapter_kind("lora"),
    "loha": adapter_kind("loha"),
    "lokr": adapter_kind("lokr", factor=4, full_matrix=True, decompose_both=False),
}
RATE = 0.05


def everything(kind):
    """All nodes that may stand behind Train Adapter, for a kind."""
    name = f"kind-{kind}"
    nodes = graph(
        name,
        previews=True,
        behind=True,
        adapter=KINDS[kind],
        settings={"preview_every": 4},
        train={"learning_rate": RATE},
    )
    for saving, copied in ((RUN_FILE, False), (COPIED, True)):
        given = {key: nodes[TRAIN]["inputs"][key] for key in ("base", "cache", "adapter")}
        given |= {"settings": [SETTINGS, 0], "steps": STEPS, "learning_rate": RATE, "seed": 0}
        given |= {"name": f"{name}-copied" if copied else name, "copy_cache": copied}
        nodes[saving] = node("AdapterTrainerSaveRunFile", **given)
    nodes[DIFFUSERS] = convert(name=f"{name}/diffusers", layout="diffusers", lora=[TRAIN, 0])
    nodes[BACK] = convert(name=f"{name}/back", layout="comfyui", lora=[DIFFUSERS, 0])
    drawn = {**nodes[PREVIEW]["inputs"]}
    del drawn["lora"]
    nodes[PLAIN] = node("AdapterTrainerPreview", **drawn)
    nodes[SHOW_PLAIN] = node("PreviewImage", images=[PLAIN, 0])
    nodes[TRAINED] = node("PreviewImage", images=[TRAIN, 2])
    del drawn["strength"]
    compared = {"run": [TRAIN, 3], "checkpoints": "all", "strengths": "0, 1"}
    nodes[COMPARE] = node("AdapterTrainerCompare", **drawn, **compared)
    nodes[CELLS] = node("PreviewImage", images=[COMPARE, 1])
    return nodes


def convert(**inputs):
    usual = {"file": "none", "family": "auto", "overwrite": False}
    return node("AdapterTrainerConvert", **usual, **inputs)


def image(server, result, shown):
    """The pixels that a node showed."""
    (place,) = result["outputs"][shown]["images"]
    content = server.fetch(f"/view?{urllib.parse.urlencode(place)}")
    return numpy.asarray(Image.open(io.BytesIO(content)))


@pytest.fixture(scope="module", params=some(KINDS, "lokr"))
def done(request, shared_server):
    """Kind, result and server of a whole graph."""
    return request.param, shared_server.run(everything(request.param)), shared_server


def loras(server):
    return server.data / "models" / "loras"


def test_the_adapter_changes_the_image(done):
    _, result, server = done
    shown = [image(server, result, at).astype(float) for at in (SHOW, SHOW_PLAIN, TRAINED)]
    assert {each.shape for each in shown} == {(32, 32, 3)}
    adapted, plain, trained = shown
    # The last preview of the run and Preview Adapter draw the same.
    assert abs(adapted - trained).max() <= 1
    assert abs(adapted - plain).mean() > 0.5


def test_the_checkpoints_are_compared_with_the_base(done):
    kind, result, server = done
    folder = run_folder(server, f"kind-{kind}") / "comparisons" / "000"
    record = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    steps = sorted({each["step"] for each in record["columns"][1:]})
    assert steps[-1] == STEPS
    assert len(record["columns"]) == 1 + 2 * len(steps)
    (row,) = record["rows"]
    off, on = row["changes"][1::2], row["changes"][2::2]
    assert max(off) == 0 < on[-1]
    assert record["inert"] == []
    with Image.open(folder / row["images"][-1]) as last:
        adapted = numpy.asarray(last).astype(float)
    assert abs(adapted - image(server, result, SHOW).astype(float)).max() <= 1
    with Image.open(folder / "grid.png") as grid:
        assert grid.width > 3 * 32
    assert len(result["outputs"][CELLS]["images"]) == len(record["columns"])
    shown = result["outputs"][COMPARE]
    assert "percent" in shown["text"][0]
    (place,) = shown["images"]
    seen = server.fetch(f"/view?{urllib.parse.urlencode(place)}")
    assert seen == (folder / "grid.png").read_bytes()


def test_the_saved_file_is_the_trained_adapter_and_load_lora_lists_it(done):
    kind, _, server = done
    trained = weights(run_folder(server, f"kind-{kind}") / f"kind-{kind}.safetensors")
    assert weights(loras(server) / f"kind-{kind}.safetensors") == trained
    word = {"lora": "lora_", "loha": "hada_", "lokr": "lokr_"}[kind]
    assert all(word in name or name.endswith("alpha") for name in trained)
    listed = server.get("/object_info/LoraLoader")["LoraLoader"]["input"]["required"]["lora_name"]
    options = listed[0] if isinstance(listed[0], list) else listed[1]["options"]
    assert f"kind-{kind}.safetensors" in options
    assert f"kind-{kind}/back.safetensors" in options
    assert "kind-none.safetensors" not in options


def deltas(path):
    """What an adapter file adds to each layer, by our own reader."""
    from trainer_core.adapter_files.read.read_adapter import read_adapter
    from trainer_core.adapters.kinds.registry import layer_delta
    from trainer_core.families.registry import get_family

    family = get_family("qwen_image")
    state = read_adapter(path, family.layers.key_map)
    return {name: layer_delta(state.kind, layer) for name, layer in state.layers.items()}


def test_converting_there_and_back_keeps_what_the_adapter_adds(done):
    kind, _, server = done
    trained = deltas(loras(server) / f"kind-{kind}.safetensors")
    for name in ("diffusers", "back"):
        other = deltas(loras(server) / f"kind-{kind}" / f"{name}.safetensors")
        assert other.keys() == trained.keys()
        for layer, delta in trained.items():
            assert (other[layer] - delta).norm() <= 1e-5 * delta.norm()
    names = [
        loras(server) / f"kind-{kind}" / f"{name}.safetensors" for name in ("diffusers", "back")
    ]
    assert weights(names[0]).keys() != weights(names[1]).keys()
    assert min(delta.norm() for delta in trained.values()) > 0


def written(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_the_run_file_says_what_was_trained(done):
    kind, _, server = done
    folder = server.data / "output" / "adapter_trainer" / f"kind-{kind}"
    saved, trained = written(folder / "run-file" / "run.yaml"), written(folder / "v0" / "run.yaml")
    assert saved["adapter"]["kind"] == kind
    for section in ("family", "base", "dataset", "cache", "adapter", "training", "output", "seed"):
        assert saved[section] == trained[section], section
    adapter = trained["adapter"]
    assert (adapter["rank"], adapter["targets"]) == (4, "attention")
    expected = (4, True) if kind == "lokr" else (2, False)
    assert (adapter["factor"], adapter["full_matrix"]) == expected


def load_run(server, run, checkpoint=0, save="loaded"):
    """Load a run and save it; gives the result and the saved file's weights."""
    nodes = loaded_run(run, checkpoint, save)
    nodes["4"] = node("LossGraphNode", loss=["1", 1], filename_prefix="x")
    result = server.run(nodes)
    return result, weights(loras(server) / f"{save}.safetensors")


def test_a_finished_run_is_loaded(done):
    kind, _, server = done
    name = f"kind-{kind}"
    result, loaded = load_run(server, f"{name}/v0")
    assert loaded == weights(run_folder(server, name) / f"{name}.safetensors")
    assert image(server, result, "2").shape == (32, 32, 3)
    assert image(server, result, "4").shape == (520, 840, 3)
    listed = server.get("/object_info/AdapterTrainerLoadRun")["AdapterTrainerLoadRun"]
    assert f"{name}/v0" in listed["input"]["required"]["run"][1]["options"]
