"""What a CLIP_VISION of the graph sees in an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import InputError
from .ordinary_tensors import ordinary_copy

if TYPE_CHECKING:
    from torch import Tensor

_REMEDY = "Connect Load CLIP Vision with a CLIP, SigLIP or DINOv2 model."


def seen_in(vision: Any, pixels: Tensor) -> Tensor:
    """The embedding `[D]` of an image `[H, W, 3]` in [0, 1], as CLIP Vision Encode gives it.

    Raises:
        InputError: When it is not a vision model, or gives no embedding of a whole image.
    """
    encode = getattr(vision, "encode_image", None)
    if encode is None:
        raise InputError(f"clip_vision: {type(vision).__name__}", "a CLIP_VISION", _REMEDY)
    found = encode(pixels[None])["image_embeds"]
    if found is None or found.ndim != 2:
        kind = getattr(vision, "model_type", type(vision).__name__)
        raise InputError(f"clip_vision: {kind}, which gives no embedding", "one that does", _REMEDY)
    return ordinary_copy(found[0])
