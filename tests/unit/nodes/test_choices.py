"""What the nodes of a graph make of their choices."""

import math

import pytest
from safetensors.torch import save_file

from tests.fixtures.families import record
from tests.fixtures.native_files import make_native_flux

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
def test_previews_have_the_noise_levels_of_ksampler(choices, family, tmp_path):
    path = str(tmp_path / "a-base.safetensors")
    save_file(record(family).native(), path)
    base = choices.BaseChoice(family, {"path": path}, "auto")
    assert choices.run_config(base).preview.shift == SAMPLED[family]
    turbo = choices.BaseChoice(family, {"path": path, "distilled": "train"}, "auto")
    assert choices.run_config(turbo).preview.shift is None
    adapters = [{"path": "a file", "when": "training"}]
    held = choices.BaseChoice(family, {"path": path, "adapters": adapters}, "auto")
    assert choices.run_config(held).preview.shift is None


@pytest.mark.parametrize("name", ["schnell", "flux-de-distill"])
def test_flux_without_guidance_is_sampled_as_schnell(choices, name, tmp_path):
    path = str(tmp_path / f"{name}.safetensors")
    save_file(make_native_flux(False, 1, 1).state_dict(), path)
    base = choices.BaseChoice("flux", {"path": path}, "auto")
    assert choices.run_config(base).preview.shift == 1.0
