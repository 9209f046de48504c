"""`borrowed_denoiser`: the model of a MODEL socket, in place, for as long as a run trains on it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from . import comfy_model_management
from .frozen_modules import frozen_modules
from .refused_models import require_trainable
from .unchanged_inputs import unchanged_inputs

_SAMPLING, _ORIGINAL = "model_sampling", "_orig_mod"


@dataclass(frozen=True, slots=True)
class BorrowedModel:
    """A model that is loaded, frozen and ready to be trained on.

    Attributes:
        patcher: The run's own clone of the MODEL's patcher; its weights are the MODEL's.
        model: ComfyUI's ``BaseModel``, whose ``apply_model`` gives the network's raw output.
        denoiser: Its ``diffusion_model``, whose layers can be adapted.
    """

    patcher: Any
    model: Any
    denoiser: nn.Module


@contextmanager
def borrowed_denoiser(
    model: Any,
    block_lists: Sequence[str] = (),
    dtype: torch.dtype | None = None,
    memory_required: int = 0,
) -> Iterator[BorrowedModel]:
    """Load a MODEL and make it trainable; afterwards it is as it was, whatever happened meanwhile.

    Nothing is copied: the modules and weights are those that ComfyUI samples with. LoRA patches of
    the MODEL are part of its frozen weights. Call it outside of inference mode. ``pre_run`` of the
    patcher is not called: without a current patcher ComfyUI neither fetches weights ahead nor
    records CUDA graphs, neither of which autograd can follow.

    Args:
        model: The ModelPatcher of a MODEL socket.
        block_lists: Paths in the denoiser of the lists of its blocks, whose inputs are protected
            from changes in place (`unchanged_inputs`).
        dtype: What it computes in; None for what it computes in when it is sampled.
        memory_required: Bytes of the device that the run needs beside the model.

    Raises:
        InputError: When it cannot be trained through (`require_trainable`).
    """
    require_trainable(model)
    patcher = model.clone()
    inner = patcher.model
    sampling = patcher.get_model_object(_SAMPLING)
    patcher.add_object_patch(_SAMPLING, raw_output_sampling(sampling))
    before = _LoadedState(model)
    with ExitStack() as at_end:
        # Whatever of it has been done by then.
        at_end.callback(patcher.cleanup)
        at_end.callback(before.restore, patcher)
        at_end.callback(setattr, inner, "latent_shapes", getattr(inner, "latent_shapes", None))
        # As a sampler does; tensors that were made so can be changed in no other way.
        with torch.inference_mode():
            comfy_model_management.load_model(patcher, memory_required)
        at_end.enter_context(comfy_model_management.kept_loaded(patcher))
        at_end.enter_context(comfy_model_management.uninterrupted())
        at_end.enter_context(comfy_model_management.computing_in(inner, dtype))
        at_end.enter_context(comfy_model_management.in_training())
        at_end.enter_context(comfy_model_management.differentiable_kernels())
        at_end.enter_context(comfy_model_management.exact_attention(patcher.load_device))
        at_end.enter_context(frozen_modules(inner.diffusion_model))
        at_end.enter_context(unchanged_inputs(inner.diffusion_model, block_lists))
        yield BorrowedModel(patcher, inner, inner.diffusion_model)


@contextmanager
def uncompiled(model: Any) -> Iterator[Any]:
    """A MODEL with the original of each object that a node has compiled; itself without any.

    A compiled block has the weights of its original under other names, which no adapter has.
    Where the compiled ones are in place, the originals take it until the end.
    """
    originals = {
        name: each._orig_mod
        for name, each in model.object_patches.items()
        if hasattr(each, _ORIGINAL)
    }
    if not originals:
        yield model
        return
    plain = model.clone()
    plain.object_patches |= originals
    try:
        _put(model, originals)
        yield plain
    finally:
        _put(model, {name: model.object_patches[name] for name in originals})


def _put(model: Any, objects: Mapping[str, Any]) -> None:
    for name, each in objects.items():
        if name in model.object_patches_backup:
            comfy_model_management.set_attr(model.model, name, each)


class _LoadedState:
    """What of a MODEL's patches is in its model before a run."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._weights = model.model.current_weight_patches_uuid
        self._objects = bool(model.object_patches_backup)

    def restore(self, patcher: Any) -> None:
        """Take out what the run has put in."""
        with torch.inference_mode():
            changed = patcher.model.current_weight_patches_uuid != self._weights
            if changed and patcher.patches:
                comfy_model_management.unload_model(patcher)
            patcher.unpatch_model(unpatch_weights=False)
            if self._objects:
                self._model.patch_model(load_weights=False)


class _RawOutput:
    """What a model's network gives, instead of the latents that it stands for."""

    def calculate_denoised(self, sigma: Any, model_output: Tensor, model_input: Any) -> Tensor:
        """The output as it is."""
        del sigma, model_input
        return model_output


def raw_output_sampling(sampling: nn.Module) -> nn.Module:
    """A copy of a graph's ``model_sampling``, with its tensors, for the network's own output."""
    raw = copy.copy(sampling)
    for name, value in vars(sampling).items():
        if isinstance(value, dict):
            vars(raw)[name] = copy.copy(value)
    own = type(sampling)
    object.__setattr__(raw, "__class__", type(f"Raw{own.__name__}", (_RawOutput, own), {}))
    return raw
