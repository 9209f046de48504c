"""Names in any script, on their whole way: node, folders, routes, loras, and the next run."""

import json
import urllib.parse

import pytest
from comfyui.graphs import SAVE, SETTINGS, STEPS, TRAIN, graph, panel, run_folder

pytestmark = pytest.mark.comfy

NAME = "кошка 猫 v1.2 👩\u200d🎨"


def test_a_run_and_its_adapter_have_a_name_in_any_script(server):
    from safetensors import safe_open

    nodes = graph(NAME, behind=True, settings={"checkpoint_every": 2, "keep_checkpoints": 2})
    nodes[SAVE]["inputs"]["name"] = ""
    nodes[TRAIN]["inputs"]["keep_in_loras"] = 2
    nodes[SETTINGS]["inputs"]["metadata"] = "full"
    server.run(nodes)
    folder = run_folder(server, NAME)
    with safe_open(folder / f"{NAME}.safetensors", "pt") as file:
        assert file.metadata()["ss_output_name"] == NAME
    # Save Adapter takes the run's name, and every second checkpoint is beside it.
    loras = server.data / "models" / "loras"
    kept = [f"{NAME}.safetensors", *(f"{NAME}_step_{step:06d}.safetensors" for step in (4, 8))]
    assert sorted(path.name for path in loras.iterdir()) == sorted(kept)
    assert (loras / kept[2]).read_bytes() == (
        folder / "checkpoints" / "000008" / "adapter.safetensors"
    ).read_bytes()
    state = panel(server)
    assert state["name"] == NAME
    (note,) = (each for each in state["notes"] if "Load LoRA" in each)
    assert all(name in note for name in kept[1:])
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert record["dropped_checkpoints"] == [2, 4]
    # What is listed, chosen and asked for by that name is found.
    listed = server.get("/object_info/AdapterTrainerLoadRun")
    assert f"{NAME}/v0" in json.dumps(listed, ensure_ascii=False)
    assert kept[1] in json.dumps(server.get("/object_info/LoraLoaderModelOnly"), ensure_ascii=False)
    run = urllib.parse.quote(f"{NAME}/v0")
    assert server.get(f"/adapter_trainer/workflow?run={run}")
    load = {"run": f"{NAME}/v0", "checkpoint": 0}
    again = {"run": ["1", 3], "name": "", "layout": "comfyui", "overwrite": False}
    nodes = {
        "1": {"class_type": "AdapterTrainerLoadRun", "inputs": load},
        "2": {"class_type": "AdapterTrainerSave", "inputs": again},
    }
    # The same file is not written twice.
    (same,) = server.run(nodes)["outputs"]["2"]["text"]
    there = f"{NAME}.safetensors is there already, the same, trained {STEPS} steps"
    assert same == f"{there}: nothing was written."
    assert not (loras / f"{NAME}_2.safetensors").exists()
    # Nothing there is replaced, and which file it is now is told, with its steps.
    nodes["2"]["inputs"] = again = {**again, "dtype": "bf16"}
    said = [server.run(nodes)["outputs"]["2"]["text"]]
    assert (loras / f"{NAME}_2.safetensors").is_file()
    nodes["2"]["inputs"] = {**again, "overwrite": True}
    said += [server.run(nodes)["outputs"]["2"]["text"]]
    there = f" {NAME} was there already: overwrite would replace it."
    files = (f"Wrote {NAME}_2.safetensors", there), (f"Wrote {NAME}.safetensors", "")
    assert said == [[f"{file}, trained {STEPS} steps.{more}"] for file, more in files]


def test_an_adapter_without_a_run_needs_no_name(server):
    server.run(graph("bare", train={"steps": 1}))
    nodes = graph("bare", behind=True, train={"steps": 1})
    del nodes[SAVE]["inputs"]["run"]
    nodes[SAVE]["inputs"] |= {"lora": [TRAIN, 0], "name": ""}
    server.run(nodes)
    assert (server.data / "models" / "loras" / "adapter.safetensors").is_file()
