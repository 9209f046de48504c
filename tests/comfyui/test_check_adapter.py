"""Check Adapter on a model of ComfyUI: fine files are fine, and every way to spoil one is named."""

import pytest
import torch
from fixtures.native_files import flux_to_native, make_native_flux
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapter_files.write.write_plan import Options
from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.families.registry import get_family

pytestmark = pytest.mark.comfy

BASE = "checked_flux.safetensors"
OWN = {"adapter_trainer": '{"family": "flux"}'}
"""The header of a file of this program, whose base may have had any size."""
TARGETS = [r".*blocks.*\.(to_[qkv]|add_q_proj|to_add_out|proj_mlp|proj_out|linear)", "x_embedder"]
LAYERS = 21
IMAGE = "diffusion_model.double_blocks.0.txt_attn.proj"
FILES = {
    "lora": ({"kind": "lora"}, "comfyui", False),
    "fused": ({"kind": "lora"}, "comfyui", True),
    "loha": ({"kind": "loha"}, "kohya", False),
    "lokr": ({"kind": "lokr", "factor": 4}, "lycoris", False),
    "dora": ({"kind": "lora", "dora": True}, "comfyui", False),
    "dora lokr": ({"kind": "lokr", "factor": -1, "dora": True}, "lycoris", False),
}
PARTS = "parts of fused layers are dropped"
BYPASSED = {
    "lora": [PARTS],
    "fused": [],
    "loha": [],
    "lokr": [PARTS],
    "dora": [PARTS, "they know no DoRA"],
    "dora lokr": [PARTS, "they know no DoRA"],
}


def rename(tensors):
    tensors[f"{IMAGE}x.lora_up.weight"] = tensors.pop(f"{IMAGE}.lora_up.weight")


