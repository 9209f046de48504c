"""How much device memory a run is expected to take. An estimate, not a measurement.

    base        = base parameters on the device x bytes of the precision, and what is kept in fewer
                  bits to the byte; of the blocks that are swapped only ``memory.swap_slots`` of
                  one size count
    adapter     = trainable parameters x 16 bytes (weight, gradient and AdamW's two moments, fp32),
                  and 4 more where the frozen initial factors are kept beside them
    activations = samples x tokens x width x bytes x states
    states      = blocks x kept + 15, or blocks + kept + 15 with gradient checkpointing, which keeps
                  one input for each block and computes the inside of one block again
    kept        = 20, and 27 for lokr

``kept`` is what a block keeps for the backward pass, in values for each token and unit of width,
when the attention matrix is not stored; 15 is what the work on one block takes for a moment. Both
were fitted to peaks measured on narrow FLUX.1 and Qwen-Image models with every kind of adapter, in
fp32 and bf16, with and without checkpointing; all of them lay between 0.69 and 1.3 of the
estimate. Tokens are those of the largest sample. Encoders and previews are not counted, nor what
libraries and the allocator need.

Source of the idea: Korthikanti et al. 2022, section 4.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..adapters import attach
from ..adapters.kinds.registry import KINDS
from ..bases.locate import locate_base
from ..config import MemorySection, RunConfig
from ..data.cached_dataset import CachedItem
from ..device import resolve_precision
from ..errors import RunError
from ..families.family import Family
from ..families.registry import get_family
from ..offload.swapped import bytes_away, repeated_blocks, swapped_blocks
from ..tensors.safetensors_reader import open_tensors
from ..types import Bucket
from ..weights.base_format import Packing
from ..weights.base_location import BaseLocation
from ..weights.loading import reading_part, stored_layers
from .encode_dataset import read_manifest

ADAPTER_BYTES = 16
"""Weight, gradient and two moments of one trainable parameter, each fp32."""

WORKING_STATES = 15
"""Values for each token and unit of width that the work on one block takes for a moment."""

_KEPT_STATES = {"lokr": 27}
_OTHER_KEPT_STATES = 20


@dataclass(frozen=True, slots=True)
class Size:
    """What decides the memory of a step.

    Attributes:
        base_bytes: The frozen denoiser's weights that are on the device at a time.
        trainable_parameters: Parameters of the adapter.
        kind: The adapter's kind.
        blocks: Number of transformer blocks.
        width: Width of the hidden state.
        tokens: Tokens of a sample: image, controls and text.
        samples: Samples in a micro-batch.
        value_bytes: Bytes of a number in the run's precision.
        checkpointing: Whether activations are computed again in the backward pass.
        differences: Whether the frozen initial factors are kept beside the trained ones.
    """

    base_bytes: int
    trainable_parameters: int
    kind: str
    blocks: int
    width: int
    tokens: int
    samples: int
    value_bytes: int
    checkpointing: bool
    differences: bool = False


@dataclass(frozen=True, slots=True)
class EmptyBase:
    """A base without numbers.

    Attributes:
        weights: Its parameters by name, as before an adapter is attached.
        blocks: How many there are.
        width: Of the hidden state.
    """

    family: Family
    location: BaseLocation
    transformer: nn.Module
    weights: Mapping[str, nn.Parameter]
    blocks: int
    width: int

    @property
    def parameters(self) -> int:
        """How many numbers its weights have."""
        return sum(weight.numel() for weight in self.weights.values())


def memory_estimate(size: Size) -> dict[str, int]:
    """Estimate the device memory of a training step.

    Args:
        size: What decides it.

    Returns:
        Bytes of ``base``, ``adapter``, ``activations`` and their ``total``.
    """
    kept = _KEPT_STATES.get(size.kind, _OTHER_KEPT_STATES)
    inside = size.blocks + kept if size.checkpointing else size.blocks * kept
    unit = size.samples * size.tokens * size.width * size.value_bytes
    parts = {
        "base": size.base_bytes,
        "adapter": size.trainable_parameters * (ADAPTER_BYTES + 4 * size.differences),
        "activations": unit * (inside + WORKING_STATES),
    }
    return {**parts, "total": sum(parts.values())}


def empty_base(location: BaseLocation, family: Family) -> EmptyBase:
    """Build a base's denoiser without memory.

    Args:
        location: The checked base.
        family: Its family.

    Returns:
        The denoiser on the meta device, with its counts.

    Raises:
        BaseModelError: When the base's file or settings are damaged.
    """
    with reading_part(location.folder / "transformer"):
        transformer = _build_empty(location, family)
    blocks = len(repeated_blocks(transformer, family.repeated_blocks))
    weights = dict(transformer.named_parameters())
    config: Any = transformer.config
    width = family.sizes(config).width
    return EmptyBase(family, location, transformer, weights, blocks, width)


def image_tokens(base: EmptyBase, image: Bucket) -> int:
    """Tokens of one image or control image.

    Args:
        base: The base.
        image: Size in pixels.
    """
    _, height, width = base.family.latent_shape(base.location, image.width, image.height)
    # Every family so far makes one token of 2 x 2 latents.
    return height * width // 4


def text_tokens(items: Iterable[CachedItem]) -> int:
    """Tokens of the longest text among encoded samples, padding of the encoder included.

    Args:
        items: Samples whose files are there; their headers alone are read.
    """
    lengths: list[int] = []
    for path in {entry.path for item in items for entry in (item.text, item.empty_text)}:
        with open_tensors(path) as file:
            lengths.append(file.tensors["text_embeddings"].shape[0])
    return max(lengths)


def step_size(
    config: RunConfig,
    base: EmptyBase,
    trainable: int,
    tokens: int,
    device: torch.device,
    text: int | None = None,
) -> Size:
    """Collect what decides the memory of a run's step.

    Args:
        config: The run file.
        base: Its base, frozen by an adapter.
        trainable: Parameters of the adapter.
        tokens: Tokens of the largest sample's image and controls.
        device: Decides the precision where the run file does not.
        text: Tokens of the longest text, which are added; None for the most that the family's
            encoder yields.

    Returns:
        The argument of `memory_estimate`.

    Raises:
        ConfigError: When more blocks are to be swapped than there are.
        BaseModelError: When the base cannot be kept as ``memory.base_format`` says.
    """
    value_bytes = 2 if resolve_precision(config.training.precision, device) == "bf16" else 4
    return Size(
        base_bytes=_base_bytes(config.memory, base, value_bytes),
        trainable_parameters=trainable,
        kind=config.adapter.kind,
        blocks=base.blocks,
        width=base.width,
        tokens=tokens + (base.location.text_length if text is None else text),
        samples=config.training.batch_size,
        value_bytes=value_bytes,
        checkpointing=config.memory.gradient_checkpointing,
        differences=config.adapter.init in KINDS[config.adapter.kind].decompositions,
    )


def _base_bytes(memory: MemorySection, base: EmptyBase, value_bytes: int) -> int:
    """What of the base is on the device at a time, to the byte."""
    blocks = base.family.repeated_blocks
    packing = Packing.of(memory.base_format, blocks)
    packed: dict[int, int] = {}
    if packing is not None:
        stored = stored_layers(base.location, base.family.file, packing)
        packed = {id(base.weights[name]): size for name, size in stored.items()}

    def bytes_of(weight: nn.Parameter) -> int:
        return packed.get(id(weight), weight.numel() * value_bytes)

    swapped = swapped_blocks(base.transformer, blocks, memory)
    whole = sum(map(bytes_of, base.weights.values()))
    return whole - bytes_away(swapped, memory.swap_slots, bytes_of)


def cached_run_estimate(config: RunConfig, device: torch.device) -> dict[str, int]:
    """Estimate the memory of a run whose samples are encoded. Loads no weight.

    Args:
        config: A run file with ``cache.manifest``.
        device: Where the run will be.

    Returns:
        As `memory_estimate`.

    Raises:
        InputError: When cache, base or adapter settings cannot be used.
    """
    if not config.cache.manifest:
        raise ValueError("the run file names no finished cache")
    cache = read_manifest(Path(config.cache.manifest))
    family = get_family(config.family)
    settings = config.base.model_copy(update={"variant": cache.variant})
    edits = any(cache.dataset.control_buckets)
    location = locate_base(settings, family, edits, needs_encoders=False)
    base = empty_base(location, family)
    tokens = max(
        sum(image_tokens(base, image) for image in (item.bucket, *item.control_buckets))
        for item in cache.dataset.items
    )
    adapter = attach(
        base.transformer,
        config.adapter,
        presets=family.presets,
        unused=family.unused_layers(base.transformer),
    )
    trainable = sum(parameter.numel() for parameter in adapter.parameters())
    text = text_tokens(cache.dataset.items)
    return memory_estimate(step_size(config, base, trainable, tokens, device, text))


def check_memory(estimate: dict[str, int], free: int, device: torch.device) -> str | None:
    """Compare an estimate with what is free.

    Base and adapter are counted, not guessed, so that a run without room for them is refused.
    Activations are a guess: a run that they alone make too large is only warned of.

    Args:
        estimate: As `memory_estimate` gives it.
        free: Free bytes of the device.
        device: Named in messages.

    Returns:
        A warning, or None when everything is expected to fit.

    Raises:
        RunError: When base and adapter do not fit.
    """
    parts = ", ".join(f"{name} {gibibytes(estimate[name])}" for name in list(estimate)[:-1])
    found = (
        f"the run needs about {gibibytes(estimate['total'])} on {device} ({parts}), and "
        f"{gibibytes(free)} are free"
    )
    if estimate["base"] + estimate["adapter"] > free:
        raise RunError(
            found,
            "room for base and adapter, which stay in memory during the whole run",
            "Close other programs that use this memory, raise memory.blocks_to_swap, choose a "
            "smaller base or precision bf16, or save the run file and train on a larger machine.",
        )
    if estimate["total"] > free:
        return (
            f"{found}. If it runs out of memory: lower resolution or batch size, or switch "
            "gradient checkpointing on."
        )
    return None


def gibibytes(count: int) -> str:
    """Write a number of bytes for a person, as ``1.50 GiB`` or ``12.3 MiB``."""
    if count >= 1 << 30:
        return f"{count / (1 << 30):.2f} GiB"
    return f"{count / (1 << 20):.1f} MiB"


def _build_empty(location: BaseLocation, family: Family) -> nn.Module:
    import diffusers

    from ..weights.diffusers_folder import read_json
    from ..weights.loading import empty_model

    if location.file is not None:
        return empty_model(location, family.file)
    facts = read_json(location.folder / "transformer" / "config.json")
    with torch.device("meta"):
        return getattr(diffusers, facts["_class_name"]).from_config(facts)
