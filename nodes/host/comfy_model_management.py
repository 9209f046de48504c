"""ComfyUI's model management and ops, as training needs them: weights, attention, loading.

With `comfy_host` the only file that imports ComfyUI's own modules. It is imported when a run
through a MODEL begins, not when ComfyUI starts.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import comfy.ldm.modules.attention
import comfy.model_management as management
import comfy.ops
import comfy.quant_ops
import comfy.supported_models
import comfy.utils
import torch
from torch import is_grad_enabled as grad_enabled

from ...trainer_core.device import has_own_attention
from .clip_and_vae_inputs import ATTENTION
from .ordinary_tensors import ordinary_alias

if TYPE_CHECKING:
    from torch import Tensor

CastOp: type[Any] = comfy.ops.CastWeightBiasOp
"""What ComfyUI's ops have in common: a weight that is cast when it is asked for."""

set_attr = comfy.utils.set_attr
"""Puts an object where a dotted name points to in a model."""

QuantizedTensor: type[Any] = comfy.ops.QuantizedTensor
_CASTS = "comfy_cast_weights"

Fp8Linear: type[Any] = comfy.ops.fp8_ops.Linear
"""It clamps the numbers of its input in place."""


def read_weight(op: Any, like: Tensor) -> tuple[Any, Any, Any]:
    """Weight and bias as an op's forward pass reads them for an input; what `give_back` wants."""
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


class _DifferentiableKernels:
    """comfy-kitchen, whose fused norms and rotations autograd cannot follow, by its plain ones.

    Its own plain forms are torch's operations. They serve while a gradient is asked for; some
    models use the fused ones in training too.
    """

    def __init__(self, fused: Any) -> None:
        self._fused = fused
        self._plain = {}
        for module in ("rope", "adaln"):
            held = vars(importlib.import_module(f"{fused.__name__}.backends.eager.{module}"))
            self._plain |= {name: each for name, each in held.items() if hasattr(fused, name)}

    def __getattr__(self, name: str) -> Any:
        fused, plain = getattr(self._fused, name), self._plain.get(name)
        if plain is None or not callable(plain) or isinstance(plain, type):
            return fused

        def chosen(*args: Any, **options: Any) -> Any:
            if not grad_enabled():
                return fused(*args, **options)
            held = {key: _kept_apart(value) for key, value in options.items()}
            return plain(*(_kept_apart(each) for each in args), **held)

        return chosen


def _kept_apart(value: Any) -> Any:
    """An argument as autograd may keep it: a norm's scale may lie in memory that others get."""
    if not hasattr(value, "is_inference"):
        return value
    return value.clone() if value.dim() == 1 else _followed(value)


def _followed(tensor: Tensor) -> Tensor | None:
    return ordinary_alias(tensor) if tensor.is_inference() else tensor


@contextmanager
def differentiable_kernels() -> Iterator[None]:
    """While it lasts, autograd can follow what ComfyUI's models ask comfy-kitchen for."""
    fused = getattr(comfy.quant_ops, "ck", None)
    if fused is None:
        yield
        return
    comfy.quant_ops.ck = _DifferentiableKernels(fused)
    try:
        yield
    finally:
        comfy.quant_ops.ck = fused


def makes_sound(patcher: Any) -> bool:
    """Whether a MODEL of videos makes their sound too."""
    from ...trainer_core.families import graph_model_layers

    return graph_model_layers.makes_sound(patcher.model.diffusion_model)


def replaces_attention() -> bool:
    """Whether a pack has put another function in the place of torch's own attention."""
    own = torch._C._nn.scaled_dot_product_attention
    return torch.nn.functional.scaled_dot_product_attention is not own


@contextmanager
def exact_attention(device: torch.device) -> Iterator[None]:
    """While it lasts, ComfyUI prefers no attention whose gradients may be wrong.

    `trainer_core.device.borrowed_attention` says why it is cuDNN's. Torch's own attention is put
    back where it is known to work on the device (`has_own_attention`).
    """
    preferred = getattr(comfy.ops, "SDPA_BACKEND_PRIORITY", [])
    before, kernel = list(preferred), torch.nn.functional.scaled_dot_product_attention
    preferred[:] = [each for each in before if each.name != "CUDNN_ATTENTION"]
    # A pack may have put a kernel without a backward pass in its place, for all of torch.
    if has_own_attention(device):
        own = torch._C._nn.scaled_dot_product_attention
        torch.nn.functional.scaled_dot_product_attention = own
    try:
        yield
    finally:
        preferred[:] = before
        torch.nn.functional.scaled_dot_product_attention = kernel


def torch_attention(override: object, *args: Any, **options: Any) -> Tensor:
    """Torch's attention, which has a gradient, in the place of what ComfyUI or a node prefers."""
    del override
    return comfy.ldm.modules.attention.attention_pytorch(*args, **options)


def needs_torch_attention(options: Mapping[str, Any]) -> bool:
    """Whether ``transformer_options`` name a kernel of attention that may have no backward pass."""
    known = comfy.ldm.modules.attention
    plain = ("attention_basic", "attention_sub_quad", "attention_split", "attention_pytorch")
    own = known.optimized_attention.__name__ not in {*plain, "attention_xformers"}
    return own or ATTENTION in options


def load_model(patcher: Any, memory_required: int) -> None:
    """Load a model as a sampler does, its patches applied, and leave so many bytes free."""
    management.load_models_gpu([patcher], memory_required=memory_required)


@contextmanager
def kept_loaded(patcher: Any) -> Iterator[None]:
    """While it lasts, ComfyUI unloads a loaded model for no other, such as the VAE of a preview.

    It would take the patches out of the weights, and move an adapter away from its optimizer.
    """
    every = management.current_loaded_models
    held = [each for each in every if each.model is patcher]
    for each in held:
        every.remove(each)
    try:
        yield
    finally:
        every[:0] = held


@contextmanager
def uninterrupted() -> Iterator[None]:
    """While it lasts, no op asks whether the user has cancelled: a run asks between its steps.

    An op would end a step in its middle, and forget that it was asked.
    """
    wanted = comfy.ops.run_every_op
    comfy.ops.run_every_op = lambda: None
    try:
        yield
    finally:
        comfy.ops.run_every_op = wanted


@contextmanager
def computing_in(model: Any, dtype: Any) -> Iterator[None]:
    """While it lasts, a ``BaseModel`` computes in a dtype; its weights are cast as they are read.

    None is the model's own dtype.
    """
    if dtype is None or dtype == model.get_dtype_inference():
        yield
        return
    before = model.manual_cast_dtype
    # Where weights are kept in what the model computes in, its ops do not cast them by themselves.
    ops = [each for each in model.diffusion_model.modules() if isinstance(each, CastOp)]
    bare = [each for each in ops if not each.comfy_cast_weights]
    own = [each for each in bare if _CASTS in vars(each)]
    model.manual_cast_dtype = dtype
    for each in bare:
        each.comfy_cast_weights = True
    try:
        yield
    finally:
        model.manual_cast_dtype = before
        for each in bare:
            del each.comfy_cast_weights
        for each in own:
            each.comfy_cast_weights = False


def unload_model(patcher: Any) -> None:
    """Take a model's patches out of its weights and give the device back."""
    for place, loaded in enumerate(management.current_loaded_models):
        if loaded.model is patcher:
            loaded.model_unload()
            del management.current_loaded_models[place]
            return
    patcher.detach()


def model_classes() -> list[type]:
    """The classes of models that ComfyUI knows, in the order in which it tries them."""
    return comfy.supported_models.models
