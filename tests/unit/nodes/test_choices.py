"""What the nodes of a graph make of their choices."""

import math

import pytest

# Source: ComfyUI 0.33, comfy/supported_models.py, and its workflows.
SAMPLED = {
    "flux": math.exp(1.15),
    "flux2": math.exp(2.02),
    "z_image": 3.0,
    "chroma": 1.0,
    "krea2": None,
    "qwen_image_21": None,
}


@pytest.mark.parametrize("family", SAMPLED)
def test_previews_have_the_noise_levels_of_ksampler(choices, family):
    base = choices.BaseChoice(family, {"path": "a base"}, "auto")
    assert choices.run_config(base).preview.shift == SAMPLED[family]
    turbo = choices.BaseChoice(family, {"path": "a base", "distilled": "train"}, "auto")
    assert choices.run_config(turbo).preview.shift is None
    adapters = [{"path": "a file", "when": "training"}]
    held = choices.BaseChoice(family, {"path": "a base", "adapters": adapters}, "auto")
    assert choices.run_config(held).preview.shift is None


def test_the_embedded_base_is_sampled_as_its_scheduler_says(choices):
    base = choices.BaseChoice("qwen_image", {"path": "embedded"}, "auto")
    assert choices.run_config(base).preview.shift is None
