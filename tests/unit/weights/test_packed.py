"""A base in fewer bits: each format from a folder and from single files, tensor by tensor."""

import contextlib
import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from tests.fixtures.combinations import each_once
from tests.fixtures.flux_base import make_flux_transformer
from tests.fixtures.native_files import (
    F8,
    flux_to_native,
    make_native_flux,
    packed_layers,
    to_scaled,
)
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection, MemorySection
from trainer_core.errors import BaseModelError
from trainer_core.families.diffusers_parts import computing_dtype
from trainer_core.families.registry import get_family
from trainer_core.offload.host_weights import PageableMaster
from trainer_core.offload.load_base import load_base
from trainer_core.offload.machine import Machine
from trainer_core.quantization.formats import FORMATS
from trainer_core.weights.base_location import BaseLocation
from trainer_core.weights.kept_weights import stored_layers
from trainer_core.weights.layer_packing import Packing

FLUX = get_family("flux")
PRECISIONS = [torch.float32, torch.bfloat16]


def place(path):
    """A base without encoders: a folder of a transformer, or a single file."""
    if path.is_file():
        return locate_base(BaseSection(path=str(path)), FLUX, False, needs_encoders=False)
    return BaseLocation(path, path, "generate", 8, "", embedded=False)


def folder_of(model, path, **options):
    model.save_pretrained(path / "transformer", **options)
    return path


def linears_of_blocks(model):
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and "transformer_blocks." in name
    }


def assert_rest_is_dense(found, dense):
    """Whatever is not packed is what the dense base has, bit for bit."""
    layers = packed_layers(found)
    other = {n: v for n, v in found.state_dict().items() if n.rpartition(".")[0] not in layers}
    other |= {f"{n}.bias": layer.bias for n, layer in layers.items() if layer.bias is not None}
    expected = dense.state_dict()
    assert other.keys() == expected.keys() - {f"{name}.weight" for name in layers}
    assert all(torch.equal(value, expected[name]) for name, value in other.items())


@pytest.mark.parametrize(("name", "shards"), each_once(FORMATS, [False, True]))
def test_a_folder_is_packed_from_its_own_numbers(tmp_path, name, shards):
    model = make_flux_transformer().to(torch.bfloat16)
    options = {"max_shard_size": "60KB"} if shards else {}
    location = place(folder_of(model, tmp_path, **options))
    assert (len(list((tmp_path / "transformer").glob("*.safetensors"))) > 2) == shards
    found = FLUX.load_transformer(location, torch.float32, "cpu", name)
    dense = FLUX.load_transformer(location, torch.float32, "cpu")
    shapes = {path: tuple(each.weight.shape) for path, each in linears_of_blocks(model).items()}
    wanted = {path for path, shape in shapes.items() if FORMATS[name].fits(shape)}
    layers = packed_layers(found)
    assert layers.keys() == wanted
    assert len(wanted) == len(shapes) or name.startswith("uint")
    for path, layer in layers.items():
        parts = FORMATS[name].pack(model.get_submodule(path).weight)
        assert all(torch.equal(part, layer.parts()[key]) for key, part in parts.items())
    assert_rest_is_dense(found, dense)
    assert not found.training
    assert not any(parameter.requires_grad for parameter in found.parameters())


@pytest.mark.parametrize(("name", "dtype"), each_once(FORMATS, PRECISIONS))
def test_rows_of_fused_tensors_are_packed_each_for_itself(tmp_path, name, dtype):
    model = make_native_flux().to(torch.bfloat16)
    path = tmp_path / "base.safetensors"
    save_file({k: v.contiguous() for k, v in flux_to_native(model.state_dict()).items()}, path)
    found = FLUX.load_transformer(place(path), dtype, "cpu", name)
    dense = FLUX.load_transformer(place(path), dtype, "cpu")
    wanted = linears_of_blocks(model)
    assert packed_layers(found).keys() == wanted.keys()
    for layer, plain in wanted.items():
        stored = FORMATS[name]
        numbers = stored.dense(stored.pack(plain.weight), tuple(plain.weight.shape), dtype)
        assert torch.equal(found.get_submodule(layer).dense(), numbers)
    assert_rest_is_dense(found, dense)
    assert found.dtype == computing_dtype(found) == dtype


