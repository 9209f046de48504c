"""Latents of a clip and of its sound in one tensor, as a base that generates both predicts them.

Both have one noise level. The order of their numbers is that of ComfyUI 0.33's ``pack_latents``, in
``comfy/utils.py``. What their shapes are stands beside the text, as shapes of tensors without
numbers: reading them makes no device wait.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from .flow import spread_over_frames

_CLIP, _SOUND = "streams.clip", "streams.sound"


def join_streams(clip: Tensor, sound: Tensor) -> Tensor:
    """Put `[B, C, f, h, w]` and `[B, c, t, b]` into `[B, 1, N]`."""
    return torch.cat([each.reshape(len(each), 1, -1) for each in (clip, sound)], dim=-1)


def stream_shapes(clip: Tensor, sound: Tensor) -> dict[str, Tensor]:
    """What stands beside a text of a batch of `join_streams`."""
    return {_CLIP: clip.new_empty(0, *clip.shape[1:]), _SOUND: sound.new_empty(0, *sound.shape[1:])}


def part_streams(joined: Tensor, text: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
    """Undo `join_streams`.

    Args:
        joined: `[B, 1, N]`, or latents without sound.
        text: One of the batch's conditionings.

    Returns:
        `[B, C, f, h, w]` and `[B, c, t, b]`; latents without sound as they are, and None.
    """
    if _CLIP not in text:
        return joined, None
    shapes = [text[name].shape[1:] for name in (_CLIP, _SOUND)]
    parts = joined[:, 0].split([math.prod(each) for each in shapes], dim=-1)
    clip, sound = (p.reshape(-1, *shape) for p, shape in zip(parts, shapes, strict=True))
    return clip, sound


def stream_weights(clip: Tensor, sound: Tensor, masks: Tensor | None, factors: Tensor) -> Tensor:
    """What each number weighs, so that a loss is that of the clip plus that of its sound.

    Args:
        clip: `[B, C, f, h, w]`.
        sound: `[B, c, t, b]`.
        masks: Weights of the clip's places, as `Batch.masks`; None for 1.
        factors: On the loss of the sound, `[B]`.

    Returns:
        `[B, 1, N]`, float32. The mean over all numbers is the weighted mean over those of the clip
        plus the factor times that over those of the sound.
    """
    own = (
        torch.ones(clip.shape)
        if masks is None
        else spread_over_frames(masks, clip).expand(clip.shape)
    )
    of_clip, of_sound = clip[0].numel(), sound[0].numel()
    count = of_clip + of_sound
    heard = (factors * (count / of_sound)).reshape(-1, 1, 1, 1).expand(sound.shape)
    return join_streams(own * (count / of_clip), heard)
