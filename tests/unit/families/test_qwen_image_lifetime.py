"""A Qwen-Image denoiser leaves nothing behind, also not in the caches of Diffusers' classes."""

import gc
import weakref

import diffusers
import pytest
import torch

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family

FAMILY = get_family("qwen_image")


@pytest.fixture(scope="module")
def location():
    return locate_base(BaseSection(path="embedded"), get_family("qwen_image"), False)


def used(transformer):
    """Compute a velocity; gives a reference to what knows the rotary positions, and the result."""
    width = transformer.config.joint_attention_dim
    channels = transformer.config.out_channels
    torch.manual_seed(0)
    with torch.no_grad():
        velocity = FAMILY.predict(
            transformer,
            torch.randn(1, channels, 8, 8),
            torch.tensor([0.5]),
            [{"text_embeddings": torch.randn(5, width)}],
        )
    return weakref.ref(transformer.pos_embed), velocity


def test_ours_is_gone_when_nobody_holds_it(location):
    place, _ = used(FAMILY.load_transformer(location, torch.float32, "cpu"))
    gc.collect()
    assert place() is None


def test_diffusers_own_stays_and_computes_the_same(location):
    """The negative control; when Diffusers mends this, ours is needless."""
    plain = diffusers.QwenImageTransformer2DModel.from_pretrained(
        location.folder, subfolder="transformer"
    ).eval()
    place, theirs = used(plain)
    _, ours = used(FAMILY.load_transformer(location, torch.float32, "cpu"))
    assert torch.equal(ours, theirs)
    del plain
    gc.collect()
    if place() is None:
        pytest.skip("this Diffusers keeps no model in the caches of its class")
