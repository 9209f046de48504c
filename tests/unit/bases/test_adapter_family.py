"""Which family an adapter file is for; what is a twin's, or no file, is not put on a base."""

import json
import os

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.flux_files import FLUX, random_adapter
from tests.fixtures.native_files import make_native_flux
from trainer_core.adapter_files.metadata import SETTINGS_KEY
from trainer_core.adapter_files.names.layer_match import is_native, native_of_patch
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.bases.adapter_family import adapter_family
from trainer_core.bases.base_weights import published_shapes
from trainer_core.bases.read_base_adapters import outline_base_adapters
from trainer_core.config import BaseAdapter, BaseSection, RunConfig
from trainer_core.errors import AdapterFileError, BaseModelError
from trainer_core.families.registry import FAMILIES, get_family
from trainer_core.training.checkpoints.base_adapter_marks import base_adapter_marks
from trainer_core.training.setup.starting_point import read_start

SHARED = "transformer_blocks.0.attn.to_q"
"""A layer that two families have under one name in Diffusers, and one of them in ComfyUI."""

SQUARE = (3072, 3072)
SIZES = {
    "proj_mlp": (12288, 3072),
    "img_mlp.net.2": (3072, 12288),
    "qkv": (9216, 3072),
    "txt_mod.1": (18432, 3072),
}


def write(path, *names, **header):
    """Layers of the sizes that they have in the published bases."""
    tensors = {}
    for name in names:
        rows, columns = next((size for end, size in SIZES.items() if name.endswith(end)), SQUARE)
        tensors[f"{name}.lora_A.weight"] = torch.ones(2, columns)
        tensors[f"{name}.lora_B.weight"] = torch.ones(rows, 2)
    save_file(tensors, path, {k: json.dumps(v) for k, v in header.items()})
    return path


@pytest.mark.parametrize(
    ("names", "family"),
    [
        (["transformer.single_transformer_blocks.0.proj_mlp"], "flux"),
        (["transformer.transformer_blocks.0.img_mlp.net.2"], "qwen_image"),
        ([f"transformer.{SHARED}", "transformer.single_transformer_blocks.0.proj_mlp"], "flux"),
        (["lora_unet_double_blocks_0_img_attn_qkv"], "flux"),
        (["base_model.model.transformer_blocks.0.txt_mod.1"], "qwen_image"),
        # FLUX has no such name in ComfyUI, where q is a slice.
        ([f"diffusion_model.{SHARED}"], "qwen_image"),
        ([f"transformer.{SHARED}", "diffusion_model.double_blocks.0.img_attn.proj"], "flux"),
    ],
)
def test_names_tell_the_family(names, family, tmp_path):
    (tmp_path / "adapter_config.json").write_text('{"r": 2, "lora_alpha": 2, "peft_type": "LORA"}')
    assert adapter_family(write(tmp_path / "a.safetensors", *names)).name == family


@pytest.mark.parametrize("family", FAMILIES)
def test_every_tensor_of_a_published_base_is_a_name_of_its_family(family):
    """Else a file of ComfyUI's own extraction would be refused, which takes weights and biases."""
    key_map, shapes = FAMILIES[family].layers.key_map, published_shapes(FAMILIES[family])
    named = [tensor.rpartition(".") for tensor in shapes]
    natives = {layer for layer, _, part in named if part in {"weight", "bias"}}
    assert natives
    for native in natives:
        assert is_native(native, key_map)
        assert native_of_patch(f"diffusion_model.{native}", key_map) == native
        assert not is_native(f"{native}.x", key_map)


@pytest.fixture
def twins_file(tmp_path):
    """One that FLUX.1 and Chroma1 both have every layer of, and that says it is Chroma1's."""
    state = random_adapter(make_native_flux(), kind="lora")
    keep = {name: each for name, each in state.layers.items() if ".attn." in name}
    state = type(state)(state.kind, keep)
    path = tmp_path / "chroma.safetensors"
    facts = {SETTINGS_KEY: '{"family": "chroma"}'}
    write_adapter(path, state, "comfyui", FLUX.layers.key_map, facts)
    return path


def test_a_twin_s_adapter_is_not_taken_for_one_s_own(twins_file):
    flux, chroma = (get_family(name) for name in ("flux", "chroma"))
    told = r"was trained on Chroma1.* its header says"
    section = BaseSection(path="any", adapters=[BaseAdapter(path=str(twins_file))])
    start = RunConfig.model_validate({"adapter": {"start_from": str(twins_file)}})
    with pytest.raises(BaseModelError, match=r"base\.adapters\.0: .*" + told):
        outline_base_adapters(section, flux)
    with pytest.raises(AdapterFileError, match=told):
        read_start(start, flux)
    assert read_start(start, chroma).layers
    assert outline_base_adapters(section, chroma)


@pytest.mark.skipif(os.name == "nt", reason="pipes and links of Unix")
@pytest.mark.parametrize("case", ["missing", "loop", "pipe"])
def test_what_is_no_file_is_no_adapter_of_a_base_and_never_waited_for(case, tmp_path):
    path = tmp_path / "a.safetensors"
    if case != "missing":
        os.mkfifo(path) if case == "pipe" else path.symlink_to(path)
    section = BaseSection(path="any", adapters=[BaseAdapter(path=str(path))])
    for read in (base_adapter_marks, lambda each: outline_base_adapters(each, FLUX)):
        with pytest.raises(BaseModelError, match=r"base\.adapters\.0: "):
            read(section)
