"""Quantised weights of a tiny MODEL, in the entries of a file that ComfyUI reads."""

from __future__ import annotations

import json

import comfy.quant_ops
import torch

FORMATS = {
    "fp8 scaled": ("float8_e4m3fn", {"scale": "recalculate"}),
    "int8": ("int8_tensorwise", {"per_channel": True}),
}
"""ComfyUI's name of a format, and what a weight is packed with."""


def quantized_state(model, precision: str) -> dict[str, torch.Tensor]:
    """The state dict of a model, with the Linear layers in the first of several blocks packed.

    The others stay as they are, as in published files.
    """
    kind, options = FORMATS[precision]
    layout = comfy.quant_ops.get_layout_class(
        comfy.quant_ops.QUANT_ALGOS[kind]["comfy_tensor_layout"]
    )
    state = model.state_dict()
    note = torch.tensor(list(json.dumps({"format": kind}).encode()), dtype=torch.uint8)
    for name, module in model.named_modules():
        if not isinstance(module, torch.nn.Linear) or ".0." not in name:
            continue
        content, params = layout.quantize(state.pop(f"{name}.weight"), **options)
        for suffix, value in layout.state_dict_tensors(content, params).items():
            state[f"{name}.weight{suffix}"] = value.contiguous()
        state[f"{name}.comfy_quant"] = note
    return state
