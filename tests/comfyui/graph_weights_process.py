"""Runs inside ComfyUI's interpreter: MODELs whose weights are kept in different ways are trained.

Arguments: FOLDER CASES. CASES is a JSON list of pairs of a tiny MODEL and a way of keeping its
weights, behind which may stand ``in bf16``, which is what is computed in; FOLDER gets
``results.json``: what was found for each. Beside each is trained a twin, a MODEL in float32 whose
numbers are those that the layers of the other read.
"""

import json
import sys
from pathlib import Path

import torch
from graph_model_process import changed, loaded, losses, marks, run_config, write_found, write_image
from loaded_pack import part

STEPS, STRENGTH, SHARE = 4, 0.7, 0.4
IN_BF16 = " in bf16"


def numbers(weight):
    """A weight's numbers in float32."""
    from comfy.quant_ops import QuantizedTensor
    from packed_ops import PackedTensor, unpacked

    if isinstance(weight, PackedTensor):
        return unpacked(weight, torch.float32)
    if isinstance(weight, QuantizedTensor):
        return weight.dequantize().float()
    return weight.detach().float()


def twin_of(model, name):
    """A MODEL in float32 of the same numbers."""
    from tiny_models.denoisers import tiny_model

    twin = tiny_model(name)
    kept = dict(model.model.diffusion_model.named_parameters())
    for path, parameter in twin.model.diffusion_model.named_parameters():
        parameter.copy_(numbers(kept[path]))
    return twin


def packed_model(name):
    """A MODEL of a pack's own ops, whose matrices are packed in blocks of 32."""
    import comfy.model_patcher
    from packed_ops import PackedOps, packed
    from tiny_models import denoisers

    whole = denoisers.tiny_model(name)
    model = denoisers.bare_model(denoisers.TINY[name], "fp32", PackedOps)
    kept = dict(whole.model.diffusion_model.named_parameters())
    for path, module in model.diffusion_model.named_modules():
        for own, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            values = kept[f"{path}.{own}"]
            fits = own == "weight" and values.ndim == 2 and values.shape[1] % 32 == 0
            content = packed(values) if fits and hasattr(module, "get_weight") else values
            module._parameters[own] = torch.nn.Parameter(content, requires_grad=False)
    return comfy.model_patcher.ModelPatcher(model, whole.load_device, whole.offload_device)


def partly_loaded(model):
    """The MODEL on a device that has memory for a part of it."""
    import comfy.model_patcher

    memory = int(model.model_size() * SHARE)

    class LittleMemory(comfy.model_patcher.ModelPatcher):
        def load(self, *args, **options):
            super().load(*args, **options | {"lowvram_model_memory": memory, "full_load": False})

    return LittleMemory(model.model, model.load_device, model.offload_device)


def with_lora(model):
    """The MODEL with a LoRA on every second of its Linear layers."""
    import comfy.sd

    generator, tensors = torch.Generator().manual_seed(4), {}
    layers = [
        (name, module)
        for name, module in model.model.diffusion_model.named_modules()
        if isinstance(module, torch.nn.Linear)
    ]
    for name, module in layers[::2]:
        rows, columns = module.weight.shape
        down = torch.randn(2, columns, generator=generator) / columns**0.5
        tensors[f"diffusion_model.{name}.lora_down.weight"] = down
        tensors[f"diffusion_model.{name}.lora_up.weight"] = torch.randn(
            rows, 2, generator=generator
        )
    patched, _ = comfy.sd.load_lora_for_models(model, None, tensors, STRENGTH, 0.0)
    assert len(patched.patches) == len(layers[::2])
    return patched


def made(name, way):
    """A MODEL, and the one that has to learn the same."""
    way = way.removesuffix(IN_BF16)
    from tiny_models.denoisers import tiny_model

    if way == "partly loaded":
        return with_lora(partly_loaded(tiny_model(name))), with_lora(tiny_model(name))
    model = packed_model(name) if way == "packed" else tiny_model(name, precision=way)
    return model, twin_of(model, name)


def trained(folder, model, name, run, precision):
    """The adapter's file, and the losses."""
    from tiny_models.sizes import TINY
    from tiny_models.texts import tiny_clip
    from tiny_models.vaes import tiny_vae

    sizes = TINY[name]
    family_of = part("nodes.host.graph_family")
    job = {"kind": "lora", "name": run, "steps": STEPS, "rate": 1e-2}
    job["training"] = {"precision": precision}
    config = run_config(folder, job, sizes.pixels, "graph_model")
    source = family_of.encoders_of(model, tiny_clip(sizes.text), tiny_vae(sizes.vae))
    train = part("trainer_core.training").train
    result = train(config, make_source=source, family=family_of.graph_family(model))
    return result.adapters[0], losses(result.folder)


def contents(model):
    """Every weight of a model in memory, as bytes."""
    kept = {name: each.weight for name, each in model.backup.items()}
    found = {}
    for name, parameter in model.model.named_parameters():
        weight = kept.get(name, parameter)
        plain = getattr(weight, "_qdata", weight).as_subclass(torch.Tensor).detach().contiguous()
        found[name] = plain.clone().view(-1).view(torch.uint8)
    return found


def learned(adapter):
    """The size of the factors that begin at zero."""
    return sum(float(adapter[key].norm()) ** 2 for key in adapter if "lora_up" in key) ** 0.5


def compared(folder, name, way):
    import comfy.model_management
    from safetensors.torch import load_file
    from tiny_models.sizes import TINY

    model, twin = made(name, way)
    precision = "bf16" if way.endswith(IN_BF16) else "fp32"
    write_image(folder / "images", TINY[name].pixels)
    comfy.model_management.load_models_gpu([model])
    modules = [m for m in model.model.modules() if getattr(m, "weight_function", None)]
    found = {"partly": bool(model.model.model_lowvram), "patched in passes": len(modules)}
    before = contents(model), marks(model)
    own, found["losses"] = trained(folder, model, name, "own", precision)
    after = contents(model)
    found["weights changed"] = [
        name for name, each in before[0].items() if not torch.equal(each, after[name])
    ]
    found["changed"] = changed(before[1], marks(model))
    found["still partly"] = bool(model.model.model_lowvram)
    if way != "packed":  # ComfyUI's own patcher does not know a pack's tensors
        patched, found["unread"] = loaded(model, own)
        found["patches"] = len(patched.patches) - len(model.patches)
    comfy.model_management.unload_all_models()
    other, found["twin's losses"] = trained(folder, twin, name, "twin", precision)
    one, two = load_file(own), load_file(other)
    assert one.keys() == two.keys()
    found["layers"] = sum(key.endswith(".alpha") for key in one)
    found["same bits"] = all(torch.equal(one[key], two[key]) for key in one)
    distances = [float((one[key] - two[key]).norm()) for key in one]
    found["apart"] = sum(each**2 for each in distances) ** 0.5 / learned(two)
    comfy.model_management.unload_all_models()
    return found


def main(folder, cases):
    wanted = [(f"{name} {way}", name, way) for name, way in json.loads(cases.read_text())]
    write_found(folder, {case: (folder / case, *given) for case, *given in wanted}, compared)


main(*map(Path, sys.argv[1:]))
