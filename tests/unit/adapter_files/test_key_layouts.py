"""A file in the exact spelling of each trainer means the delta that the trainer computed."""

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.peer_files import (
    FLUX_LINEAR1,
    FLUX_QKV,
    IN,
    PEERS,
    QWEN,
    ROWS,
    Draw,
    block_diagonal,
    fused,
    one,
)
from tests.fixtures.tables import table
from tests.fixtures.textbook import relative
from trainer_core.adapter_files.names.layer_match import matching_families
from trainer_core.adapter_files.read.read_adapter import open_adapter, read_adapter, read_file
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapters.dora import DORA_SCALE
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.errors import AdapterFileError
from trainer_core.families.registry import FAMILIES

KEY_MAPS = {name: family.layers.key_map for name, family in FAMILIES.items()}


def write(peer, folder, name="adapter.safetensors"):
    path = folder / name
    save_file(peer.tensors, path, peer.metadata)
    return path


def double_delta(state, module):
    layer = state.layers[module]
    doubled = {name: tensor.double() for name, tensor in layer.tensors.items()}
    return layer_delta(state.kind, type(layer)(doubled, layer.alpha, layer.rank))


@pytest.mark.parametrize("title", PEERS)
def test_a_peers_file_is_understood(title, tmp_path):
    peer = PEERS[title]
    path = write(peer, tmp_path)
    assert_it_means_its_delta(peer, path)
    assert_what_its_names_say_is_found(peer, path)
    assert_outlines_tell_what_is_read(peer, path)


def assert_it_means_its_delta(peer, path):
    state = read_adapter(path, KEY_MAPS[peer.family])
    assert set(state.layers) == set(peer.deltas)
    assert state.kind == peer.kind
    for module, wanted in peer.deltas.items():
        assert relative(double_delta(state, module), wanted) < 1e-6
        assert relative(double_delta(state, module) * 1.5, wanted) > 0.4, "a wrong scale is seen"
    assert {name: set(each) for name, each in state.extras.items()} == peer.extras
    found = {m: s.tensors[DORA_SCALE] for m, s in state.layers.items() if DORA_SCALE in s.tensors}
    assert set(found) == set(peer.lengths)
    assert all(torch.equal(found[module], lengths) for module, lengths in peer.lengths.items())


def assert_what_its_names_say_is_found(peer, path):
    file = read_file(path)
    assert (file.kind, file.layout) == (peer.kind, peer.layout)
    assert peer.family in matching_families(file.layers, KEY_MAPS)
    report = inspect_adapter(path, KEY_MAPS[peer.family])
    assert report.unknown == ()
    whole = {m: d for m, d in peer.deltas.items() if m in report.norms}
    assert all(
        report.norms[m] == pytest.approx(float(d.norm()), rel=1e-6) for m, d in whole.items()
    )
    assert len(report.extras) == sum(map(len, peer.extras.values()))


def assert_outlines_tell_what_is_read(peer, path):
    with open_adapter(path, KEY_MAPS[peer.family]) as adapter:
        for module, layer in adapter.state.layers.items():
            outline = adapter.outline(module)
            assert (outline.alpha, outline.rank) == (layer.alpha, layer.rank)
            assert {n: t.shape for n, t in outline.tensors.items()} == {
                n: t.shape for n, t in layer.tensors.items()
            }
            assert all(tensor.is_meta for tensor in outline.tensors.values())


def test_a_wrong_family_is_told_with_the_right_one(tmp_path):
    path = write(PEERS["kohya qkv, lora"], tmp_path)
    with pytest.raises(AdapterFileError, match="those of flux or flux2 or chroma; choose"):
        read_adapter(path, KEY_MAPS["qwen_image"], KEY_MAPS)
    strange = one("lora_unet_down_blocks_0_x", "x", "flux", "kohya")
    with pytest.raises(AdapterFileError, match=r"down_blocks_0_x' is not a layer of this family"):
        read_adapter(write(strange, tmp_path), KEY_MAPS["flux"], KEY_MAPS)


def test_a_block_of_zeros_among_equal_ones_stays_a_part(tmp_path):
    """Such as of a layer that has not learnt anything yet."""
    peer = block_diagonal()
    up = peer.tensors["lora_unet_double_blocks_3_img_attn_qkv.lora_up.weight"]
    up[ROWS : 2 * ROWS] = 0.0
    state = read_adapter(write(peer, tmp_path), KEY_MAPS["flux"])
    assert {layer.rank for layer in state.layers.values()} == {2}
    assert not state.layers[FLUX_QKV[1]].tensors["lora_up"].any()
    up.zero_()
    state = read_adapter(write(peer, tmp_path), KEY_MAPS["flux"])
    assert {layer.rank for layer in state.layers.values()} == {6}
    assert len(state.layers) == 3


def test_lengths_of_a_fused_layers_rows_are_divided(tmp_path):
    peer = fused("lora_unet_double_blocks_3_img_attn_qkv", FLUX_QKV, "kohya")
    lengths = Draw(3)(3 * ROWS, 1).abs()
    peer.tensors["lora_unet_double_blocks_3_img_attn_qkv.dora_scale"] = lengths
    state = read_adapter(write(peer, tmp_path), KEY_MAPS["flux"])
    found = [state.layers[module].tensors[DORA_SCALE] for module in FLUX_QKV]
    assert torch.equal(torch.cat(found), lengths)


