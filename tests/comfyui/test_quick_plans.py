"""Train LoRA (Quick): what it plans, and that its full graph says the same."""

import json

import pytest
import torch
import yaml
from comfyui.clip_files import write_clip
from comfyui.conftest import write_images
from comfyui.test_quick import GOALS, answers
from fixtures.tables import table
from PIL import Image
from safetensors.torch import save_file

from trainer_core.families.registry import embedded_family

pytestmark = pytest.mark.comfy

TURBO = "turbo.safetensors"

ASKED = {
    **{goal: answers(goal) for goal in GOALS},
    "own answers": answers(
        "person",
        "thorough",
        name="mine",
        trigger_word="ohwx",
        kind="lokr",
        steps=7,
        seed=5,
        prompts="a red house\n\na blue house",
        resume=False,
    ),
    "no captions": {**answers("object", trigger_word="ohwx"), "folder": "input/my cät 20%"},
    "masks and repeats": {**answers("style"), "folder": "input/repeated"},
    "brackets": {**answers("style", model="sdxl"), "folder": "input/tagged"},
    "embedded brackets": {**answers("style"), "folder": "input/tagged"},
    "no captions and no word": {**answers("person"), "folder": "input/my cät 20%"},
    "edit without pairs": {**answers("edit"), "folder": "demo/demo-own"},
    "pairs without edit": {**answers("style"), "folder": "demo/demo-edit"},
    "SDXL": answers("person", model="sdxl"),
    "SD1.5": answers("style", "thorough", model="sd15"),
    "a flow model": answers("person", model="lumina2"),
    "no loader": {**answers("person"), "loader": "SomeLoader/"},
    "a loader on Windows": {
        **answers("person"),
        "loader": "UNETLoader/xl\\a.safetensors",
    },
    "clips": {**answers("object", model="wan21"), "folder": "input/clips"},
    "motion": {**answers("motion", model="wan21"), "folder": "input/clips"},
    "motion of images": answers("motion", model="wan21"),
    "clips of images": {**answers("object", model="sdxl"), "folder": "input/clips"},
    "training adapter": answers("object", training_adapter=TURBO),
    "training adapter of a model": answers("object", training_adapter=TURBO, model="lumina2"),
    "absent adapter": answers("object", training_adapter="absent.safetensors"),
    "no such folder": {**answers("style"), "folder": "../../etc"},
    "eyes beside a file": {**answers("style"), "connected": ["vision"]},
    "sound beside a file": {**answers("style"), "connected": ["audio", "other_expert"]},
    "an expert beside a file": answers("style", expert="high noise"),
}


def embedded_width() -> int:
    base = embedded_family().embedded
    assert base is not None
    config = json.loads((base / "transformer" / "config.json").read_text(encoding="utf-8"))
    return config["num_attention_heads"] * config["attention_head_dim"]


@pytest.fixture(scope="module")
def planned(comfy_host, tmp_path_factory):
    request = tmp_path_factory.mktemp("quick") / "request.json"
    write_images(request.parent / "input" / "my cät 20%", captions=(None,) * 3)
    write_images(request.parent / "input" / "tagged", captions=("miku (vocaloid)",) * 3)
    repeated = write_images(request.parent / "input" / "repeated" / "3_cats")
    Image.new("L", (64, 64), 255).save(repeated / "0_mask.png")
    for name, frames in (("a", 70), ("b", 20)):
        write_clip(request.parent / "input" / "clips", 64, frames, 16, name)
    (request.parent / "loras").mkdir()
    width = embedded_width()
    factors = {"down": torch.ones(1, width), "up": torch.zeros(width, 1)}
    layer = "diffusion_model.transformer_blocks.0.attn.to_q.lora_{}.weight"
    tensors = {layer.format(name): tensor for name, tensor in factors.items()}
    save_file(tensors, request.parent / "loras" / TURBO)
    request.write_text(json.dumps(list(ASKED.values())), encoding="utf-8")
    comfy_host.run("quick_process.py", request)
    found = json.loads(request.with_suffix(".answers").read_text(encoding="utf-8"))
    return dict(zip((*ASKED, "lost settings", "headers"), found, strict=True))


MODELS = ("SDXL", "SD1.5", "a flow model")


@pytest.mark.parametrize(
    "case",
    [
        *GOALS,
        "own answers",
        "no captions",
        "masks and repeats",
        "clips",
        "motion",
        *MODELS,
        "training adapter",
    ],
)
def test_the_full_graph_says_what_the_quick_node_trains(planned, case):
    plan = planned[case]
    assert plan["silent"] == []
    assert plan["graph"] == plan["quick"]


def test_previews_of_captions_read_brackets_as_they_are_trained(planned):
    for case, prompt in {
        "brackets": r"miku \(vocaloid\)",
        "embedded brackets": "miku (vocaloid)",
    }.items():
        assert yaml.safe_load(planned[case]["quick"])["preview"]["prompts"][0] == prompt


