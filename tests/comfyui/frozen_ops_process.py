"""Runs inside ComfyUI's interpreter: each of its ops as it is, and frozen.

FOLDER gets ``results.json``. The reference of an op is the same op with ordinary tensors under
torch's autograd; of a quantized one it is the product with the weight that comfy-kitchen writes
out.
"""

import json
import sys
from pathlib import Path

import torch
from loaded_pack import part

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
CUBE, PLANE, LINE = (2, 8, 4, 5, 6), (2, 8, 6, 5), (2, 8, 7)
OPS = {
    "Linear": (("Linear", 32, 8), {}, (2, 5, 32)),
    "Linear of rows": (("Linear", 32, 8), {"bias": False}, (5, 32)),
    "Conv1d": (("Conv1d", 8, 4, 3), {"padding": 1}, LINE),
    "Conv2d": (("Conv2d", 8, 4, 3), {"padding": 1, "stride": 2}, PLANE),
    "Conv2d of a place": (("Conv2d", 8, 4, 1), {}, PLANE),
    "Conv3d": (("Conv3d", 8, 4, 3), {"padding": 1}, CUBE),
    "GroupNorm": (("GroupNorm", 4, 8), {}, PLANE),
    "GroupNorm of lines": (("GroupNorm", 4, 8), {}, LINE),
    "LayerNorm": (("LayerNorm", 8), {}, (2, 5, 8)),
    "RMSNorm": (("RMSNorm", 8), {}, (2, 5, 8)),
    "BatchNorm2d": (("BatchNorm2d", 8), {}, PLANE),
    "ConvTranspose1d": (("ConvTranspose1d", 8, 4, 3), {"padding": 1}, LINE),
    "ConvTranspose2d": (("ConvTranspose2d", 8, 4, 3), {"stride": 2}, PLANE),
}


def filled(ops, words, options, stored):
    """An op with numbers of its own, kept in a dtype."""
    kind, *sizes = words
    op = getattr(ops, kind)(*sizes, **options).eval()
    torch.manual_seed(1)
    for name, parameter in op._parameters.items():
        if parameter is not None:
            op._parameters[name] = torch.nn.Parameter(
                torch.randn(parameter.shape).mul(0.3).to(stored), requires_grad=False
            )
    for name in ("running_mean", "running_var"):
        if name in op._buffers:
            op._buffers[name] = (torch.rand(op._buffers[name].shape) + 0.5).to(stored)
    return op


def measured(op, reference, x, channels_last=False):
    """What an op gives and keeps, beside a reference (module to (output, input's gradient))."""
    frozen_modules = part("nodes.host.frozen_modules").frozen_modules
    with torch.no_grad():
        own = op(x.clone())
    module, own_class, before = torch.nn.Sequential(op), type(op), dict(op._parameters)
    torch.manual_seed(2)
    g = torch.randn_like(own, dtype=torch.float32).to(own)
    if channels_last:
        g = g.contiguous(memory_format=torch.channels_last)
    expected, wanted = reference(x, g)
    kept = []
    with frozen_modules(module):
        x = x.clone().requires_grad_()
        keep = torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: (kept.append(tensor.untyped_storage().data_ptr()), tensor)[1],
            lambda tensor: tensor,
        )
        with keep:
            y = module(x)
        (found,) = torch.autograd.grad(y, x, g)
        frozen = type(op) is not own_class
    parts = [each for each in before.values() if each is not None]
    places = {getattr(each, "_qdata", each).untyped_storage().data_ptr() for each in parts}
    distance = (found.double() - wanted.double()).norm() / wanted.double().norm()
    return {
        "forward": bool(torch.equal(y, own)),
        "as expected": bool(torch.equal(y, expected)) if expected is not None else None,
        "gradient": bool(torch.equal(found, wanted)),
        "distance": float(distance),
        "keeps": bool(places & set(kept)),
        "inference": all(each.is_inference() for each in parts),
        "frozen": frozen,
        "back": type(op) is own_class
        and all(op._parameters[name] is each for name, each in before.items()),
    }


def by_autograd(op):
    """Torch's own autograd through an op of ordinary tensors."""

    def reference(x, g):
        x = x.clone().requires_grad_()
        y = op(x)
        return y.detach(), torch.autograd.grad(y, x, g)[0]

    return reference


def by_product(weight):
    """The product with a weight's numbers, for the gradient alone."""
    return lambda x, g: (None, g @ weight.clone())


def plain_ops():
    import comfy.ops

    sets = {"plain": comfy.ops.disable_weight_init, "cast": comfy.ops.manual_cast}
    found = {}
    for kind, (words, options, shape) in OPS.items():
        for name, ops in sets.items():
            for dtype_name, dtype in DTYPES.items():
                other = torch.float16 if dtype == torch.bfloat16 else torch.bfloat16
                stored = dtype if name == "plain" else other
                with torch.inference_mode():
                    op = filled(ops, words, options, stored)
                ordinary = filled(ops, words, options, stored)
                torch.manual_seed(3)
                x = torch.randn(shape).to(dtype)
                found[f"{name} {kind} {dtype_name}"] = measured(op, by_autograd(ordinary), x)
    return found


def layouts():
    """Inputs and gradients that lie in another way than their axes say."""
    import comfy.ops

    ops, found = comfy.ops.disable_weight_init, {}
    for kind in ("GroupNorm", "Conv2d", "Conv2d of a place"):
        words, options, shape = OPS[kind]
        for last in (False, True):
            with torch.inference_mode():
                op = filled(ops, words, options, torch.float32)
            ordinary = filled(ops, words, options, torch.float32)
            torch.manual_seed(3)
            x = torch.randn(shape)
            if not last:
                x = x.contiguous(memory_format=torch.channels_last)
            name = f"{kind}, {'gradient' if last else 'input'} by channels"
            found[name] = measured(op, by_autograd(ordinary), x, channels_last=last)
    return found


