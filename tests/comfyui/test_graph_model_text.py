"""CLIP-L and CLIP-G of the graph, trained beside tiny MODELs of Stable Diffusion 1.5 and XL."""

import pytest

from trainer_core.adapter_files.names.text_encoder_names import comfyui_names, kohya_name, text_path

pytestmark = pytest.mark.comfy

LAYERS = {"sd15": 2 * 6, "sdxl": (2 + 3) * 6}
"""Adapted layers: of SDXL's CLIP-L the last one is read by nobody."""

SKIPPED_LAYERS = {"sd15": 1 * 6, "sdxl": (1 + 3) * 6}
PREFIXES = {"sd15": ("lora_te_",), "sdxl": ("lora_te1_", "lora_te2_")}


def run_process(comfy_host, tmp_path_factory, words):
    folder = tmp_path_factory.mktemp("graph_text")
    return comfy_host.results("graph_text_process.py", folder, jobs=words)


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    """SDXL's two text encoders."""
    return run_process(comfy_host, tmp_path_factory, {"sdxl": ["encoded", "trained"]})


def check_encoded(name, facts):
    skipped = facts["skipped"]
    assert facts["differing"] == skipped["differing"] == 0, "a step encodes as CLIPTextEncode does"
    assert facts["clip_kept"]
    # Every adapted layer has a gradient, and it is right.
    assert facts["idle"] == skipped["idle"] == []
    assert len(facts["names"]) == LAYERS[name]
    assert len(skipped["names"]) == SKIPPED_LAYERS[name]
    assert facts["gradient_error"] < 1e-3
    assert skipped["gradient_error"] < 1e-3
    known = set(facts["clip_names"])
    for path in facts["names"]:
        assert known.issuperset(comfyui_names(path))
        assert {text_path(each) for each in comfyui_names(path)} == {path}
        assert kohya_name(path) in known


def check_trained(name, facts):
    assert facts["kept"]
    plain, kohya, diffusers = (f"{name}{each}.safetensors" for each in ("", "_kohya", "_diffusers"))
    for file in (plain, kohya):
        assert facts["unread"][file] == []
        count, *keys = facts["files"][file]
        assert count == 3 * LAYERS[name]
        assert [
            key.startswith(each) for key, each in zip(keys, (PREFIXES[name] * 2)[:2], strict=True)
        ] == [True, True]
    # ComfyUI does not read what Diffusers calls the layers of a UNet; it does of the texts.
    assert not [line for line in facts["unread"][diffusers] if "text_encoder" in line]
    assert set(facts["patches"].values()) == {LAYERS[name]}
    assert facts["sample_error"] < 1e-5
    assert facts["off_error"] < 1e-5
    assert facts["clips_share"] > 1e-3


def test_a_step_encodes_as_clip_text_encode_does(found):
    check_encoded("sdxl", found["sdxl"])


def test_load_lora_draws_the_runs_preview(found):
    check_trained("sdxl", found["sdxl"])


def test_other_clips_are_refused(found):
    for kind, (told, expected, remedy) in found["refused"].items():
        assert ("no CLIP" in told) == (kind == "none")
        assert "SDXL" in expected
        assert "Load Training Base" in remedy


@pytest.mark.exhaustive
def test_one_text_encoder_is_trained_and_drawn_alike(comfy_host, tmp_path_factory):
    whole = run_process(comfy_host, tmp_path_factory, {"sd15": ["encoded", "trained"]})
    check_encoded("sd15", whole["sd15"])
    check_trained("sd15", whole["sd15"])
