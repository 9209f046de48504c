"""Runs inside ComfyUI's interpreter: models of its classes, their names, and files for them.

FOLDER has ``names.json``, with lists of ``classes`` and ``small`` models, and gets
``results.json``: what the trainer finds in the class of a tiny MODEL, and what ComfyUI loads of
files that the trainer writes.
"""

import dataclasses
import json
import re
import sys
from pathlib import Path

import torch
from loaded_pack import part
from said import Said

LAYOUTS = ("comfyui", "kohya")
PUBLISHED = {
    "sd15": {"channel_mult": [1, 2, 4, 4]},
    "sdxl": {
        "channel_mult": [1, 2, 4],
        "transformer_depth": [0, 0, 2, 2, 10, 10],
        "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
        "transformer_depth_middle": 10,
    },
}
"""What counts layers as ComfyUI finds it in the published files."""


def found_in(name):
    """What the trainer finds in a class."""
    native_model = part("trainer_core.families.graph_model_layers")
    model = model_of(name, **PUBLISHED.get(name, {})).diffusion_model
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
    native_model = part("trainer_core.families.graph_model_layers")
    windows = preset in native_model.convolutional_presets(model)
    kinds = (torch.nn.Linear, *((torch.nn.Conv2d, torch.nn.Conv3d) if windows else ()))
    patterns = [re.compile(each) for each in native_model.native_presets(model)[preset]]
    return [
        path
        for path, module in model.named_modules()
        if isinstance(module, kinds) and any(each.fullmatch(path) for each in patterns)
    ]


def model_of(name, **changes):
    """ComfyUI's model of a tiny MODEL; weights have no values yet."""
    from tiny_models.denoisers import bare_model
    from tiny_models.sizes import BEGINNING, TINY

    sizes = TINY.get(name) or BEGINNING[name]
    return bare_model(dataclasses.replace(sizes, unet={**sizes.unet, **changes}), "fp32")


def small_model(name):
    model = model_of(name)
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.normal_(std=0.05, generator=source)
    return model


def table_facts(model, key_map):
    """Where the trainer's table of names differs from ComfyUI's."""
    import comfy.lora

    comfyui_table = part("trainer_core.adapter_files.names.key_map").comfyui_table
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
    types = part("trainer_core.types")
    presets = native_model.native_presets(model)
    source = torch.Generator().manual_seed(7)
    layers = {}
    for name in adapted(model, "convolutions" if "convolutions" in presets else "all_linear"):
        rows, columns, *window = model.get_submodule(name).weight.shape
        factors = {
            "lora_down": torch.randn(2, columns, *window, generator=source),
            "lora_up": torch.randn(rows, 2, *(1 for _ in window), generator=source),
        }
        layers[name] = types.LayerState(factors, 3.0, 2, tuple(window))
    return types.AdapterState("lora", layers)


def loaded(path, model, state, collector):
    """What ComfyUI makes of a file, beside what was to be made."""
    import comfy.lora
    import comfy.lora_convert
    from safetensors.torch import load_file

    effective_delta = part("trainer_core.adapter_files.factors.effective_delta").effective_delta
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
    write_adapter = part("trainer_core.adapter_files.write.write_adapter").write_adapter
    native_model = part("trainer_core.families.graph_model_layers")
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
    (folder,) = map(Path, sys.argv[1:])
    collector = Said()
    wanted = json.loads((folder / "names.json").read_text(encoding="utf-8"))
    found = {
        "classes": {name: found_in(name) for name in wanted["classes"]},
        "small": {name: check_small(name, folder, collector) for name in wanted["small"]},
    }
    (folder / "results.json").write_text(json.dumps(found), encoding="utf-8")


main()
