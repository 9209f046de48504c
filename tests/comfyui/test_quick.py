"""Train LoRA (Quick) on a server: what it asks for and refuses, and one real run."""

import pytest
from comfyui.conftest import write_images
from comfyui.graphs import cached_nodes, panel, run_folder

from trainer_core.families import presets

pytestmark = pytest.mark.comfy

GOALS = ("person", "style", "object", "edit")


def answers(goal: str, quality: str = "fast", **others):
    folder = "demo/demo-edit" if goal == "edit" else "demo/demo-own"
    return {"folder": folder, "base": "embedded", "goal": goal, "quality": quality, **others}


def test_the_node_asks_for_what_presets_know(server):
    asked = server.get("/object_info/AdapterTrainerQuick")["AdapterTrainerQuick"]["input"]
    assert tuple(asked["required"]["goal"][1]["options"]) == (*presets.GOALS, *presets.CLIP_GOALS)
    assert presets.GOALS == GOALS
    assert tuple(asked["required"]["quality"][1]["options"]) == presets.QUALITIES
    assert len(asked["required"]) <= 8
    advanced = {name for name, (_, facts) in asked["optional"].items() if facts.get("advanced")}
    settings = {"prompts", "steps", "seed", "resume", "training_adapter"}
    assert advanced == {*settings, "expert", "switch_at"}


NODE = "51"
SHORT = {"steps": 4, "prompts": "a red diamond", "kind": "lora"}


def prompt(**inputs):
    given = {"name": "", "trigger_word": "", "kind": "auto", **answers("style"), **inputs}
    return {NODE: {"class_type": "AdapterTrainerQuick", "inputs": given}}


def refusal(server, **inputs) -> str:
    status, answer = server.post("/prompt", {"prompt": prompt(**inputs)})
    assert status == 400
    return answer["node_errors"][NODE]["errors"][0]["details"]


def test_a_folder_and_a_few_answers_train_an_adapter(server):
    nodes = prompt(folder="datasets/four", trigger_word="ohwx", **SHORT)
    server.run(nodes)
    state = panel(server, NODE)
    assert (state["status"], state["step"], state["name"]) == ("done", 4, "four")
    assert state["choices"][1] == {"setting": "images", "value": "4", "why": "In datasets/four."}
    folder = run_folder(server, "four")
    assert (folder / "four.safetensors").is_file()
    assert NODE in cached_nodes(server.run(nodes))


def test_what_cannot_be_trained_is_refused_when_it_is_queued(server):
    (server.data / "models" / "diffusion_models").mkdir(parents=True, exist_ok=True)
    file = server.data / "models" / "diffusion_models" / "large.safetensors"
    file.write_bytes(b"0" * 64)
    told = refusal(server, base="diffusion_models/large.safetensors")
    assert "nothing is connected to CLIP and VAE" in told
    images = write_images(server.data / "input" / "no-captions", captions=(None,) * 2)
    assert "no image of input/no-captions has a caption" in refusal(
        server, folder="input/no-captions"
    )
    (images / "0.txt").write_text("sleeping", encoding="utf-8")
    for word, how in (("", "type a trigger word"), ("ohwx", "press Use “ohwx” there")):
        told = refusal(server, folder="input/no-captions", goal="object", trigger_word=word)
        assert "1 of 2 images in input/no-captions have no caption: 1.png" in told
        assert f"Or {how}" in told
    assert "Found: name is a/b" in refusal(server, name="a/b")
