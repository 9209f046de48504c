"""Runs inside ComfyUI's interpreter: pack weights as ComfyUI has them, and read them with it.

Arguments: SOURCE RESULT. SOURCE is a plain single file. RESULT becomes a folder with
``packed.safetensors``, in which the blocks' matrices are packed in every format by turns;
``kinds.json``, which layer is in which; and the two files ``float32.safetensors`` and
``bfloat16.safetensors``: the weights as ComfyUI's own layers have them after it has loaded that
file, written out by comfy-kitchen.
"""

import dataclasses
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

ROTATED = {"convrot": True, "convrot_groupsize": 64}
VARIANTS = {
    "nvfp4": ("nvfp4", "TensorCoreNVFP4Layout", {}, {}),
    "mxfp8": ("mxfp8", "TensorCoreMXFP8Layout", {}, {}),
    "mxfp8 in bytes": ("mxfp8", "TensorCoreMXFP8Layout", {}, {}),
    "int8": ("int8_tensorwise", "TensorWiseINT8Layout", {}, {}),
    "int8 by row": ("int8_tensorwise", "TensorWiseINT8Layout", {"per_channel": True}, {}),
    "int8 rotated": (
        "int8_tensorwise",
        "TensorWiseINT8Layout",
        {"per_channel": True, **ROTATED},
        ROTATED,
    ),
    "w4a4": (
        "convrot_w4a4",
        "TensorCoreConvRotW4A4Layout",
        {"convrot_groupsize": 64},
        {"params": {"convrot_groupsize": 64}},
    ),
    "w4a8": (
        "asym_w4a8_int8",
        "AsymW4A8Int8Layout",
        {"convrot_groupsize": 64},
        {"convrot_groupsize": 64, "group_size": 16},
    ),
    "w4a8 in even steps": (
        "asym_w4a8_int8",
        "AsymW4A8Int8Layout",
        {"convrot_groupsize": 16, "codebook": False, "scale_dtype": torch.float32},
        {"convrot_groupsize": 16},
    ),
}
"""A format in a note, its layout, what it is packed with, and what else is noted."""


def pack(tensors):
    """The tensors of a file with packed matrices, and the variant of each layer."""
    import comfy.quant_ops

    layers = [
        k.removesuffix(".weight") for k, v in tensors.items() if "blocks." in k and v.ndim == 2
    ]
    kinds = {}
    for place, layer in enumerate(layers):
        kinds[layer] = variant = list(VARIANTS)[place % len(VARIANTS)]
        kind, layout_name, options, more = VARIANTS[variant]
        layout = comfy.quant_ops.get_layout_class(layout_name)
        weight = tensors.pop(f"{layer}.weight")
        content, params = layout.quantize(weight, **options)
        for suffix, value in layout.state_dict_tensors(content, params).items():
            if variant.endswith("in bytes") and suffix:
                value = value.view(torch.uint8)
            tensors[f"{layer}.weight{suffix}"] = value.contiguous()
        note = json.dumps({"format": kind, **more}).encode()
        tensors[f"{layer}.comfy_quant"] = torch.tensor(list(note), dtype=torch.uint8)
    return tensors, kinds


def read(denoiser, dtype):
    """Every weight of a loaded model as its layers have it when they compute in a dtype."""
    from comfy.quant_ops import QuantizedTensor, get_layout_class

    found, packed = {}, 0
    for name, weight in denoiser.named_parameters():
        if isinstance(weight, QuantizedTensor):
            params = dataclasses.replace(weight._params, orig_dtype=dtype)
            weight = get_layout_class(weight._layout_cls).dequantize(weight._qdata, params)
            packed += 1
        found[name] = weight.detach().to(dtype).contiguous()
    return found, packed


def main():
    source, result = map(Path, sys.argv[1:])
    import comfy.sd

    result.mkdir()
    tensors, kinds = pack(load_file(source))
    save_file(tensors, result / "packed.safetensors")
    (result / "kinds.json").write_text(json.dumps(kinds), encoding="utf-8")
    path, options = result / "packed.safetensors", {"dtype": torch.float32}
    base = comfy.sd.load_diffusion_model(str(path), model_options=options).model
    for dtype in (torch.float32, torch.bfloat16):
        found, packed = read(base.diffusion_model, dtype)
        assert packed == len(kinds), "ComfyUI has not taken every packed layer for one"
        save_file(found, result / f"{str(dtype).split('.')[1]}.safetensors")


main()
