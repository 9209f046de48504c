"""Adapters of a UNet that is not there any more: the header tells its names."""

import dataclasses
import json

import pytest
import torch
from fixtures.native_unet import SD15, SD21, SDXL, NativeUnet
from safetensors import safe_open
from torch import nn

from trainer_core.adapter_files.metadata import SETTINGS_KEY
from trainer_core.adapter_files.names.unet_names import published_unet
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.write.write_adapter import LAYOUTS, write_adapter
from trainer_core.bases.adapter_family import adapter_family
from trainer_core.families.graph_model_denoiser import GRAPH_MODEL
from trainer_core.families.graph_model_layers import header_names, key_map
from trainer_core.types import AdapterState, LayerState

FOUR_LEVELS = (32, 64, 128, 128)
SIZES = {
    "sd15": dataclasses.replace(SD15, widths=FOUR_LEVELS),
    "sd21": dataclasses.replace(SD21, widths=FOUR_LEVELS),
    "sdxl": dataclasses.replace(SDXL, widths=(32, 64, 128), depths=(0, 2, 10), middle=10),
}
"""Narrow, but of the published structure."""

# Of the first transformer on the way down, of the middle, and of the last one on the way up.
LAYERS = {
    "sd15": ("input_blocks.1.1", "middle_block.1", "output_blocks.11.1"),
    "sdxl": ("input_blocks.4.1", "middle_block.1", "output_blocks.5.1"),
}


def unet(name):
    with torch.device("meta"):
        return NativeUnet(SIZES[name])


def header(model, architecture=None):
    known = architecture or header_names(model, "Another").architecture
    facts = {"family": GRAPH_MODEL}
    return {"modelspec.architecture": f"{known}/lora", SETTINGS_KEY: json.dumps(facts)}


def keys(path):
    with safe_open(path, "pt") as file:
        return {*file.keys()}


def state_of(model, *paths):
    """A LoRA of the queries of the first block behind each of these paths."""
    source, layers = torch.Generator().manual_seed(3), {}
    for path in (f"{each}.transformer_blocks.0.attn1.to_q" for each in paths):
        rows, columns = model.get_submodule(path).weight.shape
        factors = {
            "lora_down": torch.randn(2, columns, generator=source),
            "lora_up": torch.randn(rows, 2, generator=source),
        }
        layers[path] = LayerState(factors, 2.0, 2)
    return AdapterState("lora", layers)


@pytest.mark.parametrize("name", SIZES)
def test_the_modules_are_those_of_the_model(name):
    model = unet(name)
    known = published_unet(header_names(model, "").architecture)
    weighted = {p: m for p, m in model.named_modules() if getattr(m, "weight", None) is not None}
    layers = {p for p, m in weighted.items() if isinstance(m, nn.Linear | nn.Conv2d)}
    assert sorted(known.layers) == sorted(layers)
    assert sorted(known.norms) == sorted(weighted.keys() - layers)
    assert published_unet("flux-1-dev") is None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_file_becomes_every_layout_without_its_model(name, layout, tmp_path):
    model = unet(name)
    state, told = state_of(model, *LAYERS[name]), header(model)
    trained, other = tmp_path / "trained.safetensors", tmp_path / "other.safetensors"
    write_adapter(trained, state, "comfyui", key_map(model), told)
    names = adapter_family(trained).layers.key_map
    write_adapter(other, read_adapter(trained, names), layout, names, told)
    # With its model the file is the same, and it is read again without.
    wanted = tmp_path / "wanted.safetensors"
    write_adapter(wanted, state, layout, key_map(model), told)
    if layout != "peft":  # a folder
        assert keys(other) == keys(wanted)
        names = adapter_family(other).layers.key_map
    assert {*read_adapter(other, names).layers} == {*state.layers}
