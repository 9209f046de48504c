"""Routed passes against blocks with a mask, which know nothing of how tokens are taken."""

import dataclasses
import inspect

import pytest
import torch
import torch.nn.functional as F

from tests.fixtures.families import record
from trainer_core.config import RoutingSection, RunConfig
from trainer_core.counters import counter_seed
from trainer_core.errors import ConfigError
from trainer_core.families.registry import PACKAGES, get_family
from trainer_core.offload.block_selection import repeated_blocks
from trainer_core.offload.checkpointed_blocks import CheckpointedBlocks
from trainer_core.training.setup.refusals import require_possible
from trainer_core.training.step.processes import SingleProcess
from trainer_core.training.step.token_routing import TokenRouting, routed_blocks

HALF = {"share": 0.5, "first": 0, "last": 0}
TARGET_FIRST, TARGET_LAST = ("z_image",), ("qwen_image_21",)
"""Where the target's tokens lie in the sequence that is attended over; else before references."""


APART = ("wan",)
"""Whose texts are attended to by themselves."""


class Pass:
    """One pass through a family's small model, of two texts and every reference it takes."""

    def __init__(self, name):
        self.family, kept = get_family(name), record(name)
        self.model = kept.small().double().requires_grad_(False)
        self.family.layers.prepare(self.model)
        random = torch.Generator().manual_seed(1)

        def numbers(shape):
            return torch.randn(2, *shape, generator=random, dtype=torch.float64)

        self.noisy = numbers(kept.latents).requires_grad_()
        self.controls = [numbers(shape) for shape in kept.controls]
        # The encoder of FLUX.1 fills texts up.
        lengths = (kept.text if name == "flux" else 5, kept.text)
        texts = (kept.conditioning(random, tokens) for tokens in lengths)
        self.texts = [{name: each.double() for name, each in text.items()} for text in texts]

    def predict(self, noisy, sigma, texts, controls):
        predict = self.family.prediction.predict
        return predict(self.model, noisy, sigma, texts, controls, 1.0)

    def route(self, seed=3, at=(1, 0), **settings):
        settings = RoutingSection.model_validate(HALF | settings)
        routing = TokenRouting(self.model, self.family, settings, seed)
        routing.begin(*at)
        self.predict = routing.routed(self.predict)
        return self

    def checkpoint(self):
        blocks = repeated_blocks(self.model, self.family.layers.repeated_blocks)
        calls = CheckpointedBlocks(dict(enumerate(blocks)), set(range(len(blocks))))
        self.family.layers.enable_checkpointing(self.model, calls)
        return self

    def velocity(self):
        sigma = torch.tensor([0.3, 0.8], dtype=torch.float64)
        return self.predict(self.noisy, sigma, self.texts, self.controls)

    def results(self):
        """The velocity, and the gradient at the latents."""
        velocity = self.velocity()
        weights = torch.linspace(-1, 1, velocity.numel(), dtype=torch.float64)
        velocity.flatten().dot(weights).backward()
        return velocity.detach(), self.noisy.grad

    def tokens(self, latents):
        return latents[0, 0].numel() // self.family.latents.patch**2

    def left_out(self, length):
        """Places of the tokens that pass by, in a sequence of so many."""
        targets, name = self.tokens(self.noisy), self.family.name
        start = length - targets
        if name in TARGET_FIRST:
            start = 0
        elif name not in TARGET_LAST:
            start -= sum(map(self.tokens, self.controls))
        order = torch.randperm(
            targets, generator=torch.Generator().manual_seed(counter_seed(3, "routing", 1, 0))
        )
        return start + order[targets // 2 :]

    def mask(self, patch):
        """Compute every token, let none attend to those left out, and put these back as they were.

        Which place a token has is left to the model.
        """
        attend, inside = F.scaled_dot_product_attention, []

        def attend_masked(query, key, value, attn_mask=None, **others):
            # A text by itself may be shorter. What is before a target attends to nothing behind.
            itself = self.family.name not in APART or query.shape[-2] == key.shape[-2]
            if inside and itself and key.shape[-2] >= inside[-1] - 2:
                allowed = torch.ones(1, key.shape[-2], dtype=torch.bool)
                allowed[:, self.left_out(key.shape[-2])] = False
                attn_mask = allowed if attn_mask is None else allowed & attn_mask
            return attend(query, key, value, attn_mask=attn_mask, **others)

        def enter(block, args, named):
            named = inspect.signature(type(block).forward).bind(block, *args, **named).arguments
            tokens = list(named.values())[1]
            text = named.get("encoder_hidden_states") if self.family.name not in APART else None
            inside.append(tokens.shape[1] + (0 if text is None else text.shape[1]))

        def leave(block, args, named, output):
            inside.pop()
            tokens = args[0] if args else named["hidden_states"]
            *others, computed = output if isinstance(output, tuple) else (output,)
            left, computed = self.left_out(tokens.shape[1]), computed.clone()
            computed[:, left] = tokens[:, left]
            return (*others, computed) if isinstance(output, tuple) else computed

        patch.setattr(F, "scaled_dot_product_attention", attend_masked)
        for name in self.family.layers.routed.blocks:
            for block in self.model.get_submodule(name):
                block.register_forward_pre_hook(enter, with_kwargs=True)
                block.register_forward_hook(leave, with_kwargs=True)
        return self


FAMILIES = [name for name in PACKAGES if get_family(name).layers.routed is not None]


def agree(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


QUICK = ("qwen_image", "flux", "qwen_image_21")
"""Others take seconds: their texts, or tables of positions, are long."""


@pytest.mark.parametrize(
    "name",
    [
        name if name in QUICK else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in FAMILIES
    ],
)
def test_a_routed_pass_is_that_of_blocks_with_a_mask(monkeypatch, name):
    expected = Pass(name).mask(monkeypatch).results()
    monkeypatch.undo()
    agree(Pass(name).route().results(), expected)
    agree(Pass(name).checkpoint().route().results(), expected)
    assert not torch.allclose(Pass(name).results()[0], expected[0])


def test_every_family_of_files_can_be_routed():
    assert set(FAMILIES) == set(PACKAGES)


def test_a_share_of_one_and_a_pass_without_gradients_are_as_they_were():
    plain = Pass("qwen_image").results()
    agree_bits = zip(Pass("qwen_image").route(share=1.0).results(), plain, strict=True)
    assert all(torch.equal(one, other) for one, other in agree_bits)
    with torch.no_grad():
        assert torch.equal(Pass("qwen_image").route().velocity(), plain[0])


def test_a_draw_is_that_of_seed_step_and_micro_batch_in_every_part():
    def velocity(rows=slice(None), **draw):
        made = Pass("qwen_image").route(**draw)
        sigma = torch.tensor([0.3, 0.8], dtype=torch.float64)[rows]
        controls = [each[rows] for each in made.controls]
        return made.predict(made.noisy[rows], sigma, made.texts[rows], controls).detach()

    usual = velocity()
    assert torch.equal(usual, velocity())
    # Of a batch in parts, or of another process's.
    torch.testing.assert_close(usual[1:], velocity(slice(1, 2)), rtol=1e-9, atol=1e-9)
    for other in ({"seed": 4}, {"at": (2, 0)}, {"at": (1, 1)}):
        assert not torch.allclose(usual, velocity(**other))


def test_routing_is_refused_where_no_block_is_left_or_known():
    model, family = record("qwen_image").small(), get_family("qwen_image")
    one = RoutingSection(share=0.5, first=1, last=0)
    with pytest.raises(ConfigError, match="last is 0, and the base has 1 blocks"):
        routed_blocks(model, family, one)
    unknown = dataclasses.replace(
        family, layers=dataclasses.replace(family.layers, routed=None), name="sdxl"
    )
    config = RunConfig.model_validate({"training": {"routing": {"share": 0.5}}})
    with pytest.raises(ConfigError, match=r"share is 0\.5, and family is sdxl"):
        require_possible(config, unknown, SingleProcess(torch.device("cpu")))
