"""ComfyUI's CONDITIONING of one text as plain tensors, and back, with nothing lost.

A conditioning is a tensor and a mapping of whatever the text encoder, and the model later, want to
tell each other: tensors, numbers, words, lists of them. Which, differs from model to model. So it
is kept as it is: its tensors, and beside them one that holds its form as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import DatasetError
from ...trainer_core.filesystem.text_files import parse_json
from .ordinary_tensors import ordinary_copy

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORM = "form"
"""Name of the tensor that holds the form: JSON as UTF-8, uint8."""

_TENSOR, _BATCHED, _PADDED = "tensor", "batched", "padded"
_MATRIX = 2


def stored_conditioning(entries: Sequence[Any], caption: str) -> dict[str, Tensor]:
    """Take a conditioning apart.

    Args:
        entries: What ``CLIP.encode_from_tokens_scheduled`` gave: pairs of a tensor and a mapping.
        caption: Of which text, for messages.

    Returns:
        Tensors by name, on the CPU: floats in float32, integers as they are. The first axis of one
        that has one text alone is left out, so that a text `[1, L, D]` is a matrix `[L, D]`, and
        so are rows of zeros at its end: Wan pads each text to 512 rows, which are 8 MB.

    Raises:
        DatasetError: When it has several parts, or something that is not a tensor, number or word.
    """
    if len(entries) != 1:
        raise _strange(caption, f"{len(entries)} parts (a schedule of CLIP hooks)")
    cross_attention, more = entries[0]
    tensors: dict[str, Tensor] = {}
    whole = {"cross_attn": cross_attention, **more}
    form = json.dumps(_taken_apart(whole, tensors, caption))
    tensors[FORM] = _bytes(form)
    return tensors


def restored_conditioning(stored: Mapping[str, Tensor], device: torch.device) -> dict[str, Any]:
    """Put what `stored_conditioning` gave together again, with its tensors on a device.

    The mapping has the tensor as ``cross_attn``: what ComfyUI's samplers make of the pair.
    """
    form = bytes(stored[FORM].cpu().tolist()).decode()
    return _put_together(parse_json(form), stored, device)


def _taken_apart(value: Any, tensors: dict[str, Tensor], caption: str) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        name = f"t{len(tensors)}"
        batched = value.ndim > _MATRIX and value.shape[0] == 1
        dtype = torch.float32 if value.is_floating_point() else value.dtype
        tensors[name] = ordinary_copy(value[0] if batched else value, dtype)
        if batched and tensors[name].ndim == _MATRIX and (rows := _filled_rows(tensors[name])):
            padded = len(tensors[name])
            tensors[name] = tensors[name][:rows].clone()
            return {_PADDED: [name, padded]} if rows < padded else {_BATCHED: name}
        return {_BATCHED if batched else _TENSOR: name}
    if isinstance(value, Mapping):
        return {"map": {str(k): _taken_apart(v, tensors, caption) for k, v in value.items()}}
    if isinstance(value, list | tuple):
        return {"list": [_taken_apart(each, tensors, caption) for each in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise _strange(caption, f"a {type(value).__name__}")


def _put_together(form: Any, stored: Mapping[str, Tensor], device: torch.device) -> Any:
    import torch

    ((kind, held),) = form.items()
    if kind == "value":
        return held
    if kind == "map":
        return {name: _put_together(each, stored, device) for name, each in held.items()}
    if kind == "list":
        return [_put_together(each, stored, device) for each in held]
    if kind == _PADDED:
        name, rows = held
        tensor = stored[name].to(device)
        padding = tensor.new_zeros(rows - len(tensor), tensor.shape[1])
        return torch.cat([tensor, padding])[None]
    tensor = stored[held].to(device)
    return tensor[None] if kind == _BATCHED else tensor


def _filled_rows(matrix: Tensor) -> int:
    """Rows up to the last one that is not all zeros."""
    filled = matrix.any(dim=1).nonzero()
    return int(filled[-1]) + 1 if len(filled) else 0


def _bytes(text: str) -> Tensor:
    import torch

    with torch.inference_mode(False):
        return torch.tensor(list(text.encode()), dtype=torch.uint8)


def _strange(caption: str, found: str) -> DatasetError:
    return DatasetError(
        f"the caption {caption[:60]!r} is encoded to a conditioning with {found}",
        "a conditioning of tensors, numbers and words",
        "Connect the CLIP as its loader gives it, without CLIP hooks.",
    )
