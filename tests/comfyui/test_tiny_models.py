"""The tiny MODELs of the tests: ComfyUI's own nodes take them, and each of their inputs counts."""

from __future__ import annotations

import json

import pytest
from comfyui.graphs import cached_nodes
from comfyui.tiny_models.sizes import TINY

pytestmark = pytest.mark.comfy

LEAST_CHANGE = 1e-3
"""Of an image by another text, as a share of its size; rounding is 1e-6."""

LEAST = {"bf16": 1e-3, "fp16 cast": 1e-5, "bf16 cast": 1e-4}
LEAST |= dict.fromkeys(("fp8 cast", "fp8 scaled", "int8"), 1e-3)
"""How far a MODEL in another precision has to be from one in float32: else it is none."""


QUICK = ("sd15", "sdxl", "sdxl_v_zsnr", "flux", "z_image", "qwen_image", "wan21", "ltxv", "krea2")
QUICK += ("anima", "cosmos_predict2", "hidream")
"""Those that are looked at in every run of the tests."""

EVERY = [pytest.param(name, marks=() if name in QUICK else pytest.mark.exhaustive) for name in TINY]


@pytest.fixture(scope="module")
def sampled(comfy_host, tmp_path_factory):
    """What a process of ComfyUI's found for each of the named MODELs."""

    def run(*names):
        folder = tmp_path_factory.mktemp("tiny_models")
        comfy_host.run("tiny_models_process.py", folder, *names)
        return json.loads((folder / "results.json").read_text(encoding="utf-8"))

    return run


@pytest.fixture(scope="module")
def quick(sampled):
    """What was found for those of every run."""
    return sampled(*QUICK)


@pytest.fixture(scope="module")
def slow(sampled):
    """What was found for the others."""
    return sampled(*(name for name in TINY if name not in QUICK))


@pytest.fixture
def facts(name, request):
    """What was found for one."""
    return request.getfixturevalue("quick" if name in QUICK else "slow")[name]


@pytest.mark.parametrize("name", EVERY)
def test_the_sampler_draws_finite_latents_of_the_format(name, facts):
    frames = [1] if facts["dimensions"] == 3 else []
    side = facts["image"] // facts["downscale"]
    assert facts["latent"] == [1, facts["channels"], *frames, side, side]
    assert facts["shape"] == facts["latent"]
    assert facts["picture"] == [1, facts["image"], facts["image"], 3]
    assert facts["finite"]


@pytest.mark.parametrize("name", EVERY)
def test_seed_and_text_change_what_is_drawn(name, facts):
    assert facts["again"] == 0
    assert facts["seed"] > 0.5
    assert facts["text"] > LEAST_CHANGE
    assert facts["long"] > LEAST_CHANGE


@pytest.mark.parametrize("name", EVERY)
def test_texts_differ_in_length_where_the_encoder_allows(name, facts):
    short, _, long = facts["lengths"]
    # FLUX.1 fills texts up to 256 tokens.
    assert long > short or (TINY[name].text, short) == ("flux", 256)


@pytest.mark.parametrize("name", EVERY)
def test_sampling_leaves_the_weights(name, facts):
    before, after = facts["hash"]
    assert before == after


def test_the_weights_are_those_of_name_and_seed(quick):
    made = {name: facts for name, facts in quick.items() if "seeds" in facts}
    assert len(made) >= 3
    for facts in made.values():
        same, other = facts["seeds"]
        assert same == facts["hash"][0] != other
    assert len({facts["hash"][0] for facts in made.values()}) == len(made)


@pytest.mark.parametrize("name", EVERY)
def test_the_weights_are_as_comfyuis_executor_makes_them(name, facts):
    assert facts["inference"]


@pytest.mark.exhaustive
def test_each_kind_of_prediction_is_there(quick, slow):
    kinds = {facts["model_type"] for facts in (quick | slow).values()}
    discrete = {"EPS", "V_PREDICTION", "V_PREDICTION_EDM", "EDM"}
    assert kinds == discrete | {"FLOW", "FLUX", "FLOW_COSMOS"}


@pytest.mark.parametrize("precision", LEAST)
def test_a_model_in_another_precision_draws_nearly_the_same(precision, quick):
    changes = {
        name: facts["precisions"][precision]
        for name, facts in quick.items()
        if "precisions" in facts
    }
    assert len(changes) >= 3
    assert all(
        facts["precisions"]["fp32"] == 0 for facts in quick.values() if "precisions" in facts
    )
    assert all(LEAST[precision] < change < 0.5 for change in changes.values()), changes


def drawing(name, **changes):
    """A graph that draws with a tiny MODEL, between two looks at its weights."""
    texts = {
        text: {"class_type": "CLIPTextEncode", "inputs": {"clip": ["tiny", 1], "text": text}}
        for text in ("a cat", "a dog")
    }
    sampling = {"sampler_name": "euler", "scheduler": "simple", "steps": 2, "cfg": 2.0, "seed": 1}
    links = {"model": ["tiny", 0], "positive": ["a cat", 0], "negative": ["a dog", 0]}
    sampling |= links | {"latent_image": ["encoded", 0], "denoise": 1.0}
    encoding = {"pixels": ["image", 0], "vae": ["tiny", 2]}
    decoding = {"samples": ["sampled", 0], "vae": ["tiny", 2]}
    tiny = {"model": name, "seed": 0, "precision": "fp32"} | changes
    return texts | {
        "tiny": {"class_type": "TinyModelForTests", "inputs": tiny},
        "image": {"class_type": "LoadImage", "inputs": {"image": "loose/0.png"}},
        "encoded": {"class_type": "VAEEncode", "inputs": encoding},
        "sampled": {"class_type": "KSampler", "inputs": sampling},
        "decoded": {"class_type": "VAEDecode", "inputs": decoding},
        "shown": {"class_type": "PreviewImage", "inputs": {"images": ["decoded", 0]}},
        "before": {"class_type": "WeightsHash", "inputs": {"model": ["tiny", 0]}},
        "after": {
            "class_type": "WeightsHash",
            "inputs": {"model": ["tiny", 0], "after": ["decoded", 0]},
        },
    }


def test_a_graph_draws_and_says_the_hash_of_the_weights(server):
    outputs = server.run(drawing("sdxl"))["outputs"]
    assert outputs["shown"]["images"]
    (before,), (after,) = outputs["before"]["text"], outputs["after"]["text"]
    assert before == after
    assert len(bytes.fromhex(before)) == 32
    # Asked again, it looks again, and only it; other weights have another hash.
    again = server.run(drawing("sdxl"))
    assert again["outputs"]["after"]["text"] == [before]
    assert cached_nodes(again) >= {"tiny", "sampled"}
    assert not {"before", "after"} & cached_nodes(again)
    assert server.run(drawing("sdxl", seed=1))["outputs"]["after"]["text"] != [before]
