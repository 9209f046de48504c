"""A base without memory: its denoiser on the meta device, and what its weights will take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from ..config import MemorySection
from ..families.family import Family
from ..families.trainable_text import empty_text, join_text
from ..weights.base_location import BaseLocation
from ..weights.kept_weights import stored_layers
from ..weights.layer_packing import Packing
from ..weights.library_errors import reading_part
from .block_selection import bytes_away, repeated_blocks, swapped_blocks
from .model_bytes import base_bytes


@dataclass(frozen=True, slots=True)
class EmptyBase:
    """A base without numbers.

    Attributes:
        weights: Its parameters by name, as before an adapter is attached.
        blocks: How many there are.
    """

    family: Family
    location: BaseLocation
    transformer: nn.Module
    weights: Mapping[str, nn.Parameter]
    blocks: int

    @property
    def parameters(self) -> int:
        """How many numbers its weights have."""
        return sum(weight.numel() for weight in self.weights.values())


def empty_base(location: BaseLocation, family: Family) -> EmptyBase:
    """Build a base's denoiser without memory.

    Raises:
        BaseModelError: When the base's file or settings are damaged.
    """
    with reading_part(location.denoiser):
        transformer = _build_empty(location, family)
        if location.reads_tokens and family.text.trainable is not None:
            join_text(transformer, empty_text(family.text.trainable, location))
    transformer.requires_grad_(False)
    blocks = len(repeated_blocks(transformer, family.layers.repeated_blocks))
    weights = dict(transformer.named_parameters())
    return EmptyBase(family, location, transformer, weights=weights, blocks=blocks)


def bytes_on_device(memory: MemorySection, base: EmptyBase, dtype: torch.dtype) -> int:
    """Bytes of a base's weights that are on the device at a time.

    Args:
        dtype: What is dense is loaded in.
    """
    lists = base.family.layers.repeated_blocks
    packing = Packing.of(memory.base_format, lists)
    kept = (
        {}
        if packing is None
        else stored_layers(base.location, base.family.files.single_file, packing)
    )
    sizes = {id(base.weights[name]): size for name, size in kept.items()}

    def bytes_of(weight: nn.Parameter) -> int:
        return sizes.get(id(weight), weight.numel() * dtype.itemsize)

    dense = base_bytes(base.transformer, lists, dtype).total
    saved = sum(base.weights[name].numel() * dtype.itemsize - size for name, size in kept.items())
    swapped = swapped_blocks(base.transformer, lists, memory)
    return dense - saved - bytes_away(swapped, memory.swap_slots, bytes_of)


def _build_empty(location: BaseLocation, family: Family) -> nn.Module:
    import diffusers

    from ..weights.diffusers_folder import read_json
    from ..weights.loading import empty_model

    if location.file is not None:
        return empty_model(location, family.files.single_file)
    facts = read_json(location.denoiser / "config.json")
    with torch.device("meta"):
        return getattr(diffusers, facts["_class_name"]).from_config(facts)
