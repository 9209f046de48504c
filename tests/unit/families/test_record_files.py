"""What every family owes of files, by its record alone: bases, adapters, and those of others."""

import functools
import re
from collections import defaultdict
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.combinations import each_once, rarely, some
from tests.fixtures.families import hosted, record, records
from tests.fixtures.family_states import OPTIONS, assert_same, family_state, held
from tests.fixtures.full_size import full_size_transformer, linear_layers
from tests.fixtures.gguf_files import write_with_gguf
from tests.fixtures.native_files import F8, dequantised, to_scaled
from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapter_files.write.write_adapter import LAYOUTS, layout_name, write_adapter
from trainer_core.bases.adapter_family import adapter_family
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.errors import AdapterError, AdapterFileError, BaseModelError
from trainer_core.families.registry import get_family

SCALED = ("old", "new", "header")
FORMATS = ("bf16", "fp16", "fp8", *SCALED, "gguf")


def single_files():
    """The families that have a native naming."""
    return [name for name in records() if record(name).host or record(name).to_native]


def with_rest(quick, rest):
    """Cases of the quick set, and others of the whole suite."""
    return [*quick, *rarely(case for case in rest if case not in quick)]


def trained_layers(family, transformer):
    """Layers of the preset that reaches most, in the model's order."""
    patterns = get_family(family).layers.presets["all_linear"]
    names = linear_layers(transformer)
    return [name for name in names if any(re.fullmatch(item, name) for item in patterns)]


@functools.cache
def small_layers(family):
    """Layers of the first blocks of the small model, to a quarter of inputs and outputs."""
    transformer, seen = record(family).small(), set()
    found = {}
    for name in trained_layers(family, transformer):
        alike = re.sub(r"\d+", "", name, count=1)
        if alike not in seen:
            layer = transformer.get_submodule(name)
            found[name] = quarter(layer)
        if re.search(r"\d", name):
            seen.add(alike)
    key_map = get_family(family).layers.key_map
    # With every part of each fused layer.
    keys = [key_map.to_native(name) for name in found]
    for part in (part for key in keys if key is not None for part in key_map.parts(key.name)):
        layer = transformer.get_submodule(part.module)
        found.setdefault(part.module, quarter(layer))
    return found


def quarter(layer):
    return layer.in_features // 4, layer.out_features // 4


def is_divided(family):
    key_map = get_family(family).layers.key_map
    return any(key_map.to_native(name).part for name in small_layers(family))


@pytest.mark.parametrize(
    ("family", "case"),
    with_rest([(family, "lora") for family in records()], each_once(records(), OPTIONS)),
)
def test_every_layout_holds_an_adapter_or_refuses_it(family, case, tmp_path):
    names = get_family(family).layers.key_map
    state = family_state(family, case, ranks=(2, 3), sizes=small_layers(family))
    # ComfyUI has no LyCORIS name for some layers of these.
    expected = held(is_divided(family), case) - ({"lycoris"} if names.native_only else set())
    for layout in LAYOUTS:
        path = tmp_path / layout_name(f"{layout}_file", layout)
        if layout not in expected:
            with pytest.raises(AdapterError) as error:
                write_adapter(path, state, layout, names, {})
            assert error.value.remedy
            continue
        write_adapter(path, state, layout, names, {})
        assert_same(read_adapter(path, names), state)


PEERS = [(family, peer) for family in records() for peer in record(family).peers]
FIRST = [(family, next(iter(record(family).peers))) for family in records()]


@functools.cache
def peer_tensors(family, peer):
    """A LoRA of the published model in another trainer's spelling, and the layers that it has.

    The first numbers of a layer's factors say which it is.
    """
    spell, transformer = record(family).peers[peer], full_size_transformer(family)
    rows, modules = defaultdict(int), defaultdict(list)
    for path in trained_layers(family, transformer):
        name = spell(path)
        if name is not None:
            rows[name] += transformer.get_submodule(path).out_features
            modules[name].append(path)
    dotted = any("." in name for name in rows)
    down, up = ("lora_A", "lora_B") if dotted else ("lora_down", "lora_up")
    tensors = {}
    for number, (name, outputs) in enumerate(rows.items(), start=1):
        columns = transformer.get_submodule(modules[name][0]).in_features
        factor = torch.ones(1, columns, dtype=torch.bfloat16)
        factor[0, :2] = torch.tensor(divmod(number, 256))
        tensors[f"{name}.{down}.weight"] = factor
        tensors[f"{name}.{up}.weight"] = torch.ones(outputs, 1, dtype=torch.bfloat16)
        if not dotted:
            tensors[f"{name}.alpha"] = torch.tensor(1.0)
    numbers = {
        path: divmod(number, 256)
        for number, paths in enumerate(modules.values(), 1)
        for path in paths
    }
    return tensors, numbers