def eight_bit_ops():
    """Weights of 8 bits without a scale, cast or multiplied as they are."""
    import comfy.ops

    found = {}
    for name, ops in {"cast": comfy.ops.manual_cast, "product": comfy.ops.fp8_ops}.items():
        for dtype_name, dtype in DTYPES.items():
            words, options, shape = OPS["Linear"]
            with torch.inference_mode():
                op = filled(ops, words, options, torch.float8_e4m3fn)
            torch.manual_seed(3)
            x = torch.randn(shape).to(dtype)
            # Clamped in place by ComfyUI's product.
            x[0, 0, 0] = 500.0
            kept, reference = x.clone(), by_product(op.weight.to(dtype))
            found[f"fp8 {name} {dtype_name}"] = measured(op, reference, x)
            found[f"fp8 {name} {dtype_name}"]["input stays"] = bool(torch.equal(kept, x))
    return found


def quantized_ops():
    """Weights that comfy-kitchen has packed, multiplied by its kernels or written out."""
    import comfy.ops
    from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor, get_layout_class

    found = {}
    for kind in ("float8_e4m3fn", "int8_tensorwise", "nvfp4", "mxfp8"):
        for dtype_name, dtype in {"bf16": torch.bfloat16, "fp32": torch.float32}.items():
            # No CPU multiplies mxfp8.
            for whole in (True,) if kind == "mxfp8" else (False, True):
                ops = comfy.ops.mixed_precision_ops({}, dtype, full_precision_mm=whole)
                name = f"{kind} {dtype_name}{' written out' if whole else ''}"
                with torch.inference_mode():
                    op = ops.Linear(64, 32)
                    torch.manual_seed(1)
                    layout = QUANT_ALGOS[kind]["comfy_tensor_layout"]
                    weight = torch.randn(32, 64, dtype=dtype) * 0.3
                    if kind == "int8_tensorwise":
                        content, params = get_layout_class(layout).quantize(weight)
                        made = QuantizedTensor(content, layout, params)
                    else:
                        made = QuantizedTensor.from_float(weight, layout, **_scale(kind))
                    op.weight = torch.nn.Parameter(made, requires_grad=False)
                    op.bias = torch.nn.Parameter(torch.randn(32, dtype=dtype), requires_grad=False)
                    op.quant_format, op.layout_type = kind, layout
                torch.manual_seed(3)
                x = torch.randn(2, 16, 64).to(dtype)
                found[name] = measured(op, by_product(made.dequantize().to(dtype)), x)
    return found


def _scale(kind):
    return {"scale": "recalculate"} if kind.startswith("float8") else {}


def packed_ops():
    """A pack's own ops."""
    from packed_ops import PackedOps, packed, unpacked

    found = {}
    for kind in ("Linear", "Conv2d"):
        for dtype_name, dtype in DTYPES.items():
            words, options, shape = OPS[kind]
            if kind == "Conv2d":
                words, shape = ("Conv2d", 32, 4, 3), (2, 32, 6, 5)
            with torch.inference_mode():
                op = filled(PackedOps, words, options, torch.float32)
                op.weight = torch.nn.Parameter(packed(op.weight), requires_grad=False)
            ordinary = filled(PackedOps, words, options, torch.float32)
            read = unpacked(op.weight, dtype)
            ordinary.weight = torch.nn.Parameter(read.clone(), requires_grad=False)
            torch.manual_seed(3)
            x = torch.randn(shape).to(dtype)
            found[f"packed {kind} {dtype_name}"] = measured(op, by_autograd(ordinary), x)
    return found


def patched_ops():
    """Weights that ComfyUI patches while they are cast, as with little memory."""
    import comfy.ops

    found = {}
    for kind in ("Linear", "Conv2d", "LayerNorm"):
        words, options, shape = OPS[kind]

        def patched(kind=kind, words=words, options=options):
            op = filled(comfy.ops.disable_weight_init, words, options, torch.bfloat16)
            op.weight_function = [lambda weight: weight * 1.5 + 0.25]
            op.bias_function = [lambda bias: bias - 0.5]
            return op

        with torch.inference_mode():
            op = patched()
        torch.manual_seed(3)
        x = torch.randn(shape)
        found[f"patched {kind}"] = measured(op, by_autograd(patched()), x)
    return found


def embeddings():
    import comfy.ops

    frozen_modules = part("nodes.host.frozen_modules").frozen_modules
    found = {}
    for name, ops in (("plain", comfy.ops.disable_weight_init), ("cast", comfy.ops.manual_cast)):
        with torch.inference_mode():
            table = filled(ops, ("Embedding", 6, 4), {}, torch.float32)
        rows, words = torch.tensor([[1, 5, 1]]), {"out_dtype": torch.float32}
        own = table(rows, **words).clone()
        with frozen_modules(torch.nn.Sequential(table)):
            given = table(rows, **words)
        same = torch.equal(own, given) and not given.is_inference()
        found[name] = bool(same and not given.requires_grad)
    return found


def main():
    folder = Path(sys.argv[1])
    parts = (plain_ops, layouts, eight_bit_ops, quantized_ops, packed_ops, patched_ops)
    found = {each.__name__: each() for each in (*parts, embeddings)}
    (folder / "results.json").write_text(json.dumps(found, indent=1), encoding="utf-8")


main()
