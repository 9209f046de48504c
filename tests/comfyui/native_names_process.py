"""Runs inside ComfyUI's interpreter: models of its classes, their names, and files for them.

Usage: native_names_process.py FOLDER RESULT, with ComfyUI's folder in PYTHONPATH. RESULT gets, as
JSON, what the trainer finds in each class at its published size (`published_models`), and for small
models what ComfyUI loads of files that the trainer writes into FOLDER.
"""

import json
import logging
import re
import sys
from pathlib import Path

import torch

sys.path[:] = [*sys.path, str(Path(__file__).resolve().parents[2])]

from published_models import MODELS, UNETS, make  # noqa: E402 - found by the path above

_FLUX = {
    "hidden_size": 64,
    "num_heads": 2,
    "depth": 2,
    "depth_single_blocks": 2,
    "axes_dim": [8, 12, 12],
    "context_in_dim": 32,
    "vec_in_dim": 16,
}
_UNET = {"model_channels": 32, "context_dim": 48}
SMALL = {
    "sd15": ("SD15", {**UNETS["sd15"], **_UNET}),
    "sdxl": (
        "SDXL",
        {
            **UNETS["sdxl"],
            **_UNET,
            "num_head_channels": 16,
            "adm_in_channels": 64,
            "transformer_depth": [0, 0, 1, 1, 2, 2],
            "transformer_depth_middle": 2,
            "transformer_depth_output": [0, 0, 0, 1, 1, 1, 2, 2, 2],
        },
    ),
    "flux": ("Flux", {**MODELS["flux"][1], "image_model": "flux", **_FLUX}),
    "wan21": (
        "WAN21_T2V",
        {
            "image_model": "wan2.1",
            "model_type": "t2v",
            "dim": 32,
            "ffn_dim": 64,
            "num_heads": 2,
            "num_layers": 2,
            "text_dim": 32,
            "freq_dim": 16,
        },
    ),
}
LAYOUTS = ("comfyui", "kohya")


class Collector(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


def found_in(name):
    """What the trainer finds in a class at its published size."""
    from trainer_core.families import native_model

    model = make(name)
    chosen = {preset: adapted(model, preset) for preset in native_model.native_presets(model)}
    return {
        "blocks": native_model.block_lists(model),
        "counts": {preset: len(names) for preset, names in chosen.items()},
        "default": chosen["default"],
    }


def adapted(model, preset):
    """The layers that a preset names.

    Whether an adapter may be put on ComfyUI's own convolutions is another matter.
    """
    from trainer_core.families import native_model

    windows = preset in native_model.convolutional_presets(model)
    kinds = (torch.nn.Linear, *((torch.nn.Conv2d, torch.nn.Conv3d) if windows else ()))
    patterns = [re.compile(each) for each in native_model.native_presets(model)[preset]]
    return [
        path
        for path, module in model.named_modules()
        if isinstance(module, kinds) and any(each.fullmatch(path) for each in patterns)
    ]


def small_model(name):
    import comfy.supported_models

    kind, config = SMALL[name]
    made = getattr(comfy.supported_models, kind)(dict(config))
    made.set_inference_dtype(torch.float32, None)
    model = made.get_model({}, "", device="cpu")
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.normal_(std=0.05, generator=source)
    return model


def table_facts(model, key_map):
    """Where the trainer's table of names differs from ComfyUI's."""
    import comfy.lora

    from trainer_core.adapter_files.names.key_map import comfyui_table

    shapes = {n: tuple(t.shape) for n, t in model.diffusion_model.state_dict().items()}
    own = {n: f"diffusion_model.{p}" for n, p in comfyui_table(key_map, shapes).items()}
    weights = model.state_dict()
    theirs = {
        name: target if isinstance(target, str) else str(target)
        for name, target in comfy.lora.model_lora_keys_unet(model, {}).items()
        if not isinstance(target, str) or target in weights
    }

    def by_place(table):
        places = {}
        for name, place in table.items():
            places.setdefault(place, []).append(name)
        return places

    # ComfyUI keeps the two names of what reads a label in a set.
    theirs_in_order = {n: place for n, place in theirs.items() if "_embedding" not in n}
    own_in_order = {n: place for n, place in own.items() if "_embedding" not in n}
    ordered, reference = by_place(own_in_order), by_place(theirs_in_order)
    return {
        "names": len(own),
        "not ComfyUI's": [n for n, place in own.items() if theirs.get(n) != place],
        "ComfyUI's alone": [n for n in theirs if n not in own],
        "in another order": [
            place
            for place, names in ordered.items()
            if [n for n in reference.get(place, []) if n in names] != names
        ],
    }


def trained(model, native_model):
    """A LoRA of as many layers as a preset names, as if it had been trained."""
    from trainer_core.types import AdapterState, LayerState

    presets = native_model.native_presets(model)
    source = torch.Generator().manual_seed(7)
    layers = {}
    for name in adapted(model, "convolutions" if "convolutions" in presets else "all_linear"):
        rows, columns, *window = model.get_submodule(name).weight.shape
        factors = {
            "lora_down": torch.randn(2, columns, *window, generator=source),
            "lora_up": torch.randn(rows, 2, *(1 for _ in window), generator=source),
        }
        layers[name] = LayerState(factors, 3.0, 2, tuple(window))
    return AdapterState("lora", layers)


def loaded(path, model, state, collector):
    """What ComfyUI makes of a file, beside what was to be made."""
    import comfy.lora
    import comfy.lora_convert
    from safetensors.torch import load_file

    from trainer_core.adapter_files.factors.effective_delta import effective_delta

    collector.messages.clear()
    table = comfy.lora.model_lora_keys_unet(model, {})
    patches = comfy.lora.load_lora(comfy.lora_convert.convert_lora(load_file(path)), table)
    largest = 0.0
    for name in state.layers:
        key = f"diffusion_model.{name}.weight"
        weight = model.diffusion_model.get_submodule(name).weight.detach()
        patch = [(1.0, patches[key], 1.0, None, None)]
        added = comfy.lora.calculate_weight(patch, weight.clone(), key) - weight
        wanted = effective_delta(state.kind, state.layers[name], weight).reshape(weight.shape)
        largest = max(largest, float((added - wanted).norm() / wanted.norm()))
    return {
        "layers": len(state.layers),
        "patches": len(patches),
        "messages": list(collector.messages),
        "largest difference": largest,
    }


def check_small(name, folder, collector):
    from trainer_core.adapter_files.write.adapter_file import write_adapter
    from trainer_core.families import native_model

    model = small_model(name)
    denoiser = model.diffusion_model
    key_map = native_model.key_map(denoiser)
    state = trained(denoiser, native_model)
    files = {}
    for layout in LAYOUTS:
        path = folder / f"{name}_{layout}.safetensors"
        write_adapter(path, state, layout, key_map, {})
        files[layout] = loaded(path, model, state, collector)
    return {"table": table_facts(model, key_map), "files": files}


def main():
    folder, result = map(Path, sys.argv[1:])
    sys.argv = sys.argv[:1]
    collector = Collector()
    logging.getLogger().addHandler(collector)
    found = {
        "classes": {name: found_in(name) for name in MODELS},
        "small": {name: check_small(name, folder, collector) for name in SMALL},
    }
    result.write_text(json.dumps(found), encoding="utf-8")


main()
