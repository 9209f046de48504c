"""A parameterization means what ComfyUI's classes of model sampling mean."""

import json

import pytest

pytestmark = pytest.mark.comfy

TYPES = {
    "EPS",
    "STABLE_CASCADE",
    "V_PREDICTION",
    "V_PREDICTION, zsnr",
    "V_PREDICTION_EDM",
    "V_PREDICTION_EDM, 0.5",
    "V_PREDICTION_CONTINUOUS",
    "V_PREDICTION_DDPM",
    "EDM",
    "FLOW",
    "FLOW, scaled",
    "FLUX",
    "FLOW_COSMOS",
}


@pytest.fixture(scope="module")
def found(comfy_host):
    return json.loads(comfy_host.run("model_sampling_process.py").splitlines()[-1])


def test_noised_latents_are_what_comfyuis_sampler_holds(found):
    assert found["types"].keys() == TYPES
    for name, differences in found["types"].items():
        assert differences["noised"] <= 1e-8, name


def test_the_target_as_output_is_denoised_to_the_image(found):
    for name, differences in found["types"].items():
        assert differences["denoised"] <= 1e-10, name


def test_a_generation_begins_and_ends_where_comfyuis_euler_does(found):
    for name, differences in found["types"].items():
        if name != "V_PREDICTION_DDPM":
            assert differences["start"] <= 1e-9, name
            # The trainer's sampler sums in float32.
            assert differences["end"] <= 1e-4, name


def test_a_schedule_is_comfyuis_simple_one(found):
    assert len(found["schedules"]) == 12
    assert max(found["schedules"].values()) <= 6e-8
