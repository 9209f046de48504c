"""What a denoiser's tree of modules tells: blocks, presets, shared inputs and names."""

import pytest
from fixtures.native_unet import SD15, SD21, SDXL, NativeUnet
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.targets import LayerIndex, select
from trainer_core.config import AdapterConfig
from trainer_core.families.graph_model_layers import (
    block_lists,
    convolutional_presets,
    native_presets,
    shared_inputs,
)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))
        self.norm = nn.LayerNorm(8)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.self_attn, self.cross_attn = Attention(), Attention()
        self.ffn = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
        self.img_mod = nn.Sequential(nn.SiLU(), nn.Linear(8, 8))
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), nn.Linear(8, 8))
        self.modC = nn.Linear(8, 8)
        self.time_emb_proj = nn.Linear(8, 8)
        self.experts = nn.ModuleList(Attention() for _ in range(2))


class Joined(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear1, self.linear2, self.norm = nn.Linear(8, 8), nn.Linear(8, 8), nn.LayerNorm(8)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(8, 8), nn.Linear(8, 8)


class Dit(nn.Module):
    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(4, 8, 2)
        self.time_embedders = nn.ModuleList(Embedder() for _ in range(3))
        self.projections = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(8) for _ in range(3))
        self.context_refiner = nn.ModuleList(Joined() for _ in range(2))
        self.layers = nn.ModuleList([Block()])
        self.single_blocks = nn.ModuleDict({f"block{n}": Joined() for n in range(3)})
        self.head = nn.Linear(8, 4)


def chosen(model, preset):
    """The layers that a run with this preset adapts."""
    index, presets = LayerIndex(model), native_presets(model)
    return set(
        select(index, preset, presets, (), convolutional=convolutional_presets(model)).layers
    )


ATTENTIONS = ("self_attn", "cross_attn", "experts.0", "experts.1")


def test_blocks_are_outermost_lists_of_modules_that_normalise():
    assert block_lists(Dit()) == ("context_refiner", "layers", "single_blocks")
    assert block_lists(NativeUnet(SDXL)) == ("input_blocks", "middle_block", "output_blocks")
    assert block_lists(nn.Sequential(nn.Linear(8, 8))) == ()


def test_the_presets_of_a_transformer():
    model = Dit()
    joined = {f"single_blocks.block{n}.linear{i}" for n in range(3) for i in (1, 2)}
    attention = {f"layers.0.{a}.{n}" for a in ATTENTIONS for n in "qkvo"}
    own = attention | joined | {"layers.0.ffn.0", "layers.0.ffn.2"}
    assert chosen(model, "default") == chosen(model, "attention_mlp") == own
    assert set(native_presets(model)) == {"default", "attention", "attention_mlp", "all_linear"}
    # The names of experts do not say that they are attentions here, though they are made so.
    named = {name for name in attention if "attn" in name}
    assert chosen(model, "attention") == named | joined
    linear = {path for path, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert chosen(model, "all_linear") == linear
    assert convolutional_presets(model) == frozenset()


@pytest.mark.parametrize(("sizes", "transformers"), [(SD15, 16), (SD21, 16), (SDXL, 11)])
def test_the_presets_of_a_unet(sizes, transformers):
    """An attention has four layers, an MLP two, and two more lie around a transformer."""
    model = NativeUnet(sizes)
    blocks = sum(path.endswith(".attn1") for path, _ in model.named_modules())
    own = chosen(model, "default")
    assert len(own) == 10 * blocks + 2 * transformers
    assert len(chosen(model, "attention")) == 8 * blocks
    windows = {p for p, m in model.named_modules() if isinstance(m, nn.Conv2d)}
    assert chosen(model, "convolutions") == own | windows - {"input_blocks.0.0", "out.2"}
    linear = {p for p, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert chosen(model, "all_linear") == linear
    assert convolutional_presets(model) == {"default", "attention_mlp", "convolutions"}


def test_layers_share_an_input_where_their_names_say_so():
    def groups(model):
        config = AdapterConfig(kind="lora", rank=1, targets="default")
        presets = native_presets(model)
        adapter = attach(model, config, presets=presets, shared=shared_inputs(model))
        found = {frozenset(each) for each in adapter.shared_inputs}
        adapter.detach()
        return found

    found = groups(Dit())
    for own in ("self_attn", "experts.0", "experts.1"):
        assert frozenset(f"layers.0.{own}.{n}" for n in "qkv") in found
    assert frozenset(f"layers.0.cross_attn.{n}" for n in "kv") in found
    assert len(found) == 4
    place = "middle_block.1.transformer_blocks.0"
    found = groups(NativeUnet(SDXL))
    assert {f"{place}.attn1.to_{n}" for n in "qkv"} in found
    assert {f"{place}.attn2.to_{n}" for n in "kv"} in found
