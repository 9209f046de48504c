"""Adapters of the base: as ComfyUI itself patches them, and named by the graph."""

from __future__ import annotations

import json

import pytest
import torch
from comfyui.graphs import BASE, TRAIN, changed, graph, record, run_folder, weights
from fixtures.flux_files import FLUX, random_adapter
from fixtures.native_files import flux_to_native, make_native_flux, to_scaled
from safetensors.torch import save_file

from trainer_core.adapter_files.factors.base_adapters import put_on_base
from trainer_core.adapter_files.write.adapter_file import write_adapter
from trainer_core.adapters.base.weight import dense_weight
from trainer_core.bases.base_adapters import read_base_adapters
from trainer_core.bases.locate import locate_base
from trainer_core.bases.open import open_base
from trainer_core.config import BaseAdapter, BaseSection

pytestmark = pytest.mark.comfy

STRENGTH = 0.7
KINDS = {
    "lora": {"kind": "lora"},
    "lokr": {"kind": "lokr", "factor": 4},
    "dora": {"kind": "lora", "dora": True},
}
CASES = [("fp32", "lora"), ("fp32", "lokr"), ("fp32", "dora"), ("new", "lora")]
WHEN = [(("training", "always")[at % 2], *case) for at, case in enumerate(CASES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("beside")
    model = make_native_flux()
    native = {k: v.contiguous() for k, v in flux_to_native(model.state_dict()).items()}
    save_file(native, folder / "fp32.safetensors")
    tensors, metadata = to_scaled(native, "new")
    save_file(tensors, folder / "new.safetensors", metadata)
    for name, options in KINDS.items():
        state = random_adapter(model, **options)
        write_adapter(folder / f"adapter-{name}.safetensors", state, "comfyui", FLUX.key_map, {})
    return folder


@pytest.fixture(scope="module")
def patched(comfy_host, folder):
    """Base and adapter to the base as ComfyUI has it after Load LoRA, opened as a file."""
    wanted = [*CASES, ("fp32", None)]
    jobs = [
        [
            str(folder / f"{base}.safetensors"),
            None if name is None else str(folder / f"adapter-{name}.safetensors"),
            STRENGTH,
            str(folder / f"patched-{base}-{name}.safetensors"),
        ]
        for base, name in wanted
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    comfy_host.run("merging_process.py", folder / "jobs.json")
    return {key: open_base(job[-1]) for key, job in zip(wanted, jobs, strict=True)}


@pytest.mark.parametrize(("when", "base", "name"), WHEN)
def test_the_base_computes_with_what_comfyui_patches(when, base, name, folder, patched):
    path = str(folder / f"adapter-{name}.safetensors")
    adapter = BaseAdapter(path=path, strength=STRENGTH, when=when)
    section = BaseSection(path=str(folder / f"{base}.safetensors"), adapters=[adapter])
    location = locate_base(section, FLUX, has_controls=False, needs_encoders=False)
    stored = "dense" if base == "fp32" else "file"
    model = FLUX.load_transformer(location, torch.float32, "cpu", stored)
    plain = FLUX.load_transformer(location, torch.float32, "cpu", stored)
    put = put_on_base(model, FLUX.key_map, read_base_adapters(section, FLUX), merge=True)
    assert bool(put.merged) is (when == "always")
    exact, found = patched[base, name], {}
    for module in exact.modules:
        if not isinstance(model.get_submodule(module), torch.nn.Linear):
            continue
        own = dense_weight(model.get_submodule(module), torch.float32)
        before = dense_weight(plain.get_submodule(module), torch.float32)
        change = own - before
        if bool(change.any()):
            found[module] = float((own - exact.weight(module)).norm() / change.norm())
    assert len(found) >= 30
    # ComfyUI's patch of 8-bit weights is rounded to 8 bits again, and ours is not.
    assert max(found.values()) <= (1e-5 if base == "fp32" else 0.5), found


def test_another_adapter_is_noticed(patched):
    lora, dora = patched["fp32", "lora"], patched["fp32", "dora"]
    plain = patched["fp32", None]
    name = "transformer_blocks.0.attn.to_q"
    change = lora.weight(name) - plain.weight(name)
    assert float((lora.weight(name) - dora.weight(name)).norm() / change.norm()) > 0.1


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_graph_names_adapters_of_the_base_by_the_loras_folder(server):
    steps = {"steps": 2, "learning_rate": 1e-2}
    server.run(graph("first", train=steps))
    loras = server.data / "models" / "loras"
    loras.mkdir(parents=True, exist_ok=True)
    (file,) = run_folder(server, "first").glob("first*.safetensors")
    for name in ("turbo.safetensors", "style.safetensors"):
        (loras / name).write_bytes(file.read_bytes())
    server.get("/object_info/AdapterTrainerBase")
    base = {
        "training_adapter": "turbo.safetensors",
        "base_adapters": "style.safetensors = 0.5, always",
    }
    nodes = graph("second", train=steps, base=base)
    server.run(nodes)
    folder = run_folder(server, "second")
    assert record(folder)["status"] == "done"
    told = (folder / "run.yaml").read_text(encoding="utf-8")
    assert told.count("when: training") == told.count("when: always") == 1
    assert "strength: 0.5" in told
    server.run(graph("third", train=steps))
    (second,), (third,) = (
        list(run_folder(server, name).glob(f"{name}*.safetensors")) for name in ("second", "third")
    )
    assert weights(second) != weights(third)
    for wrong, word in (
        ({"base_adapters": "style.safetensors = much"}, "base_adapters has the line"),
        ({"base_adapters": "../style.safetensors"}, "style.safetensors"),
        ({"training_adapter": "absent.safetensors"}, "absent.safetensors"),
    ):
        status, answer = server.post("/prompt", {"prompt": changed(nodes, BASE, **wrong)})
        assert status == 400
        assert word in json.dumps(answer)
    assert TRAIN in nodes
