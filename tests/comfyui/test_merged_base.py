"""Adapters of the base, merged into a file or put on at loading: as ComfyUI itself patches them."""

import json
import statistics

import pytest
import torch
from fixtures.flux_files import FLUX, random_adapter
from fixtures.native_files import flux_to_native, make_native_flux, to_scaled
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.factors.put_on_base import put_on_base
from trainer_core.adapter_files.read.read_adapter import open_adapter
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters.base.dense_weight import dense_weight
from trainer_core.bases.base_weights import open_base
from trainer_core.bases.locate import locate_base
from trainer_core.bases.read_base_adapters import read_base_adapters
from trainer_core.bases.write_merged import merge_into_base
from trainer_core.config import BaseAdapter, BaseSection

pytestmark = pytest.mark.comfy

STRENGTH = 0.7
KINDS = {
    "lora": {"kind": "lora"},
    "lokr": {"kind": "lokr", "factor": 4},
    "dora": {"kind": "lora", "dora": True},
}

CASES = [*(("fp32", name) for name in (*KINDS, "differences")), ("old", "lora"), ("new", "lora")]
PUT_ON = [
    ("training", "fp32", "lora"),
    ("always", "fp32", "lokr"),
    ("training", "fp32", "dora"),
    ("always", "new", "lora"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("merged")
    model = make_native_flux()
    native = {k: v.contiguous() for k, v in flux_to_native(model.state_dict()).items()}
    save_file(native, folder / "fp32.safetensors")
    for spelling in ("old", "new"):
        tensors, metadata = to_scaled(native, spelling)
        save_file(tensors, folder / f"{spelling}.safetensors", metadata)
    for name, options in KINDS.items():
        state = random_adapter(model, **options)
        write_adapter(
            folder / f"adapter-{name}.safetensors", state, "comfyui", FLUX.layers.key_map, {}
        )
    save_file(differences(native), folder / "adapter-differences.safetensors")
    for base, name in CASES:
        opened = open_base(folder / f"{base}.safetensors")
        target = folder / f"{base}-{name}.safetensors"
        with open_adapter(folder / f"adapter-{name}.safetensors", FLUX.layers.key_map) as adapter:
            merge_into_base(opened, [(adapter.state, STRENGTH)], target)
    return folder


def differences(native):
    """What ComfyUI's own trainer writes beside factors, and what it reads besides."""
    generator = torch.Generator().manual_seed(9)

    def like(name):
        return 0.1 * torch.randn(native[name].shape, generator=generator)

    tensors = {
        "img_in.diff_b": like("img_in.bias"),
        "double_blocks.0.img_attn.qkv.diff": like("double_blocks.0.img_attn.qkv.weight"),
        "double_blocks.0.img_attn.qkv.diff_b": like("double_blocks.0.img_attn.qkv.bias"),
        "double_blocks.1.txt_attn.norm.key_norm.diff": like(
            "double_blocks.1.txt_attn.norm.key_norm.scale"
        ),
        "final_layer.adaLN_modulation.1.diff": like("final_layer.adaLN_modulation.1.weight"),
        "single_blocks.1.linear2.set_weight": like("single_blocks.1.linear2.weight"),
        "txt_in.lora_up.weight": like("txt_in.weight")[:, :2].contiguous(),
        "txt_in.lora_down.weight": like("txt_in.weight")[:2].contiguous(),
    }
    return {f"diffusion_model.{name}": tensor for name, tensor in tensors.items()}


@pytest.fixture(scope="module")
def results(comfy_host, folder):
    """(base, adapter or None, whether merged) to a file of ComfyUI's weights."""
    wanted = {}
    for base in dict.fromkeys(base for base, _ in CASES):
        wanted[base, None] = (f"{base}.safetensors", None)
    for base, name in CASES:
        wanted[base, name, "patched"] = (f"{base}.safetensors", f"adapter-{name}.safetensors")
        wanted[base, name, "merged"] = (f"{base}-{name}.safetensors", None)
    jobs = [
        [
            str(folder / file),
            None if adapter is None else str(folder / adapter),
            STRENGTH,
            str(folder / f"result-{number}.safetensors"),
        ]
        for number, (file, adapter) in enumerate(wanted.values())
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    comfy_host.run("merging_process.py", folder / "jobs.json")
    return {key: result for key, (*_, result) in zip(wanted, jobs, strict=True)}


@pytest.fixture(scope="module")
def weights(results):
    return {key: load_file(result) for key, result in results.items()}


def change_errors(found, expected, base):
    """Relative difference of the changes, for every weight that changes."""
    errors = {}
    for name, weight in expected.items():
        change = weight - base[name]
        if bool(change.any()):
            errors[name] = float((found[name] - weight).norm() / change.norm())
    return errors


@pytest.mark.parametrize("name", KINDS)
def test_merged_weights_are_those_that_comfyui_patches(name, weights):
    base = weights["fp32", None]
    errors = change_errors(weights["fp32", name, "merged"], weights["fp32", name, "patched"], base)
    # Ten tensors of each double block, three of each single one, and nine around them.
    assert len(errors) == 35
    assert max(errors.values()) <= 1e-5, errors


def test_merged_differences_are_those_that_comfyui_patches(weights):
    base, patched = weights["fp32", None], weights["fp32", "differences", "patched"]
    errors = change_errors(weights["fp32", "differences", "merged"], patched, base)
    assert len(errors) == 7
    assert max(errors.values()) <= 1e-6, errors


def test_another_strength_and_the_base_alone_are_noticed(weights):
    base, patched = weights["fp32", None], weights["fp32", "lora", "patched"]
    assert min(change_errors(base, patched, base).values()) > 0.99
    stronger = {n: base[n] + (weight - base[n]) / STRENGTH for n, weight in patched.items()}
    assert min(change_errors(stronger, patched, base).values()) > 0.4
    dora = weights["fp32", "dora", "patched"]
    assert min(change_errors(patched, dora, base).values()) > 0.1


@pytest.mark.parametrize("spelling", ["old", "new"])
def test_merged_8_bit_weights_are_no_further_off_than_comfyuis_own_patches(spelling, weights):
    base, plain = weights[spelling, None], weights["fp32", None]
    changes = {name: w - plain[name] for name, w in weights["fp32", "lora", "patched"].items()}
    exact = {name: base[name] + change for name, change in changes.items() if change.any()}
    ours = change_errors(weights[spelling, "lora", "merged"], exact, base)
    theirs = change_errors(weights[spelling, "lora", "patched"], exact, base)
    assert ours.keys() == theirs.keys()
    assert statistics.median(ours.values()) <= 1.05 * statistics.median(theirs.values())
    # What is left is the rounding to 8 bits: not nothing, and far from all.
    assert 0.01 < statistics.median(ours.values()) < 0.4


@pytest.mark.parametrize(("when", "base", "name"), PUT_ON)
def test_the_base_computes_with_what_comfyui_patches(when, base, name, folder, results):
    path = str(folder / f"adapter-{name}.safetensors")
    adapter = BaseAdapter(path=path, strength=STRENGTH, when=when)
    section = BaseSection(path=str(folder / f"{base}.safetensors"), adapters=[adapter])
    location = locate_base(section, FLUX, has_controls=False, needs_encoders=False)
    stored = "dense" if base == "fp32" else "file"
    model = FLUX.load_transformer(location, torch.float32, "cpu", stored)
    plain = FLUX.load_transformer(location, torch.float32, "cpu", stored)
    put = put_on_base(model, FLUX.layers.key_map, read_base_adapters(section, FLUX), merge=True)
    assert bool(put.merged) is (when == "always")
    exact, found = open_base(results[base, name, "patched"]), {}
    for module in exact.modules:
        if not isinstance(model.get_submodule(module), torch.nn.Linear):
            continue
        own = dense_weight(model.get_submodule(module), torch.float32)
        change = own - dense_weight(plain.get_submodule(module), torch.float32)
        if bool(change.any()):
            found[module] = float((own - exact.weight(module)).norm() / change.norm())
    assert len(found) >= 30
    # ComfyUI's patch of 8-bit weights is rounded to 8 bits again, and ours is not.
    assert max(found.values()) <= (1e-5 if base == "fp32" else 0.5), found
