"""Diffusers' own loader makes its models compute what ours computes."""

import diffusers
import pytest
import torch
from diffusers import FluxTransformer2DModel
from packaging.version import Version

from tests.fixtures.combinations import each_once
from tests.fixtures.qwen_base import make_qwen_transformer
from tests.fixtures.tables import table
from trainer_core.adapter_files.names.key_map import KeyMap, NativeKey
from trainer_core.adapter_files.write.adapter_file import write_adapter
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig

KEY_MAP = KeyMap(NativeKey, lambda name: name)
READS_LOKR = Version(diffusers.__version__) >= Version("0.42.0")
TARGETS = [r".*\.to_[qkv]", r".*\.to_out\.0", r".*(net|net_2)?\.proj(_mlp)?", r".*\.net\.2"]


def make_qwen():
    return make_qwen_transformer(2, joint_attention_dim=24)


def make_flux():
    torch.manual_seed(0)
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        pooled_projection_dim=12,
        axes_dims_rope=(4, 6, 6),
    ).eval()


def randn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run_qwen(model):
    return model(
        hidden_states=randn(1, 16, 16, seed=1),
        encoder_hidden_states=randn(1, 5, 24, seed=2),
        encoder_hidden_states_mask=torch.ones(1, 5, dtype=torch.long),
        timestep=torch.tensor([0.4]),
        img_shapes=[[(1, 4, 4)]],
        return_dict=False,
    )[0]


def run_flux(model):
    return model(
        hidden_states=randn(1, 16, 16, seed=1),
        encoder_hidden_states=randn(1, 5, 24, seed=2),
        pooled_projections=randn(1, 12, seed=3),
        timestep=torch.tensor([0.4]),
        img_ids=torch.cat([torch.zeros(16, 1), randn(16, 2, seed=4).abs()], 1),
        txt_ids=torch.zeros(5, 3),
        guidance=None,
        return_dict=False,
    )[0]


MODELS = {"qwen": (make_qwen, run_qwen), "flux": (make_flux, run_flux)}
CASES = table(__file__, "read_by_diffusers")


@pytest.mark.parametrize(("family", "case"), each_once(MODELS, CASES))
def test_the_exported_file_gives_the_same_forward(family, case, tmp_path):
    options = CASES[case]
    if options["kind"] == "lokr" and not READS_LOKR:
        pytest.skip("Diffusers reads LoKr from 0.42 on")
    make, run = MODELS[family]
    model = make()
    with torch.no_grad():
        base = run(model)
    adapter = attach(model, AdapterConfig(rank=2, **options), TARGETS)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.8)
        ours = run(model)
    path = tmp_path / "adapter.safetensors"
    write_adapter(path, adapter.state(), "diffusers", KEY_MAP, {})

    reader = make()
    reader.load_lora_adapter(str(tmp_path), weight_name=path.name, prefix="transformer")
    adapted = [n for n, m in reader.named_modules() if hasattr(m, "base_layer")]
    assert sorted(adapted) == sorted(adapter.names)
    with torch.no_grad():
        theirs = run(reader)
    assert (ours - base).norm() / base.norm() > 0.1
    assert (theirs - ours).norm() / ours.norm() < 1e-5
    assert ((theirs - base) - (ours - base)).norm() / (ours - base).norm() < 1e-4
