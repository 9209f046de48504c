"""What a number format has cost factors that are in it already."""

from __future__ import annotations

import torch
from torch import Tensor

from ...tensors.safetensors_reader import TensorFile
from ..names.key_parsing import FACTOR_ENDINGS

COARSE = 0.01
"""Relative error from which on a number format has lost something: bf16 rounds by 0.002."""

_SHORT = (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def expected_loss(tensor: Tensor, dtype: torch.dtype) -> float:
    """How far a tensor is from what it was before it was rounded to a format, on the average.

    A number is rounded by up to half a step, evenly spread: by a step over the root of 12. Steps
    shrink with the number down to the format's smallest normal one, and no further.

    Args:
        tensor: Values of the format.
        dtype: The format.

    Returns:
        Norm of the expected error over the norm of the tensor; 0 for a tensor of zeros.
    """
    facts, values = torch.finfo(dtype), tensor.abs()
    size = float(values.square().sum().sqrt())
    if size == 0.0:
        return 0.0
    powers = torch.exp2(torch.floor(torch.log2(values.clamp(min=facts.smallest_normal))))
    steps = torch.where(values > 0, powers * facts.eps, 0.0)
    return float((steps.square().sum() / 12).sqrt()) / size


def format_warning(file: TensorFile) -> str:
    """What is to be said of factors that their number format holds badly; empty where all is well.

    Args:
        file: An opened adapter file. Factors of bf16, whose steps shrink as far as float32's, and
            of more bits are not read.
    """
    losses: dict[str, float] = {}
    for key, info in file.tensors.items():
        if info.dtype in _SHORT and key.endswith(FACTOR_ENDINGS):
            losses[key] = expected_loss(file.read(key).float(), info.dtype)
    odd = {key: loss for key, loss in losses.items() if loss > COARSE}
    if not odd:
        return ""
    worst = max(odd, key=odd.__getitem__)
    return (
        f"{len(odd)} factors have lost more than {COARSE:.0%} to their number format, {worst} "
        f"first: about {odd[worst]:.1%} in {_name(file.tensors[worst].dtype)}. What was lost "
        "cannot be brought back: use the file that it was made from"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
