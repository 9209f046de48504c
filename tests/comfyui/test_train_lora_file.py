"""The file of ComfyUI's own Train LoRA node means here what it means there, to the last tensor."""

import pytest
import torch
from safetensors.torch import load_file

from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.read.read_adapter import read_adapter, read_file
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.families.registry import get_family

pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

KEY_MAP = get_family("flux").layers.key_map
CASES = {"lora": "lora", "loha": "loha", "lokr": "lokr", "lokr odd": "lokr"}
"""Case of `train_lora_process` to the kind of its file."""


@pytest.fixture(scope="module")
def folder(comfy_host, tmp_path_factory):
    """The files and what ComfyUI makes of them."""
    folder = tmp_path_factory.mktemp("train_lora")
    comfy_host.run("train_lora_process.py", folder)
    return folder


def own_changes(state):
    """Our reading in ComfyUI's model: fused layers joined, the last norm's halves exchanged."""
    changes, fused = {}, set()
    for module, layer in state.layers.items():
        native, delta = KEY_MAP.to_native(module), layer_delta(state.kind, layer)
        if module == "norm_out.linear":
            name = "final_layer.adaLN_modulation.1"
            changes[name] = torch.cat([*reversed(delta.chunk(2))])
        elif native is None:  # undivided
            changes[module] = delta
        elif native.part:
            fused.add(native.name)
        else:
            changes[native.name] = delta
    for name in fused:
        parts = [state.layers[part.module] for part in KEY_MAP.parts(name)]
        changes[name] = torch.cat([layer_delta(state.kind, part) for part in parts])
    return {f"diffusion_model.{name}.weight": delta for name, delta in changes.items()}


@pytest.mark.parametrize("case", CASES)
def test_every_tensor_of_the_file_means_what_it_means_in_comfyui(case, folder):
    path = folder / f"{case}.safetensors"
    state, wanted = read_adapter(path, KEY_MAP), load_file(folder / f"{case}.result")
    ours = own_changes(state)
    for native, tensors in state.extras.items():
        for ending, tensor in tensors.items():
            ours[f"diffusion_model.{native}.{'bias' if ending == 'diff_b' else 'weight'}"] = tensor
    assert set(ours) == set(wanted)
    for key, change in wanted.items():
        assert float((ours[key] - change).norm() / change.norm()) < 1e-6
        assert change.norm() > 0
    assert state.kind == CASES[case]
    assert read_file(path).layout == "comfyui"


def test_a_lokr_that_no_parts_have_stays_whole(folder):
    """Its factor divides 384 rows into 4 times 96, and each of q, k and v has 128."""
    layers = read_adapter(folder / "lokr odd.safetensors", KEY_MAP).layers
    assert {"double_blocks.0.img_attn.qkv", "single_blocks.0.linear1"} < set(layers)
    assert set(KEY_MAP.parts("double_blocks.0.img_attn.qkv")).isdisjoint(layers)


@pytest.mark.parametrize("layout", ["comfyui", "kohya"])
def test_such_a_file_is_written_again_without_a_change(layout, folder, tmp_path):
    path, given = tmp_path / "a.safetensors", folder / "lokr odd.safetensors"
    assert convert(given, path, layout, KEY_MAP).exact
    convert(path, tmp_path / "b.safetensors", "comfyui", KEY_MAP)
    found, wanted = load_file(tmp_path / "b.safetensors"), load_file(given)
    # A layer whose halves are turned can have its Diffusers name.
    turned = "diffusion_model.final_layer.adaLN_modulation.1"
    same = {key for key in wanted if not key.startswith((f"{turned}.lokr", f"{turned}.alpha"))}
    assert same == {key for key in found if "norm_out" not in key}
    assert all(torch.equal(found[key], wanted[key]) for key in same)
    assert sum(".qkv.lokr" in key or ".linear1.lokr" in key for key in same) == 6
