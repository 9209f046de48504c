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
def test_previews_have_the_noise_levels_of_ksampler(run_config, family, tmp_path):
    path = str(tmp_path / "a-base.safetensors")
    save_file(record(family).native(), path)
    base = run_config.BaseChoice(family, {"path": path}, "auto")
    assert run_config.run_config(base).preview.shift == SAMPLED[family]
    turbo = run_config.BaseChoice(family, {"path": path, "distilled": "train"}, "auto")
    assert run_config.run_config(turbo).preview.shift is None
    adapters = [{"path": "a file", "when": "training"}]
    held = run_config.BaseChoice(family, {"path": path, "adapters": adapters}, "auto")
    assert run_config.run_config(held).preview.shift is None


@pytest.mark.parametrize("name", ["schnell", "flux-de-distill"])
def test_flux_without_guidance_is_sampled_as_schnell(run_config, name, tmp_path):
    path = str(tmp_path / f"{name}.safetensors")
    save_file(make_native_flux(False, 1, 1).state_dict(), path)
    base = run_config.BaseChoice("flux", {"path": path}, "auto")
    assert run_config.run_config(base).preview.shift == 1.0


# Source: files of Comfy-Org, Kijai, QuantStack and lightx2v on Hugging Face.
NAMES = {
    "wan2.2_t2v_high_noise_14B_fp8_scaled": "high noise",
    "Wan2_2-T2V-A14B-LOW_fp8_e4m3fn_scaled_KJ": "low noise",
    "Wan2_2-I2V-A14B_HIGH_bf16": "high noise",
    "Wan2.2-I2V-A14B-LowNoise-Q4_K_M": "low noise",
    "Wan2.2-T2V-A14B-merged": "",
    "wan2.1_t2v_14B_low_vram": "",
    "wan2.2_a14b_flow": "",
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_says_which_of_two_experts_a_file_is(expert_models, name):
    assert expert_models.named_role(f"{name} (WAN21)") == NAMES[name]


def test_an_expert_trains_its_levels_or_those_of_the_settings_among_them(run_config, errors):
    expert = run_config.Expert(begins=False, switch_at=0.5, levels=(0.0, 0.875), config="WAN21_T2V")
    base = run_config.BaseChoice("flux", {"path": "embedded"}, "auto", expert=expert)
    for given, wanted in (({}, (0.0, 0.875)), ({"min": 0.2, "max": 0.5}, (0.2, 0.5))):
        config = run_config.run_config(base, {"training": {"sigma": given}})
        sigma = run_config._of_expert(config, expert).training.sigma
        assert (sigma.min, sigma.max) == wanted
    config = run_config.run_config(base, {"training": {"sigma": {"min": 0.9}}})
    with pytest.raises(errors.ConfigError, match=r"min is 0\.9 .*levels from 0 to 0\.875"):
        run_config._of_expert(config, expert)
