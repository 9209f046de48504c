"""The tiny MODELs of the tests: ComfyUI's own nodes take them, and each of their inputs counts."""

from __future__ import annotations

import json

import pytest
from comfyui.tiny_models.sizes import TINY

# Whoever adds a MODEL runs it; what uses them notices the rest.
pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

LEAST_CHANGE = 1e-3
"""Of an image by another text, as a share of its size; rounding is 1e-6."""

LEAST = {"bf16": 1e-3, "fp16 cast": 1e-5, "bf16 cast": 1e-4}
LEAST |= dict.fromkeys(("fp8 cast", "fp8 scaled", "int8"), 1e-3)
"""How far a MODEL in another precision has to be from one in float32: else it is none."""


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    """What a process of ComfyUI's found for each MODEL."""
    folder = tmp_path_factory.mktemp("tiny_models")
    comfy_host.run("tiny_models_process.py", folder)
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", TINY)
def test_a_sampler_draws_what_seed_and_text_say(name, found):
    facts = found[name]
    frames = [1] if facts["dimensions"] == 3 else []
    side = facts["image"] // facts["downscale"]
    assert facts["latent"] == facts["shape"] == [1, facts["channels"], *frames, side, side]
    assert facts["picture"] == [1, facts["image"], facts["image"], 3]
    assert facts["finite"]
    assert facts["again"] == 0
    assert facts["seed"] > 0.5
    assert min(facts["text"], facts["long"]) > LEAST_CHANGE
    short, _, long = facts["lengths"]
    # FLUX.1 fills texts up to 256 tokens.
    assert long > short or (TINY[name].text, short) == ("flux", 256)
    before, after = facts["hash"]
    assert before == after, "sampling changes the weights"
    assert facts["inference"], "the weights are not as ComfyUI's executor makes them"


def test_each_kind_of_prediction_is_there(found):
    kinds = {facts["model_type"] for facts in found.values()}
    discrete = {"EPS", "V_PREDICTION", "V_PREDICTION_EDM", "EDM"}
    assert kinds == discrete | {"FLOW", "FLUX", "FLOW_COSMOS"}


def test_a_model_in_another_precision_draws_nearly_the_same(found):
    closer = [facts for facts in found.values() if "precisions" in facts]
    assert len(closer) >= 3
    for facts in closer:
        same, other = facts["seeds"]
        assert same == facts["hash"][0] != other
        assert facts["precisions"]["fp32"] == 0
        for precision, least in LEAST.items():
            assert least < facts["precisions"][precision] < 0.5, precision
