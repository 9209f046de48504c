"""Runs inside ComfyUI's interpreter: its table of names, and what it computes with small files.

Arguments: FOLDER JOBS. JOBS is a JSON file: ``bases`` maps a family to the shapes of its base's
tensors, of which a model without weights is made; ``cases`` is a list of (file, shape of the
weight). Each file's keys begin with ``diffusion_model.layer`` or ``other.layer``, which both mean
that one weight; ``files`` is a list of (family, file), which are only loaded, by the names of the
family's model. ``results.json`` of FOLDER gets the tables, for each file what ComfyUI said, and for
each case the same and whether it stopped; ``results.safetensors`` the weights before and after.
"""

import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from said import Said

LAYER = "diffusion_model.layer"


def model_of(shapes):
    """ComfyUI's model without weights, for a base of these shapes."""
    import comfy.model_detection

    weights = {name: torch.empty(shape, device="meta") for name, shape in shapes.items()}
    config = comfy.model_detection.model_config_from_unet(weights, "")
    config.set_inference_dtype(torch.float32, None)
    return config.get_model(weights, "", device="meta")


def table_of(model):
    """ComfyUI's table and its model's tensors."""
    import comfy.lora

    table = comfy.lora.model_lora_keys_unet(model, {})
    places = []
    for name, target in table.items():
        parts = [target] if isinstance(target, str) else list(target)
        tensor, rows, swap = [*parts, None, None][:3]
        places.append((name, [tensor, None if rows is None else list(rows), swap is not None]))
    own = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    return {"table": places, "tensors": own}


def load(model, path, collector):
    """What ComfyUI says while it loads a file for a model."""
    import comfy.lora
    import comfy.lora_convert

    collector.messages.clear()
    table = comfy.lora.model_lora_keys_unet(model, {})
    comfy.lora.load_lora(comfy.lora_convert.convert_lora(load_file(path)), table)
    return list(collector.messages)


def compute(path, shape, collector):
    """The weight before and after, and what happened."""
    import comfy.lora

    collector.messages.clear()
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    before, stopped = weight.clone(), ""
    table = {LAYER: f"{LAYER}.weight", "other.layer": f"{LAYER}.weight"}
    try:
        patches = comfy.lora.load_lora(load_file(path), table)
        for patch in patches.values():
            weight = comfy.lora.calculate_weight([(1.0, patch, 1.0, None, None)], weight, LAYER)
    except Exception as error:  # noqa: BLE001  whatever ComfyUI would stop with
        stopped = f"{type(error).__name__}: {error}"
    return before, weight, {"messages": list(collector.messages), "stopped": stopped}


def main():
    folder, jobs_file = map(Path, sys.argv[1:])
    jobs = json.loads(jobs_file.read_text(encoding="utf-8"))
    models = {name: model_of(shapes) for name, shapes in jobs["bases"].items()}
    result = {"bases": {name: table_of(model) for name, model in models.items()}}
    collector = Said()
    result["files"] = [load(models[name], path, collector) for name, path in jobs["files"]]
    tensors, cases = {}, []
    for number, (path, shape) in enumerate(jobs["cases"]):
        before, after, facts = compute(path, shape, collector)
        tensors |= {f"{number}/before": before, f"{number}/after": after.contiguous()}
        cases.append(facts)
    save_file(tensors, folder / "results.safetensors")
    result["cases"] = cases
    (folder / "results.json").write_text(json.dumps(result), encoding="utf-8")


main()