def by_rows(tensors):
    """The same scales, written out for each row, and not all alike."""
    result = dict(tensors)
    for name, scale in tensors.items():
        if name.endswith("weight_scale"):
            rows = len(tensors[name.removesuffix("_scale")])
            result[name] = scale * torch.linspace(1, 2, rows).view(-1, 1)
    return result


def eight_bit_file(path, kind):
    native = flux_to_native(make_native_flux().state_dict())
    metadata = None
    if kind == "plain":
        tensors = {k: v.to(F8) if "blocks." in k and v.ndim == 2 else v for k, v in native.items()}
    else:
        spelling = "new" if kind == "rows" else kind
        tensors, metadata = to_scaled(native, spelling)
        tensors = by_rows(tensors) if kind == "rows" else tensors
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata)
    return path


@pytest.mark.parametrize(
    ("kind", "name", "dtype"),
    each_once(["plain", "old", "new", "header", "rows"], ["file", "fp8"], PRECISIONS),
)
def test_eight_bits_are_kept_as_the_file_has_them(tmp_path, kind, name, dtype):
    location = place(eight_bit_file(tmp_path / "base.safetensors", kind))
    found = FLUX.load_transformer(location, dtype, "cpu", name)
    dense = FLUX.load_transformer(location, dtype, "cpu")
    layers = packed_layers(found)
    assert layers.keys() == linears_of_blocks(dense).keys()
    for path, layer in layers.items():
        assert layer.weight.dtype == F8
        assert torch.equal(layer.dense(), dense.get_submodule(path).weight)
    assert_rest_is_dense(found, dense)
    packing = Packing.of(name, FLUX.layers.repeated_blocks)
    planned = stored_layers(location, FLUX.files.single_file, packing)
    assert sum(planned.values()) == sum(
        p.nbytes for each in layers.values() for p in each.parts().values()
    )


def quantized_folder(folder, **stored):
    location = place(folder_of(make_flux_transformer(), folder))
    path = folder / "transformer" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": stored}))
    return location


def refusal(location, name):
    with pytest.raises(BaseModelError) as caught:
        FLUX.load_transformer(location, torch.float32, "cpu", name)
    return caught.value


def test_a_folder_that_is_quantized_already_is_refused(tmp_path):
    error = refusal(quantized_folder(tmp_path, quant_method="x"), "fp8")
    assert "quantized already" in error.found
    assert "memory.base_format to auto" in error.remedy


def test_a_folder_of_bitsandbytes_says_what_it_needs_where_it_cannot_be_loaded(tmp_path):
    stored = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}
    error = refusal(quantized_folder(tmp_path, **stored), "dense")
    assert "is stored by bitsandbytes, which cannot load it here" in error.found
    assert "memory.base_format" in error.remedy


def doubled(transformer):
    for block in (*transformer.transformer_blocks, *transformer.single_transformer_blocks):
        block.attn.to_q.bias = nn.Parameter(2 * block.attn.to_q.bias, requires_grad=False)


@pytest.mark.parametrize(("prepare", "copies"), [(FLUX.layers.prepare, 1), (doubled, 2)])
def test_a_swapped_block_is_copied_once_unless_its_family_changes_it(
    tmp_path, monkeypatch, prepare, copies
):
    holds, hold = [], PageableMaster.hold
    monkeypatch.setattr(
        PageableMaster, "hold", lambda self, spans: holds.append(spans) or hold(self, spans)
    )
    family = replace(FLUX, layers=replace(FLUX.layers, prepare=prepare))
    location = place(folder_of(make_flux_transformer(), tmp_path))
    memory = MemorySection(base_format="int8", blocks_to_swap=1, gradient_checkpointing=True)
    wanted = family.load_transformer(location, torch.float32, "cpu", "int8").state_dict()
    with contextlib.ExitStack() as at_end:
        cpu = torch.device("cpu")
        placed = load_base(memory, family, location, torch.float32, cpu, Machine(), at_end)
        found = placed.transformer.state_dict()
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[key], value) for key, value in wanted.items())
        assert len(holds) == copies
