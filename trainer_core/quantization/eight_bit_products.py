"""Products of a frozen weight that is kept in 8 bits, without making it wider.

The other operand is rounded to 8 bits on the fly, with one scale for each of its rows (tokens).
The weight's scales, one for each of its rows, multiply the output; in the gradient of the input
they lie inside of the sum, so the gradient is multiplied by them before it is rounded.

Outside of a compiled graph each line here is a pass through memory, and these passes, not the
products, decide whether 8 bits pay. So intermediate results are as narrow as the input, and a pass
writes what the next one reads: `tests/unit/quantization/test_eight_bit_products.py` counts them.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

LEAST_ROWS = 17
"""Fewer rows are refused by the GPU's kernel, and are no work to speak of."""

_STEPS = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Formats that are multiplied, to the number that a row's largest becomes."""

_MULTIPLE = {torch.int8: 8, torch.float8_e4m3fn: 16}
"""What both sizes of a weight have to be multiples of, for the GPU's kernels."""

_CAPABILITY = {torch.int8: (7, 5), torch.float8_e4m3fn: (8, 9)}
"""The oldest of Nvidia's GPUs that multiply them."""

_WIDE = (torch.float32, torch.bfloat16, torch.float16)

_LEAST_SCALE = torch.finfo(torch.float32).tiny
_WHOLE = 1536.0
"""float16 holds only whole numbers around it, and in their last 8 bits how far they are from it."""


def can_multiply(rows: Tensor, weight: Tensor) -> bool:
    """Whether rows are multiplied with a weight here, or have to go the dense way.

    Args:
        rows: `[..., in]` or, of a gradient, `[..., out]`.
        weight: `[out, in]` as it is stored.
    """
    return (
        rows.dtype in _WIDE
        and rows.device == weight.device
        and rows.numel() >= LEAST_ROWS * rows.shape[-1]
        and takes_product(weight)
    )


def takes_product(weight: Tensor) -> bool:
    """Whether a weight `[out, in]` is multiplied as it is stored, where it is."""
    multiple = _MULTIPLE.get(weight.dtype)
    if multiple is None or any(size % multiple for size in weight.shape):
        return False
    return _has_kernels(weight.device, weight.dtype)


def _has_kernels(device: torch.device, dtype: torch.dtype) -> bool:
    if device.type == "cpu":
        return _multiplies_on_cpu(dtype)
    if device.type != "cuda":
        return device.type == "meta"
    if torch.version.hip is not None:
        return False
    if not torch.cuda.is_available():
        return True  # It is one of a simulated step.
    found = torch.cuda.get_device_properties(device)
    return (found.major, found.minor) >= _CAPABILITY[dtype]


@torch.compiler.assume_constant_result
def _multiplies_on_cpu(dtype: torch.dtype) -> bool:
    return _tried_on_cpu(dtype)


@functools.cache
def _tried_on_cpu(dtype: torch.dtype) -> bool:
    """Whether a product of the largest numbers is exact: what is chosen for a CPU may not be.

    oneDNN's of int8 adds in 16 bits without VNNI, and old CPUs have none of e4m3.
    """
    with _disable_current_modes():
        values = torch.full((32, 64), _STEPS[dtype], device="cpu").to(dtype)
        try:
            sums = _multiply(values, values, torch.ones(32, 1, device="cpu"), torch.float32)
        except RuntimeError:
            return False
        return bool((sums == 64 * _STEPS[dtype] ** 2).all())


def rounded_rows(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Round each row to 8 bits: ``rows = scale * values``, nearly.

    Args:
        rows: `[n, k]`.
        dtype: int8 or float8_e4m3fn.

    Returns:
        Values `[n, k]` and scale, float32 `[n, 1]`. The scale of a row with a nan or an infinity is
        one, so that its products are too.
    """
    size = torch.linalg.vector_norm(rows, ord=math.inf, dim=1, keepdim=True, dtype=torch.float32)
    # size / steps, and more than 0 for a row of zeros.
    scale = torch.rsub(size, _LEAST_SCALE, alpha=-1.0 / _STEPS[dtype])
    if dtype != torch.int8:
        # Row by row whatever x is a view of, as the GPU's kernel wants it.
        return torch.div(rows, scale, out=rows.new_empty(rows.shape)).to(dtype), scale
    if torch.compiler.is_compiling():
        return (rows / scale).round().to(dtype), scale
    # Rounded while it is divided: what would be three passes through wider numbers are two.
    whole = rows.new_full((), _WHOLE, dtype=torch.float32)
    halves = rows.new_empty(rows.shape, dtype=torch.float16)
    torch.addcdiv(whole, rows, scale, out=halves)
    return halves.view(torch.int8)[:, ::2].contiguous(), scale


def product(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """``x @ (scale * weight).T + bias``.

    Args:
        x: `[..., in]`, of which `can_multiply` holds.
        weight: `[out, in]`.
        scale: `[out, 1]`, one number, or None for 1.
        bias: `[out]` or None.

    Returns:
        `[..., out]` in the dtype of x.
    """
    rows = x.reshape(-1, x.shape[-1])
    wide = _wide(x)
    values, own = rounded_rows(rows, weight.dtype)
    y = _multiply(values, weight, own, wide)
    if bias is not None:
        # A weight without a scale is rare: files of plain e4m3.
        columns = own.new_ones(1, 1) if scale is None else scale.view(1, -1)
        torch.addcmul(bias, y, columns, out=y)
    elif scale is not None:
        y.mul_(scale.view(1, -1))
    return y.view(*x.shape[:-1], -1).to(x.dtype)


def input_gradient(g: Tensor, weight: Tensor, scale: Tensor | None) -> Tensor:
    """``g @ (scale * weight)``.

    Args:
        g: `[..., out]`, of which `can_multiply` holds.
        weight: `[out, in]`.
        scale: As for `product`.

    Returns:
        `[..., in]` in the dtype of g.
    """
    rows = g.reshape(-1, g.shape[-1])
    if scale is not None:
        rows = torch.mul(rows, scale.view(1, -1), out=rows.new_empty(rows.shape, dtype=_wide(g)))
    values, own = rounded_rows(rows, weight.dtype)
    # GPUs read both operands along the sum: cuBLAS refuses int8 in the other layout on Hopper, e4m3
    # before Blackwell (pytorch/pytorch#113327, #152150). A copy moves each byte of the base twice a
    # step, 40 GB of Qwen-Image; keeping it would cost what 8 bits save. oneDNN takes either layout
    # of int8, without the copy in a third of the time.
    whole = weight.is_cpu and weight.dtype == torch.int8
    x = _multiply(values, weight.t() if whole else weight.t().contiguous(), own, g.dtype)
    return x.view(*g.shape[:-1], -1)


def _wide(rows: Tensor) -> torch.dtype:
    """The format of sums before both scales are in them, which float16 may not hold."""
    return torch.float32 if rows.dtype == torch.float16 else rows.dtype


def _multiply(values: Tensor, weight: Tensor, own: Tensor, dtype: torch.dtype) -> Tensor:
    """``own * (values @ weight.T)`` of two matrices in 8 bits."""
    if weight.dtype == torch.int8:
        sums = torch._int_mm(values, weight.t())  # pyright: ignore[reportPrivateImportUsage]
    else:
        # A scale for each row is possible here, but not on Windows, nor on every GPU.
        one = own.new_ones(())
        wide = torch.float32 if dtype == torch.float16 else dtype
        sums = torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage]
            values, weight.t(), one, one, out_dtype=wide
        )
    return torch.mul(sums, own, out=own.new_empty(sums.shape, dtype=dtype))