def inexact():
    odd = fused("lora_unet_double_blocks_3_img_attn_qkv", FLUX_QKV, "kohya")
    odd.tensors["lora_unet_double_blocks_3_img_attn_qkv.lora_up.weight"] = torch.ones(10, 2)
    slice_name = "diffusion_model.single_blocks.11.linear1_qkv"
    inside = fused(slice_name, FLUX_LINEAR1[:3], "comfyui", "lokr")
    inside.tensors[f"{slice_name}.lokr_w1"] = torch.ones(2, 3)
    inside.tensors[f"{slice_name}.lokr_w2_a"] = torch.ones(12, 2)
    lengths = fused(slice_name, FLUX_LINEAR1[:3], "comfyui")
    lengths.tensors[f"{slice_name}.dora_scale"] = torch.ones(1, IN)
    return {
        "rows, 10, is not a multiple of 3": odd,
        "inside a block of 12 rows": inside,
        "DoRA magnitude is that of the fused layer": lengths,
    }


@pytest.mark.parametrize("reason", inexact())
def test_what_cannot_be_divided_is_refused_by_name(reason, tmp_path):
    """Slices have no name of their own under which they could stay whole."""
    peer = inexact()[reason]
    with pytest.raises(AdapterFileError, match=reason) as caught:
        read_adapter(write(peer, tmp_path), KEY_MAPS["flux"])
    assert next(iter(peer.tensors)).rpartition(".lo")[0] in caught.value.found
    assert list(peer.deltas)[2] in caught.value.found


TWICE = {
    "fused and part": (
        {
            **PEERS["kohya qkv, lora"].tensors,
            **one("lora_unet_transformer_blocks_3_attn_to_k", "", "flux", "").tensors,
        },
        r"both mean the layer 'transformer_blocks.3.attn.to_k'",
    ),
    "slice and whole": (
        {
            **PEERS["comfyui slice"].tensors,
            **fused("diffusion_model.single_blocks.11.linear1", FLUX_LINEAR1, "").tensors,
        },
        r"both mean the layer 'single_transformer_blocks.11.attn.to_q'",
    ),
    "two prefixes": (
        {**PEERS["musubi, lora"].tensors, **PEERS["lycoris, lora"].tensors},
        "mixes layouts: 'l[^']*' and 'l[^']*'",
    ),
    "two spellings": (
        {**PEERS["bare"].tensors, **PEERS["bare default"].tensors},
        "give the same layer's lora_(up|down) twice",
    ),
    "lengths twice": (
        {
            **PEERS["diffusers dora"].tensors,
            f"transformer.{QWEN}.lora_magnitude_vector.weight": torch.ones(ROWS),
        },
        "dora_scale twice",
    ),
    "factors and a difference": (
        {**PEERS["onetrainer qwen"].tensors, f"transformer.{QWEN}.diff": torch.ones(ROWS, IN)},
        "has factors and 'transformer.*diff'",
    ),
}


@pytest.mark.parametrize("case", TWICE)
def test_what_says_a_thing_twice_is_refused_by_key(case, tmp_path):
    tensors, message = TWICE[case]
    path = tmp_path / "a.safetensors"
    save_file(tensors, path)
    with pytest.raises(AdapterFileError, match=message):
        read_adapter(path, KEY_MAPS["flux"])


PATCH_ENDINGS = table(__file__, "patch_endings")


@pytest.mark.parametrize("key", PATCH_ENDINGS)
def test_differences_get_comfyuis_names(key, tmp_path):
    path, values = tmp_path / "a.safetensors", Draw(0)(6)
    save_file({key: values}, path)
    if PATCH_ENDINGS[key] is None:
        with pytest.raises(AdapterFileError, match=r"for no layer of this family"):
            read_adapter(path, KEY_MAPS["flux"])
        return
    state = read_adapter(path, KEY_MAPS["flux"])
    (name,), ending = state.extras, key.rpartition(".")[2]
    assert name == PATCH_ENDINGS[key]
    assert torch.equal(state.extras[name][ending], values)
    with open_adapter(path, KEY_MAPS["flux"]) as adapter:
        assert adapter.state.extras.outline(name)[ending].is_meta


def test_lengths_of_a_convolution_as_peft_has_them_are_of_the_outputs(tmp_path):
    """PEFT writes [1, out, 1, 1], which looks like one length for each input."""
    name = "transformer_blocks.0.img_mod.1"
    tensors = {
        f"transformer.{name}.lora_A.weight": torch.ones(2, 4, 3, 3),
        f"transformer.{name}.lora_B.weight": torch.ones(4, 2, 1, 1),
        f"transformer.{name}.lora_magnitude_vector": torch.arange(1.0, 5.0).view(1, 4, 1, 1),
    }
    save_file(tensors, tmp_path / "a.safetensors")
    state = read_adapter(tmp_path / "a.safetensors", KEY_MAPS["qwen_image"])
    assert state.layers[name].tensors[DORA_SCALE].shape == (4, 1, 1, 1)