@pytest.mark.parametrize(("family", "peer"), with_rest(FIRST[::2], PEERS))
def test_files_of_other_trainers_are_known_and_get_our_names(family, peer, tmp_path):
    path, key_map = tmp_path / "peer.safetensors", get_family(family).layers.key_map
    tensors, numbers = peer_tensors(family, peer)
    save_file(tensors, path)
    assert adapter_family(path).name == family
    assert inspect_adapter(path).kind == "lora"
    converted = tmp_path / "ours.safetensors"
    report = convert(path, converted, "comfyui", key_map)
    assert report.exact
    assert not report.errors
    layers = read_adapter(converted, key_map).layers
    found = {path: layer.tensors["lora_down"][0, :2] for path, layer in layers.items()}
    assert {path: tuple(map(int, pair)) for path, pair in found.items()} == numbers


@pytest.mark.parametrize(("other", "peer"), with_rest(FIRST[::4], FIRST))
def test_an_adapter_of_another_family_is_refused_by_its_name(other, peer, tmp_path):
    path = tmp_path / "peer.safetensors"
    save_file(peer_tensors(other, peer)[0], path)
    for family in records():
        if family != other:
            with pytest.raises(AdapterFileError) as error:
                adapter_family(path, family)
            assert get_family(other).title in " ".join(error.value.args), (family, other)


def stored(native, name):
    """Tensors and metadata of a base's file in a format, and the numbers that it means."""
    if name in SCALED:
        tensors, metadata = to_scaled(native, name)
        scale = "scale_weight" if name == "old" else "weight_scale"
        meant = {}
        for key in native:
            place = f"{key.removesuffix('.weight')}.{scale}"
            given = tensors[key]
            meant[key] = (
                dequantised(given, tensors[place], torch.float32)
                if place in tensors
                else given.float()
            )
        return tensors, metadata, meant
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": F8}[name]
    tensors = {key: each.to(dtype) for key, each in native.items()}
    return tensors, {}, {key: each.float() for key, each in tensors.items()}


def write_gguf(path, native):
    """A file of the only type whose blocks fit every width, and the numbers that it means."""
    gguf = pytest.importorskip("gguf", reason="the package gguf, the reference, is not installed")
    tensors, meant = {}, {}
    for name, value in native.items():
        fits = value.ndim == 2 and value.shape[1] % 32 == 0
        kind = "Q8_0" if fits else "F32"
        place = gguf.GGMLQuantizationType[kind]
        content = gguf.quants.quantize(value.contiguous().numpy(), place)
        tensors[name] = (kind, content)
        numbers = gguf.quants.dequantize(content, place)
        meant[name] = torch.from_numpy(numbers.copy()).reshape(value.shape)
    write_with_gguf(path, tensors)
    return meant


@pytest.mark.parametrize(
    ("family", "name"),
    with_rest(
        each_once(single_files(), FORMATS),
        [(family, name) for family in single_files() for name in ("new", "gguf")],
    ),
)
def test_a_single_file_becomes_the_numbers_that_it_means(family, name, tmp_path):
    kept, facts = record(family), get_family(family)
    native = kept.native()
    path = tmp_path / f"base.{'gguf' if name == 'gguf' else 'safetensors'}"
    if name == "gguf":
        meant = write_gguf(path, native)
    else:
        tensors, metadata, meant = stored(native, name)
        save_file(tensors, path, metadata)
    transformer = facts.load_transformer(locate(family, path), torch.float32, "cpu")
    found = replace(kept, small=lambda: transformer).native()
    assert set(found) == set(meant)
    for key, tensor in meant.items():
        assert torch.equal(found[key], tensor), key


def locate(family, path):
    section = BaseSection(path=str(path))
    return locate_base(section, get_family(family), has_controls=False, needs_encoders=False)


@pytest.mark.parametrize("family", some(hosted(), *hosted()[::3]))
def test_a_base_of_another_family_is_refused_by_its_name(family, tmp_path):
    kept = record(family)
    path = tmp_path / "base.safetensors"
    save_file(kept.native(), path)
    for other in records():
        if other == family:
            continue
        with pytest.raises(BaseModelError) as error:
            locate(other, path)
        assert family in " ".join(error.value.args), (family, other)
