"""Layers of CLIP-L in adapter files: names of every program, both ways."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.names.key_map import with_text_encoders
from trainer_core.adapter_files.names.native_key_map import native_key_map
from trainer_core.adapter_files.names.text_encoder_names import (
    KOHYA_PREFIX_ALONE,
    KOHYA_PREFIXES,
    TEXT_ENCODER,
    comfyui_names,
    kohya_name,
    text_path,
)
from trainer_core.adapter_files.read.read_adapter import open_adapter, read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapter_files.verify.load_proof import prove
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.errors import AdapterError, AdapterFileError
from trainer_core.families.registry import get_family
from trainer_core.types import AdapterState, LayerState

KEY_MAP = get_family("flux").layers.key_map
PATH = "text_encoder.text_model.encoder.layers.11.self_attn.out_proj"
PATH_2 = PATH.replace(TEXT_ENCODER, "text_encoder_2")
DENOISER = "transformer_blocks.0.attn.to_q"
NATIVE = "output_blocks.0.1.transformer_blocks.0.attn1.to_q"
ENCODERS = {"alone": {TEXT_ENCODER: KOHYA_PREFIX_ALONE}, "both": KOHYA_PREFIXES}


def layer(rank, size, seed):
    generator = torch.Generator().manual_seed(seed)
    up, down = torch.randn(2, rank, size, generator=generator)
    return LayerState({"lora_up": up.T.contiguous(), "lora_down": down}, 2.0, rank)


def make_state():
    return AdapterState("lora", {DENOISER: layer(2, 12, 0), PATH: layer(4, 6, 1)})


SPELLINGS = {
    PATH: ("lora_te1_", "lora_te_", "text_encoders.clip_l.transformer."),
    PATH_2: ("lora_te2_", "text_encoders.clip_g.transformer."),
}


@pytest.mark.parametrize("path", SPELLINGS)
def test_every_spelling_means_the_layer(path):
    bare = path.partition(".")[2]
    for prefix in SPELLINGS[path]:
        name = prefix + (bare.replace(".", "_") if prefix.endswith("_") else bare)
        assert text_path(name) == path
        assert name in comfyui_names(path)
    assert text_path(path) == path
    assert comfyui_names(path)[-1] == path


@pytest.mark.parametrize("layout", ["comfyui", "kohya", "diffusers"])
def test_a_file_gives_back_what_was_written(tmp_path, layout):
    state, path = make_state(), tmp_path / "a.safetensors"
    if layout == "kohya":  # which has no name for a part of a fused layer
        parts = ("to_q", "to_k", "to_v")
        state.layers.update(
            {DENOISER.replace("to_q", each): layer(2, 12, n) for n, each in enumerate(parts)}
        )
    write_adapter(path, state, layout, KEY_MAP, {})
    keys = load_file(path)
    name = PATH if layout == "diffusers" else kohya_name(PATH)
    assert sum(key.startswith(name) for key in keys) == (2 if layout == "diffusers" else 3)
    found = read_adapter(path, KEY_MAP)
    assert set(found.layers) == set(state.layers)
    delta = {}
    for which, each in (("ours", state), ("read", found)):
        own = each.layers[PATH]
        delta[which] = own.tensors["lora_up"] @ own.tensors["lora_down"] * own.alpha / own.rank
    torch.testing.assert_close(delta["read"], delta["ours"])
    if layout != "diffusers":
        proof = prove(path, KEY_MAP)
        assert proof.ok, proof.text()
        shapes = {"double_blocks.0.img_attn.qkv.weight": (36, 12)}
        assert prove(path, KEY_MAP, shapes).ok, "the base has no text encoder in it"
    assert PATH in inspect_adapter(path, KEY_MAP).norms


@pytest.mark.parametrize("encoders", ENCODERS)
@pytest.mark.parametrize("layout", ["comfyui", "kohya"])
def test_files_of_a_graphs_model_have_the_names_of_its_text_encoders(tmp_path, layout, encoders):
    prefixes, path = ENCODERS[encoders], tmp_path / "a.safetensors"
    texts = {TEXT_ENCODER: PATH, "text_encoder_2": PATH_2}
    texts = {name: texts[name] for name in prefixes}
    key_map = with_text_encoders(native_key_map([NATIVE]), prefixes)
    own = {name: layer(4, 6, number) for number, name in enumerate(texts.values())}
    write_adapter(path, AdapterState("lora", {NATIVE: layer(2, 12, 9), **own}), layout, key_map, {})
    keys = load_file(path)
    for name, text in texts.items():
        flat = text.removeprefix(f"{name}.").replace(".", "_")
        assert f"{prefixes[name]}{flat}.lora_up.weight" in keys
    found = read_adapter(path, key_map)
    assert set(found.layers) == {NATIVE, *own}
    for name, each in own.items():
        assert torch.equal(found.layers[name].tensors["lora_up"], each.tensors["lora_up"])
    assert prove(path, key_map).ok


@pytest.mark.parametrize("layout", ["peft", "lycoris"])
def test_layouts_without_names_for_it_refuse_it(tmp_path, layout):
    with pytest.raises(AdapterError, match=r"1 layer\(s\) of a text encoder in all") as raised:
        write_adapter(tmp_path / "a.safetensors", make_state(), layout, KEY_MAP, {})
    assert "comfyui" in raised.value.remedy


@pytest.mark.parametrize("damage", ["a factor", "another kind", "t5"])
def test_what_is_not_whole_is_refused(tmp_path, damage):
    path = tmp_path / "a.safetensors"
    write_adapter(path, make_state(), "comfyui", KEY_MAP, {})
    tensors = load_file(path)
    name = kohya_name(PATH)
    if damage == "a factor":
        del tensors[f"{name}.lora_up.weight"]
    elif damage == "another kind":
        for side in ("up", "down"):
            del tensors[f"{name}.lora_{side}.weight"]
        tensors[f"{name}.lokr_w1"] = torch.ones(2, 2)
        tensors[f"{name}.lokr_w2"] = torch.ones(3, 3)
    else:
        tensors["lora_te3_encoder_block_0_layer_0_SelfAttention_q.alpha"] = torch.tensor(1.0)
    save_file(tensors, path)
    with pytest.raises(AdapterFileError, match=r"a\.safetensors"), open_adapter(path, KEY_MAP):
        pass
