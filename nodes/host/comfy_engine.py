"""What training through a MODEL asks of ComfyUI: weights as they are read, and a model loaded.

With `comfy_host` the only file that imports ComfyUI's own modules. It is imported when a run
through a MODEL begins, not when ComfyUI starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import comfy.model_management as management
import comfy.ops

if TYPE_CHECKING:
    from torch import Tensor

CastOp: type[Any] = comfy.ops.CastWeightBiasOp
"""What ComfyUI's ops have in common: a weight that is cast when it is asked for."""

QuantizedTensor: type[Any] = comfy.ops.QuantizedTensor
Fp8Linear: type[Any] = comfy.ops.fp8_ops.Linear
"""It clamps the numbers of its input in place."""


def read_weight(op: Any, like: Tensor) -> tuple[Any, Any, Any]:
    """An op's weight and bias as its forward pass reads them, for an input.

    Args:
        op: Any module with a weight.
        like: Its dtype and device are asked for.

    Returns:
        Weight, bias and what `give_back` wants.
    """
    own = getattr(op, "cast_bias_weight", None)
    if own is not None:
        # A pack's own op, which keeps a packed weight in a way that only it can read.
        weight, bias, *_ = own(like)
        return weight, bias, None
    if not isinstance(op, CastOp):
        bias = getattr(op, "bias", None)
        return op.weight.to(like.device, like.dtype), None if bias is None else bias.to(like), None
    return comfy.ops.cast_bias_weight(op, like, offloadable=True)


def give_back(op: Any, weight: Any, bias: Any, ticket: Any) -> None:
    """Say that a weight of `read_weight` is no longer used: its memory may go to another."""
    if ticket is not None:
        comfy.ops.uncast_bias_weight(op, weight, bias, ticket)


@contextmanager
def in_training() -> Iterator[None]:
    """While it lasts, ComfyUI's models compute in forms that autograd can follow."""
    before = management.in_training
    management.in_training = True
    try:
        yield
    finally:
        management.in_training = before


def load_model(patcher: Any, memory_required: int) -> None:
    """Load a model as a sampler does, its patches applied.

    Args:
        patcher: ComfyUI's ModelPatcher.
        memory_required: Bytes that are to be left free for the work.
    """
    management.load_models_gpu([patcher], memory_required=memory_required)


def unload_model(patcher: Any) -> None:
    """Take a model's patches out of its weights and give the device back."""
    for place, loaded in enumerate(management.current_loaded_models):
        if loaded.model is patcher:
            loaded.model_unload()
            del management.current_loaded_models[place]
            return
    patcher.detach()