def turn(tensors):
    for factor in ("lora_up", "lora_down"):
        key = f"{IMAGE}.{factor}.weight"
        tensors[key] = tensors[key][: len(tensors[key]) // 2].contiguous()


def peft_lengths(tensors):
    tensors[f"{IMAGE}.dora_scale"] = torch.ones(128, 1)


def bias_of_a_part(tensors):
    tensors["transformer.single_transformer_blocks.0.attn.to_q.diff_b"] = torch.ones(128)


# How the file "lora" is spoiled, and what the report says of it.
SPOILED = {
    "renamed": (rename, "ignored: diffusion_model.double_blocks.0.txt_attn.projx.lora_up.weight"),
    "cut": (turn, f"wrong shape: {IMAGE}.lora_up.weight"),
    "rows": (peft_lengths, "differs: transformer_blocks.0.attn.to_add_out"),
    "bias": (bias_of_a_part, "ignored: transformer.single_transformer_blocks.0.attn.to_q.diff_b"),
}


def make_state(transformer, options):
    """Every factor of every layer random, and lengths that stretch."""
    config = AdapterConfig(**{"rank": 4, "alpha": 3.0, "targets": TARGETS, **options})
    adapter = attach(transformer, config, presets=get_family("flux").layers.presets)
    state = adapter.state()
    adapter.detach()
    generator = torch.Generator().manual_seed(4)
    for layer in state.layers.values():
        for name, tensor in layer.tensors.items():
            noise = torch.randn(tensor.shape, generator=generator)
            if name == "dora_scale":
                tensor *= 1.0 + 0.1 * noise
            else:
                tensor.copy_(0.3 * noise)
    assert len(state.layers) == LAYERS
    return state


@pytest.fixture(scope="module")
def reports(shared_server, tmp_path_factory):
    """All files checked in one prompt, with the base that ComfyUI loaded once."""
    transformer = make_native_flux(layers=2, single_layers=1)
    models = shared_server.data / "models"
    for kind in ("diffusion_models", "loras"):
        (models / kind).mkdir(parents=True, exist_ok=True)
    native = flux_to_native(transformer.state_dict())
    save_file({k: v.contiguous() for k, v in native.items()}, models / "diffusion_models" / BASE)
    for name, (options, layout, fused) in FILES.items():
        path = models / "loras" / f"checked_{name}.safetensors"
        state = make_state(transformer, options)
        key_map = get_family("flux").layers.key_map
        write_adapter(path, state, layout, key_map, OWN, options=Options(fused=fused))
    for name, (spoil, _) in SPOILED.items():
        tensors = load_file(models / "loras" / "checked_lora.safetensors")
        spoil(tensors)
        save_file(tensors, models / "loras" / f"checked_{name}.safetensors")
    tensors = load_file(models / "loras" / "checked_lora.safetensors")
    tiny = {k: t * 1e-6 if "lora_up" in k else t for k, t in tensors.items()}
    save_file(tiny, models / "loras" / "checked_tiny.safetensors")
    tensors = load_file(models / "loras" / "checked_dora.safetensors")
    long = {k: t * 4 if "dora_scale" in k else t for k, t in tensors.items()}
    save_file(long, models / "loras" / "checked_long.safetensors")
    foreign = {"lora_unet_input_blocks_1_0.lora_up.weight": torch.ones(4, 4)}
    save_file(foreign, models / "loras" / "checked_foreign.safetensors")
    loader = {"unet_name": BASE, "weight_dtype": "default"}
    prompt = {"0": {"class_type": "UNETLoader", "inputs": loader}}
    names = [*FILES, *SPOILED, "foreign", "long"]
    for name in names:
        file = f"checked_{name}.safetensors"
        inputs = {"model": ["0", 0], "file": file, "on_problem": "report"}
        prompt[name] = {"class_type": "AdapterTrainerCheck", "inputs": inputs}
    convert = {"file": "checked_lora.safetensors", "name": "checked_converted", "overwrite": True}
    prompt["convert"] = {
        "class_type": "AdapterTrainerConvert",
        "inputs": {**convert, "layout": "lycoris", "family": "auto"},
    }
    own = "diffusion_model."
    both = {
        f"{own}transformer_{expert}.{key.removeprefix(own)}": tensor.clone()
        for expert in (1, 2)
        for key, tensor in tensors.items()
        if key.startswith(own)
    }
    save_file(both, models / "loras" / "checked_both.safetensors", OWN)
    inputs = {**convert, "file": "checked_both.safetensors", "layout": "comfyui", "family": "auto"}
    prompt["both"] = {"class_type": "AdapterTrainerConvert", "inputs": inputs}
    inputs = {"model": ["0", 0], "file": "none", "on_problem": "stop", "lora": ["convert", 0]}
    prompt["linked"] = {"class_type": "AdapterTrainerCheck", "inputs": inputs}
    loader = {"unet_name": BASE, "weight_dtype": "fp8_e4m3fn"}
    prompt["1"] = {"class_type": "UNETLoader", "inputs": loader}
    inputs = {"model": ["1", 0], "file": "checked_dora.safetensors", "on_problem": "report"}
    prompt["eight bits"] = {"class_type": "AdapterTrainerCheck", "inputs": inputs}
    names += ["linked", "eight bits", "short", "both"]
    # Without a GPU ComfyUI widens a bf16 base to fp32, where nothing vanishes.
    inputs = {"model": ["1", 0], "file": "checked_tiny.safetensors", "on_problem": "report"}
    prompt["short"] = {"class_type": "AdapterTrainerCheck", "inputs": inputs}
    result = shared_server.run(prompt)
    yield {name: result["outputs"][name]["text"][0] for name in names}
    for path in models.glob("*/checked_*"):
        path.unlink()


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_every_layout_is_fine(name, reports):
    first, *rest = reports[name].splitlines()
    assert first.startswith("Fine: ")
    assert f"{LAYERS} layers compared" in first
    assert "Base: Flux." in first
    largest = float(first.partition("largest difference ")[2].partition(". ")[0])
    assert largest < 1e-4
    assert rest.pop().startswith("Not seen: ")
    assert all(line.startswith("Bypass loaders: ") for line in rest)
    assert len(rest) == len(BYPASSED[name])
    for line, expected in zip(rest, BYPASSED[name], strict=True):
        assert expected in line


def test_an_adapter_of_the_graph_is_checked_like_a_file(reports):
    assert reports["linked"].startswith(f"Fine: {3 * LAYERS} of {3 * LAYERS} tensors are loaded")


def test_a_base_in_eight_bits_is_compared_as_it_is(reports):
    assert reports["eight bits"].startswith("Fine: ")
    assert f"{LAYERS} layers compared" in reports["eight bits"]


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_is_named(name, reports):
    first, *rest = reports[name].splitlines()
    assert first.startswith("NOT FINE: ")
    assert any(line.startswith(SPOILED[name][1]) for line in rest), reports[name]


def test_lengths_and_changes_that_do_not_fit_the_model_are_warned_of(reports):
    assert "Warning: the DoRA magnitudes of" in reports["long"]
    assert "Warning: the change is small beside" in reports["short"]
    assert not any("Warning: " in reports[name] for name in FILES)


def test_an_adapter_of_another_model_is_not_loaded(reports):
    assert reports["foreign"].startswith("NOT FINE: 0 of 1 tensors are loaded")
    assert "Nothing was compared: " in reports["foreign"]


def test_a_graph_can_be_stopped(server):
    from trainer_core.tensors.safetensors_writer import save_tensors

    models = server.data / "models"
    transformer = make_native_flux(layers=1, single_layers=1)
    native = flux_to_native(transformer.state_dict())
    save_tensors(models / "diffusion_models" / "stopped_flux.safetensors", native)
    save_tensors(models / "loras" / "stopped.safetensors", {"x.lora_up.weight": torch.ones(2, 2)})
    loader = {"unet_name": "stopped_flux.safetensors", "weight_dtype": "default"}
    check = {"model": ["0", 0], "file": "stopped.safetensors", "on_problem": "stop"}
    prompt = {
        "0": {"class_type": "UNETLoader", "inputs": loader},
        "1": {"class_type": "AdapterTrainerCheck", "inputs": check},
    }
    failure = server.failure(server.result(server.queue(prompt)))
    for path in models.glob("*/stopped*"):
        path.unlink()
    assert failure["event"] == "execution_error"
    assert "NOT FINE: 0 of 1 tensors are loaded" in failure["exception_message"]
    assert "on_problem" in failure["exception_message"]


def test_a_file_of_both_experts_becomes_two(reports):
    text = reports["both"]
    for expert in ("high", "low"):
        assert f"Wrote checked_converted_{expert}_noise.safetensors" in text
    assert "those of the first, for high noise" in text