def test_a_model_of_the_graph_has_the_figures_of_its_kind(planned):
    sdxl, small, flow = (yaml.safe_load(planned[name]["quick"]) for name in MODELS)
    found = [
        (run["training"]["sigma"]["density"], run["preview"]["guidance"])
        for run in (sdxl, small, flow)
    ]
    assert found == [("auto", 7.0), ("auto", 7.0), ("logit_normal", 4.0)]
    assert (sdxl["family"], sdxl["dataset"]["resolution"]) == ("graph_model", 512)
    training = [run["training"] for run in (sdxl, small, flow)]
    assert [each["batch_size"] for each in training] == [2, 2, 1]
    assert [each["loss"]["weighting"] for each in training] == ["min_snr", "min_snr", "none"]
    assert [each["optimizer"]["learning_rate"] for each in training] == [4e-4, 1e-4, 2e-4]
    assert small["dataset"]["resolution"] == small["preview"]["width"] == 512
    assert rows(planned["SDXL"])["base"]["why"] == "Connected to model."
    # What is read of a file before it is loaded is what the MODEL says.
    headers = {name: set(found) - {"BASE"} for name, found in planned["headers"].items()}
    assert headers == {"sd15": {"SD15", "discrete", "eps"}, "sdxl": {"SDXL", "discrete", "eps"}}


def test_settings_of_datasets_and_cache_come_back_from_a_graph_as_they_were(planned):
    assert planned["lost settings"] == []


def test_what_was_asked_for_is_trained(planned):
    config = yaml.safe_load(planned["own answers"]["quick"])
    assert config["output"]["name"] == "mine"
    assert (config["training"]["steps"], config["seed"], config["resume"]) == (7, 5, "none")
    assert config["training"]["schedule"]["warmup_steps"] < 7
    assert config["adapter"]["kind"] == "lokr"
    assert config["dataset"]["trigger_word"] == "ohwx"
    assert config["preview"]["prompts"] == ["a red house", "a blue house"]


def test_a_training_adapter_is_part_of_the_base_while_it_trains(planned):
    (adapter,) = yaml.safe_load(planned["training adapter"]["quick"])["base"]["adapters"]
    assert (adapter["path"].rpartition("/")[2], adapter["when"]) == (TURBO, "training")
    row = rows(planned["training adapter"])["training adapter"]
    assert row["value"] == TURBO
    assert "without it" in row["why"]


@pytest.mark.parametrize(("case", "found", "remedy"), table(__file__, "quick refusals"))
def test_what_does_not_fit_is_told_in_three_parts(planned, case, found, remedy):
    error = planned[case]["error"]
    assert found in error[0]
    assert error[1]
    assert remedy in error[2]


def rows(plan):
    return {row["setting"]: row for row in plan["choices"]}


def test_what_was_chosen_is_told_with_reasons(planned):
    own = rows(planned["own answers"])
    found = [own[name]["value"] for name in ("name", "images", "steps")]
    assert found == ["mine", "12", "7"]
    assert all(row["why"].endswith(".") for row in own.values())
    assert planned["person"]["choices"][0]["value"] == "demo-own"
    # A trigger word stands for captions that are missing.
    dataset = yaml.safe_load(planned["no captions"]["quick"])["dataset"]
    assert (dataset["missing_caption"], dataset["trigger_word"]) == ("empty", "ohwx")
    assert "trigger word" in rows(planned["no captions"])["captions"]["why"]
    clips = rows(planned["clips"])
    assert "images" not in clips
    assert clips["parts of clips"]["value"] == "3, of 17 to 33 frames"
    assert "2 clip(s) in input/clips, at 16 frames a second" in clips["parts of clips"]["why"]
    # A movement is trained as a whole, at a smaller size, and steps go by its parts.
    motion = rows(planned["motion"])
    assert motion["parts of clips"]["value"] == "2, of 17 to 69 frames"
    assert (motion["frames"]["value"], motion["resolution"]["value"]) == ("81", "256")
    steps = [int(each["steps"]["value"]) for each in (motion, clips)]
    assert steps[0] < steps[1]
    assert "a red bar" in yaml.safe_load(planned["clips"]["quick"])["preview"]["prompts"]
    told = rows(planned["masks and repeats"])
    found = [told[name]["value"] for name in ("images", "masks", "images of an epoch")]
    assert found == ["4", "1 of 4", "12"]


def test_the_edit_shows_its_own_pairs(planned):
    preview = yaml.safe_load(planned["edit"]["graph"])["preview"]
    assert len(preview["controls"]) == len(preview["prompts"]) == 2
    assert all("control_images" in path for paths in preview["controls"] for path in paths)
