"""How many blocks of a base are swapped while it samples, where the run file leaves that open."""

from __future__ import annotations

import bisect

import torch
from torch import nn

from ..config import MemorySection, RunConfig
from ..families.family import Family
from ..offload.block_selection import repeated_blocks
from ..offload.empty_base import EmptyBase, bytes_on_device
from ..weights.base_location import BaseLocation
from .decoder import decoding_bytes
from .sampler import preview_frames, preview_layers


def sampling_memory(
    memory: MemorySection, base: EmptyBase, dtype: torch.dtype, room: int
) -> MemorySection:
    """Choose the fewest blocks to swap with which a base has room to sample.

    Args:
        memory: The run file's; what it says of ``blocks_to_swap`` stays as it is, and all of it
            where nothing is to be planned.
        room: Bytes that the device has for its weights.

    Returns:
        The section with ``blocks_to_swap``; that is all of them where none suffice.
    """
    if memory.blocks_to_swap is not None or memory.plan == "off":
        return memory

    def swapping(count: int) -> MemorySection:
        return memory.model_copy(update={"blocks_to_swap": count})

    def fits(count: int) -> bool:
        return bytes_on_device(swapping(count), base, dtype) <= room

    if fits(0):
        return swapping(0)
    return swapping(bisect.bisect_left(range(base.blocks), True, lo=1, key=fits))


def sampling_bytes(config: RunConfig, base: EmptyBase, dtype: torch.dtype) -> int:
    """A cautious guess of what a run's largest preview takes beside the weights."""
    preview = config.preview.largest()
    pixels = preview.width * preview.height
    # One after the other; the base stays where it is meanwhile.
    decoding = decoding_bytes(pixels, dtype, base.family.latents.decoder_numbers)
    return max(forward_bytes(base, dtype, _tokens(config, base.family, base.location)), decoding)


def _tokens(config: RunConfig, family: Family, location: BaseLocation) -> int:
    """Of a preview: its image and control images, and its text."""
    preview, area = config.preview.largest(), config.dataset.control_area or 0
    *_, high, wide = family.latent_shape(location, preview.width, preview.height)
    image, pixels = high * wide // family.latents.patch**2, preview.width * preview.height
    controls = max(map(len, config.preview.controls), default=0)
    frames = preview_layers(preview, family, location.variant) + 1
    if family.clips is not None:
        frames = family.clips.latent_frames(preview_frames(preview, family, 1))
    controls *= max(image, image * area // pixels)
    return location.text_length + frames * image + controls


def forward_bytes(base: EmptyBase, dtype: torch.dtype, tokens: int) -> int:
    """A cautious guess of what a forward pass of one image takes beside the weights.

    Every output of every layer of the widest block, as if all were there at once and each layer
    saw all tokens, and the largest weight once more, as of a format that is written out.

    Args:
        tokens: Of the image, its control images and its text.
    """
    blocks = repeated_blocks(base.transformer, base.family.layers.repeated_blocks)
    widths = [[m.out_features for m in b.modules() if isinstance(m, nn.Linear)] for b in blocks]
    largest = max(weight.numel() for weight in base.weights.values())
    return (tokens * max(map(sum, widths)) + largest) * dtype.itemsize
