"""What ComfyUI's own reader of adapters makes of tensors, on a model and a CLIP of the graph."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ...trainer_core.adapter_files.names.key_map import ComfyuiPlace
from . import comfy_host

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_PREFIX = "diffusion_model."
_UNREAD = "lora key not loaded: "
_ROOM = "one layer of the model in fp32"
_REMEDY = "Free memory, or start ComfyUI with --cpu for the check."
STOPS = (RuntimeError, AttributeError, LookupError, TypeError, ValueError)
"""What ComfyUI's reader raises on tensors that it was not made for."""


class Applied(NamedTuple):
    """A weight with a patch, and what ComfyUI said of it; nothing where all is well."""

    weight: Tensor
    complaint: str


class HostAdapter:
    """An adapter as ComfyUI reads it for a model.

    Args:
        device: Where to compute.

    Attributes:
        names: ComfyUI's table of names for the model, as places.
        patches: What ComfyUI builds, by place: what it calls the place, and the patch.
        base: What ComfyUI calls the model.
        weights: Names of the model's tensors.
        unread: Keys that it says it does not load.
        stopped: Why it stops at this adapter; empty where it does not.
    """

    def __init__(self, model: Any, tensors: Mapping[str, Tensor], device: torch.device) -> None:
        self._lora, convert, self._kinds, self._management = comfy_host.adapter_modules()
        self._model, self._device = model, device
        self.base = type(model.model).__name__
        table = self._lora.model_lora_keys_unet(model.model, {})
        self.names = {name: _place(target) for name, target in table.items()}
        self.stopped, loaded = "", {}
        with _messages() as messages:
            try:
                loaded = self._lora.load_lora(convert.convert_lora(dict(tensors)), table)
            except STOPS as error:
                self.stopped = f"ComfyUI stops: {type(error).__name__}: {error}"
        self.unread = {text.removeprefix(_UNREAD) for text in messages if text.startswith(_UNREAD)}
        self.patches = {_place(target): (target, patch) for target, patch in loaded.items()}
        self._weights = model.get_key_patches(_PREFIX)
        self.weights = [name.removeprefix(_PREFIX) for name in self._weights]

    def weight(self, tensor: str) -> Tensor | None:
        """The model's own weight in float32, without any patch; None where it has none."""
        import torch

        if _PREFIX + tensor not in self._weights:
            return None
        weight, convert = self._weights[_PREFIX + tensor][0]
        cast = self._management.cast_to_device(weight, self._device, torch.float32, copy=True)
        return convert(cast, inplace=True)

    def stored(self, tensor: str) -> torch.dtype | None:
        """The number format of the model's weight; None where it is quantized with scales."""
        weight = self._weights[_PREFIX + tensor][0][0]
        plain = type(weight).__name__ in ("Tensor", "Parameter")
        return weight.dtype if plain else None

    def apply(self, place: ComfyuiPlace, weight: Tensor) -> Applied:
        """Let ComfyUI change a whole weight; the given one may be overwritten."""
        target, patch = self.patches[place]
        key, rows, function = _parts(target)
        with _messages() as messages:
            try:
                weight = self._lora.calculate_weight(
                    [(1.0, patch, 1.0, rows, function)], weight, key
                )
            except STOPS as error:
                full = comfy_host.out_of_memory(error, _ROOM, _REMEDY)
                if full is not None:
                    raise full from error
                messages.append(f"ComfyUI stops: {type(error).__name__}: {error}")
        return Applied(weight, "; ".join(messages))

    def is_adapter(self, place: ComfyuiPlace) -> bool:
        """Whether a patch is one of factors, which the bypass loaders wrap around a layer."""
        return isinstance(self.patches[place][1], self._kinds.WeightAdapterBase)

    def bypass(self, place: ComfyuiPlace, x: Tensor) -> Tensor | None:
        """What the bypass loaders add to the output `[n, out]` of a Linear with inputs `[n, in]`.

        The place is a patch of factors for a whole weight. None where it is not a Linear, or
        ComfyUI cannot do it.
        """
        from torch import nn

        target, patch = self.patches[place]
        module = self._model.model.get_submodule(_parts(target)[0].rpartition(".")[0])
        if not isinstance(module, nn.Linear):
            return None
        self._kinds.BypassForwardHook(module, patch)  # tells the patch what it is around
        with _messages():
            try:
                return patch.h(x, x.new_zeros(len(x), module.out_features))
            except STOPS:
                return None


def with_adapter(
    model: Any,
    clip: Any,
    tensors: Mapping[str, Tensor],
    strength_model: float,
    strength_clip: float,
) -> tuple[Any, Any]:
    """Copies of a model and its CLIP with an adapter, patched by ComfyUI's own Load LoRA.

    ComfyUI logs a line of each tensor of which neither of the two has the layer.
    """
    load = comfy_host.comfyui_class("comfy.sd.load_lora_for_models")
    return load(model, clip, dict(tensors), strength_model, strength_clip)


def _parts(target: Any) -> tuple[str, Any, Any]:
    """ComfyUI's key of a patch: the weight, the rows, and what is done to the change."""
    parts: tuple[Any, ...] = (target,) if isinstance(target, str) else tuple(target)
    rows, function, *_ = (*parts[1:], None, None)
    return str(parts[0]), rows, function


def _place(target: Any) -> ComfyuiPlace:
    key, rows, function = _parts(target)
    place = None if rows is None else (rows[1], rows[2])
    return ComfyuiPlace(key.removeprefix(_PREFIX), place, function is not None)


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())


@contextlib.contextmanager
def _messages() -> Iterator[list[str]]:
    """What ComfyUI writes into its log, where alone it tells what it does not load."""
    collector, log = _Collector(), logging.getLogger()
    log.addHandler(collector)
    try:
        yield collector.messages
    finally:
        log.removeHandler(collector)
