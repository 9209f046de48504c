"""The tiny MODELs of the tests: ComfyUI's own nodes take them, and each of their inputs counts."""

from __future__ import annotations

import json

import pytest
from comfyui.tiny_models.sizes import TINY

pytestmark = pytest.mark.comfy

LEAST_CHANGE = 1e-3
"""Of an image by another text, as a share of its size; rounding is 1e-6."""

LEAST = {"bf16": 1e-3, "fp16 cast": 1e-5, "bf16 cast": 1e-4, "fp8 cast": 1e-3}
"""How far a MODEL in another precision has to be from one in float32: else it is none."""


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    """What one process found for every MODEL."""
    folder = tmp_path_factory.mktemp("tiny_models")
    comfy_host.run("tiny_models_process.py", folder)
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TINY)
def test_the_sampler_draws_finite_latents_of_the_format(name, found):
    facts = found[name]
    frames = [1] if facts["dimensions"] == 3 else []
    side = facts["image"] // facts["downscale"]
    assert facts["latent"] == [1, facts["channels"], *frames, side, side]
    assert facts["shape"] == facts["latent"]
    assert facts["picture"] == [1, facts["image"], facts["image"], 3]
    assert facts["finite"]


@pytest.mark.parametrize("name", TINY)
def test_seed_and_text_change_what_is_drawn(name, found):
    facts = found[name]
    assert facts["again"] == 0
    assert facts["seed"] > 0.5
    assert facts["text"] > LEAST_CHANGE
    assert facts["long"] > LEAST_CHANGE


@pytest.mark.parametrize("name", TINY)
def test_texts_differ_in_length_where_the_encoder_allows(name, found):
    short, _, long = found[name]["lengths"]
    # FLUX.1 fills texts up to 256 tokens.
    assert long > short or (TINY[name].text, short) == ("flux", 256)


@pytest.mark.parametrize("name", TINY)
def test_the_weights_are_those_of_name_and_seed(name, found):
    before, after, again = found[name]["hash"]
    assert before == after == again != found[name]["other"]


@pytest.mark.parametrize("name", TINY)
def test_the_weights_are_as_comfyuis_executor_makes_them(name, found):
    assert found[name]["inference"]


def test_each_kind_of_prediction_is_there(found):
    kinds = {facts["model_type"] for facts in found.values()}
    assert kinds == {
        "EPS",
        "V_PREDICTION",
        "V_PREDICTION_EDM",
        "EDM",
        "FLOW",
        "FLUX",
        "FLOW_COSMOS",
    }


@pytest.mark.parametrize("precision", LEAST)
def test_a_model_in_another_precision_draws_nearly_the_same(precision, found):
    changes = {
        name: facts["precisions"][precision]
        for name, facts in found.items()
        if "precisions" in facts
    }
    assert len(changes) >= 3
    assert all(LEAST[precision] < change < 0.5 for change in changes.values()), changes
