"""Layers that ComfyUI has fused only, trained whole: it computes with the file what was trained."""

import json

import pytest
import torch
from comfyui.readings import relative
from fixtures.lumina2 import ATTENTION, DETECTED, KEY_MAP, MATCHED, TEXT, make_lumina, predict
from fixtures.lumina2 import to_native as lumina_to_native
from fixtures.strong_states import strengthen
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.read.adapter_file import read_adapter
from trainer_core.adapter_files.write.adapter_file import write_adapter
from trainer_core.adapters import attach
from trainer_core.adapters.attach_state import attach_state
from trainer_core.config import AdapterConfig

pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

KINDS = {
    "lora": {"kind": "lora"},
    "loha": {"kind": "loha"},
    "lokr": {"kind": "lokr", "factor": 8},
    "lokr full": {"kind": "lokr", "factor": -1, "full_matrix": True},
    "oft": {"kind": "oft"},
    "lora dora": {"kind": "lora", "dora": True},
    "lokr dora": {"kind": "lokr", "factor": 8, "dora": True},
}
SPOILED = "lokr, keys exchanged"


@pytest.fixture(scope="module")
def both(comfy_host, tmp_path_factory):
    """The velocities of the trainer and of ComfyUI by adapter, and what ComfyUI said."""
    folder = tmp_path_factory.mktemp("whole")
    transformer = make_lumina()
    save_file(lumina_to_native(transformer.state_dict()), folder / "base.safetensors")
    generator = torch.Generator().manual_seed(5)
    noisy = torch.randn(1, 16, 8, 8, generator=generator)
    text, sigma = torch.randn(1, 7, TEXT, generator=generator), torch.tensor([0.7])
    inputs = {"noisy": noisy, "sigma": sigma, "guidance": torch.tensor([1.0])}
    save_file({**inputs, "given/cross_attn": text}, folder / "inputs")
    ours, files = {}, []

    def note(name):
        with torch.no_grad():
            ours[name] = predict(transformer, noisy, sigma, text)

    note("without")
    whole = KEY_MAP.whole_layers(dict(transformer.named_modules()))
    for name, options in KINDS.items():
        config = AdapterConfig(rank=4, alpha=3.0, targets=list(ATTENTION), **options)
        adapter = attach(transformer, config, whole=whole).eval()
        state = strengthen(transformer, adapter, 0.2)
        note(name)
        adapter.detach()
        path = folder / f"{name}.safetensors"
        write_adapter(path, state, "comfyui", KEY_MAP, {}, proof=False)
        files.append((name, str(path), False))
        again = attach_state(transformer, read_adapter(path, KEY_MAP), whole).eval()
        note(f"{name} read")
        again.detach()
    tensors = load_file(folder / "lokr.safetensors")
    for factor in ("lokr_w1", "lokr_w2_a", "lokr_w2_b"):
        one, two = (f"diffusion_model.layers.{n}.attention.qkv.{factor}" for n in (0, 1))
        tensors[one], tensors[two] = tensors[two], tensors[one]
    save_file(tensors, folder / f"{SPOILED}.safetensors")
    files.append((SPOILED, str(folder / f"{SPOILED}.safetensors"), False))
    job = {
        "base": str(folder / "base.safetensors"),
        "inputs": str(folder / "inputs"),
        "result": str(folder / "result"),
        "sizes": {"detected": {**DETECTED, "dim": 96}, "matched": MATCHED},
        "adapters": files,
    }
    (folder / "jobs.json").write_text(json.dumps([job]), encoding="utf-8")
    comfy_host.run("promise_process.py", folder / "jobs.json")
    with safe_open(folder / "result", "pt") as file:
        facts = json.loads(file.metadata()["facts"])
    return ours, load_file(folder / "result"), facts


def test_the_base_is_the_same_on_both_sides(both):
    ours, theirs, _ = both
    assert relative(theirs["without/plain"], ours["without"]) <= 1e-5


@pytest.mark.parametrize("name", KINDS)
def test_comfyui_computes_what_the_whole_layers_computed(name, both):
    ours, theirs, facts = both
    change = ours[name] - ours["without"]
    assert float(change.norm() / ours["without"].norm()) > 0.1
    assert relative(theirs[f"{name}/plain"] - theirs["without/plain"], change) <= 1e-3
    assert facts[name]["messages"] == [] or "LoHa" in facts[name]["messages"][0]
    # Four blocks with one fused layer and one other each.
    assert facts[name]["layers"] == 8


@pytest.mark.parametrize("name", KINDS)
def test_the_file_is_read_back_into_the_same_layers(name, both):
    ours = both[0]
    assert relative(ours[f"{name} read"], ours[name]) <= 1e-6


def test_exchanged_layers_are_noticed(both):
    ours, theirs, _ = both
    assert relative(theirs[f"{SPOILED}/plain"], ours["lokr"]) > 1e-3
