"""Adapters of a denoiser that is trained by its own paths: names, files, and who reads them."""

import pytest
import torch
from fixtures.native_unet import SD15, SD21, SDXL, NativeUnet, diffusers_unet
from torch import nn

from trainer_core.adapter_files.factors.effective_delta import effective_delta
from trainer_core.adapter_files.names.unet_names import unet_names
from trainer_core.adapter_files.write.write_adapter import check_layouts, write_adapter
from trainer_core.adapters.targets import LayerIndex, select
from trainer_core.errors import AdapterError
from trainer_core.families.graph_model_layers import convolutional_presets, key_map, native_presets
from trainer_core.types import AdapterState, LayerState

SIZES = {"sd15": SD15, "sd21": SD21, "sdxl": SDXL}


LONG = pytest.mark.exhaustive
CASES = [pytest.param(name, marks=() if name == "sd15" else LONG) for name in SIZES]


@pytest.fixture(scope="module", params=CASES)
def unet(request):
    """A UNet and an adapter on all of its convolutional preset, with factors that are not zero."""
    model = NativeUnet(SIZES[request.param])
    return request.param, model, state_of(model, "convolutions")


PARTS = (
    *("input_blocks.1.", "input_blocks.3.", "input_blocks.4.", "middle_block."),
    *("output_blocks.2.", "output_blocks.5.", "blocks."),
)
"""Where the layers lie that are adapted here: on several levels, and of every sort."""


def state_of(model, preset):
    """A LoRA of rank 2, and of rank 4 where queries are made."""
    index, presets = LayerIndex(model), native_presets(model)
    chosen = select(index, preset, presets, (), convolutional=convolutional_presets(model))
    source = torch.Generator().manual_seed(7)
    layers = {}
    for name, layer in chosen.layers.items():
        if not name.startswith(PARTS):
            continue
        rows, columns, *window = layer.module.weight.shape
        rank = 4 if name.endswith("to_q") else 2
        layers[name] = LayerState(
            {
                "lora_down": torch.randn(rank, columns, *window, generator=source),
                "lora_up": torch.randn(rows, rank, *(1 for _ in window), generator=source),
            },
            3.0,
            rank,
            tuple(window),
        )
    return AdapterState("lora", layers)


def weighted(model):
    return [path for path, m in model.named_modules() if getattr(m, "weight", None) is not None]


def delta(model, state, name):
    weight = model.get_submodule(name).weight.detach()
    return effective_delta(state.kind, state.layers[name], weight).reshape(weight.shape)


def assert_close(found, wanted):
    assert found.shape == wanted.shape
    assert (found - wanted).norm() <= 1e-6 * wanted.norm()


@pytest.mark.parametrize("name", CASES)
def test_the_names_in_diffusers_are_those_of_its_own_converter(name):
    from diffusers.loaders.single_file_utils import convert_ldm_unet_checkpoint

    sizes = SIZES[name]
    model = NativeUnet(sizes)
    numbers = {path: torch.tensor(number) for number, path in enumerate(weighted(model))}
    own = {f"model.diffusion_model.{path}.weight": each for path, each in numbers.items()}
    # The converter also wants biases where Diffusers' model has them.
    own |= {key.replace(".weight", ".bias"): each for key, each in own.items()}
    reference = diffusers_unet(sizes)
    converted = convert_ldm_unet_checkpoint(own, dict(reference.config))
    paths = {int(number): key for key, number in converted.items() if key.endswith(".weight")}
    found = unet_names(numbers)
    assert {p: f"{n}.weight" for p, n in found.diffusers.items()} == {
        path: paths[int(number)] for path, number in numbers.items()
    }
    assert found.is_sdxl == (name == "sdxl")
    modules = dict(reference.named_modules())
    assert {n: p.shape for n, p in reference.named_parameters() if n.endswith("weight")} == {
        f"{their}.weight": model.get_submodule(path).weight.shape
        for path, their in found.diffusers.items()
        if their in modules
    }


@pytest.mark.parametrize("layout", ["diffusers", "kohya", pytest.param("peft", marks=LONG)])
def test_diffusers_reads_what_was_trained(unet, layout, tmp_path):
    """By its own pipelines' readers, of files with its names and of kohya's files."""
    from diffusers import loaders

    name, model, state = unet
    reference = diffusers_unet(SIZES[name])
    path = tmp_path / ("folder" if layout == "peft" else "a.safetensors")
    names = key_map(model)
    write_adapter(path, state, layout, names, {})
    if layout == "peft":
        from peft import PeftModel

        loaded = PeftModel.from_pretrained(reference, path)
        reference = loaded.base_model.model
        adapter = "default"
    else:
        adapter = "a"
        mixin = loaders.StableDiffusionLoraLoaderMixin
        if name == "sdxl":
            mixin = loaders.StableDiffusionXLLoraLoaderMixin
        given = {"unet_config": reference.config, "return_lora_metadata": True}
        tensors, alphas, *metadata = mixin.lora_state_dict(str(path), **given)
        given = {"metadata": metadata[0] if metadata else None, "adapter_name": adapter}
        mixin.load_lora_into_unet(tensors, alphas, reference, **given)
    read = {path: m for path, m in reference.named_modules() if hasattr(m, "get_delta_weight")}
    theirs = names.diffusers.paths
    assert set(read) == {theirs[own] for own in state.layers}
    for own in state.layers:
        computed = read[theirs[own]].get_delta_weight(adapter).detach()
        assert_close(computed, delta(model, state, own))


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.norm = nn.Linear(8, 24), nn.LayerNorm(8)
        self.mlp = nn.ModuleDict({"w10": nn.Linear(8, 8), "w_1_0": nn.Linear(8, 8)})


class Dit(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Gate() for _ in range(12))
        self.patch = nn.Conv2d(4, 8, 2)


@pytest.mark.parametrize("layout", ["diffusers", "peft", "lycoris"])
def test_layouts_with_diffusers_names_are_refused_for_another_model(layout):
    model = Dit()
    with pytest.raises(AdapterError, match="without a known name") as caught:
        check_layouts(state_of(model, "default"), [layout], key_map(model))
    assert "'comfyui' or 'kohya'" in caught.value.expected
    assert "Convert Adapter" in caught.value.remedy
