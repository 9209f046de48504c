"""Our step beside ComfyUI's own Train LoRA: the same loss; of the gradients, which are right.

What is right is told by finite differences of the loss in float64 (`train_lora_loss_process`).
"""

import pytest

pytestmark = pytest.mark.comfy

DEPTHS = {"sdxl": [0, 1], "flux": [0, 1]}
"""Depths of gradient checkpointing at which ComfyUI's step is made: none, and its default."""

OURS = ("ours", "ours, checkpointed")
NEAR = 1e-4


@pytest.fixture(scope="module")
def both(comfy_host, tmp_path_factory):
    """What a process of ComfyUI's found for models, by name: its own step beside ours."""
    folder = tmp_path_factory.mktemp("train_lora_loss")
    return comfy_host.results("train_lora_loss_process.py", folder, jobs=DEPTHS)


def worst(slopes, exact, factor=1.0):
    """How far derivatives are from the exact ones, as a share of the largest of these."""
    errors = (abs(slopes[name] / factor - each) for name, each in exact.items())
    return max(errors) / max(map(abs, exact.values()))


@pytest.mark.parametrize("name", DEPTHS)
def test_the_loss_is_that_of_train_lora_by_the_square_of_sigma(name, both):
    found = both[name]
    core = found["steps"]["core, depth 1"]["loss"] / found["level"] ** 2
    for way in OURS:
        ours = found["steps"][way]["loss"]
        assert ours == pytest.approx(found["loss"], rel=1e-6)
        assert ours == pytest.approx(core, rel=1e-5)


@pytest.mark.parametrize("name", DEPTHS)
@pytest.mark.parametrize("way", OURS)
def test_our_gradient_is_that_of_finite_differences(way, name, both):
    found = both[name]
    assert len(found["slopes"]) > 3
    assert worst(found["steps"][way]["slopes"], found["slopes"]) < NEAR


@pytest.mark.parametrize("depth", DEPTHS["sdxl"])
def test_train_lora_has_the_same_gradient_of_a_unet(depth, both):
    found = both["sdxl"]
    slopes = found["steps"][f"core, depth {depth}"]["slopes"]
    assert worst(slopes, found["slopes"], found["level"] ** 2) < NEAR


def test_train_lora_has_no_right_gradient_of_flux(both):
    # What docs say of it. ComfyUI's blocks add to their inputs in place: without checkpointing
    # torch refuses, with it torch computes with numbers that have changed.
    found = both["flux"]
    assert "modified by an inplace operation" in found["steps"]["core, depth 0"]["error"]
    slopes = found["steps"]["core, depth 1"]["slopes"]
    assert worst(slopes, found["slopes"], found["level"] ** 2) > 0.1
