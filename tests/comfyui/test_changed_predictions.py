"""What nodes put on a MODEL: trained as KSampler samples it, or refused by name."""

import pytest
from comfyui.selection import selected

pytestmark = pytest.mark.comfy

COMPILED = ("compiled blocks", "compiled and loaded")
TRAINED = (
    *("plain", "detached", "8 bits", "same for all", "first level of one", "torch's kernel"),
    *COMPILED,
)
REFUSED = {
    "weakened": ("predicts something else", "weakened"),
    "kept keys": ("on the image beside it or on the pass before", "KeptKeys"),
    "first level": ("on the image beside it or on the pass before", "by_first_level"),
    "detached output": ("adapted layers got no gradient in the first step (", "attn1_output_patch"),
    "other count": ("cannot predict (", "OtherCount"),
    "another CLIP": ("cannot predict (", "no patch"),
}
MODELS = ("sdxl", "flux", "lumina2", "wan21")
EVERYWHERE = ("plain", "detached", "8 bits", "torch's kernel", "weakened", *COMPILED)
"""What needs no attention patch, which only some networks call."""


def is_quick(model, change):
    if model == "flux":
        return change in {"detached", "weakened"}
    return model == "sdxl" and change != "compiled and loaded"


def cases(changes):
    return [
        pytest.param(model, change, marks=() if is_quick(model, change) else pytest.mark.exhaustive)
        for model in MODELS
        for change in changes
        if model == "sdxl" or change in EVERYWHERE
        # Lumina scales what attention gives by itself.
        if (model, change) != ("lumina2", "weakened")
    ]


@pytest.fixture(scope="module")
def found(request, comfy_host, tmp_path_factory):
    folder = tmp_path_factory.mktemp("changed")
    wanted = {*selected(request, "model", "change")}
    wanted |= {(model, "plain") for model, _ in wanted}
    return comfy_host.results("changed_prediction_process.py", folder, jobs=sorted(wanted))


@pytest.mark.parametrize(("model", "change"), cases(TRAINED))
def test_every_layer_learns_where_a_patch_only_makes_attention_faster(model, change, found):
    counts, plain = found[f"{model} {change}"], found[f"{model} plain"]
    assert "error" not in counts, counts
    assert counts == plain
    # Nothing reads a part of what Lumina's last refiner and Wan's time embedding give.
    assert counts["learning"] >= 0.9 * counts["layers"] > 0


@pytest.mark.parametrize(("model", "change"), cases(REFUSED))
def test_a_patch_that_would_train_something_else_is_named(model, change, found):
    reason, name = REFUSED[change]
    error = found[f"{model} {change}"]["error"]
    assert reason in error[0]
    assert name in error[0]
    assert error[1]
    assert "onnect the MODEL from before" in error[2]


def test_a_vae_of_another_model_is_named(found):
    *wrong, right = found["vaes"]
    assert all("at the VAE input" in each[0] and "a VAE of" in each[1] for each in wrong)
    assert right is None


def test_an_image_of_one_tile_is_encoded_as_vae_encode_tiled_does(found):
    """ComfyUI encodes in tiles by itself where memory runs out; more tiles than one differ."""
    for one, many in found["tiled"]:
        assert one < 1e-5 < many
