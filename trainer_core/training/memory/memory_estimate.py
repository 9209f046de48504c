"""How much device memory a run is expected to take, from a simulated step: base, adapter, rest.

    base        = the frozen weights, to the byte; of the blocks that are swapped only
                  ``memory.swap_slots`` of one layout count
    adapter     = factors, gradients and the optimizer's state, averages of the factors where they
                  are kept, and the frozen initial factors where they are beside the trained ones
    activations = everything else at the peak of a step with the largest sample

The last two come from a simulated step (`step_simulation`). Encoders and previews are not counted,
nor what libraries and the allocator need.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import torch

from ...bases.locate import locate_base
from ...bases.read_base_adapters import outline_base_adapters
from ...config import MemorySection, RunConfig
from ...data.cache.build_cache import cache_folder
from ...data.cache.cached_item import CachedItem
from ...device import DTYPES, resolve_precision
from ...errors import RunError
from ...families.registry import get_family
from ...families.trainable_text import with_text
from ...offload.empty_base import EmptyBase, bytes_on_device, empty_base
from ...printable import gibibytes
from ...quantization.formats import FORMATS
from ...tensors.safetensors_reader import open_tensors
from ...types import Bucket
from ..checkpoints.ema import average_count
from ..optimizers import OPTIMIZERS
from ..optimizers.torch_optimizers import FUSED
from ..prepare.cache_manifest import read_manifest
from ..step.batch_sizes import with_largest_batch
from .short_base import StepInputs
from .simulation_cache import KeptSimulations, step_facts
from .step_simulation import NOT_SIMULATED, StepSimulation, shapes_below

UNABLE = (*NOT_SIMULATED, RuntimeError, TypeError, NotImplementedError)
"""What a simulation may raise, also in a torch of another version: no reason to refuse a run."""

TINY = 64
"""How many times a base has to fit into what is free, so that a step of it surely does."""


def memory_estimate(
    base: EmptyBase, simulation: StepSimulation, memory: MemorySection | None = None
) -> dict[str, int]:
    """Estimate the device memory of a training step.

    Args:
        memory: How the base is kept; None as the run file says.

    Returns:
        Bytes of ``base``, ``adapter``, ``activations`` and their ``total``. Where a step cannot be
        simulated, as of a family that asks for numbers while it computes, activations are left out.

    Raises:
        ConfigError: When more blocks are to be swapped than there are.
        BaseModelError: When the base cannot be kept as ``memory.base_format`` says.
    """
    memory = memory or simulation.config.memory
    parts = {"base": bytes_on_device(memory, base, simulation.inputs.dtype)}
    try:
        step = simulation.step(FORMATS.get(memory.base_format), memory)
    except UNABLE:
        parts["adapter"] = adapter_bytes(simulation)
    else:
        parts |= {"adapter": step.adapter, "activations": step.activations}
    return {**parts, "total": sum(parts.values())}


def adapter_bytes(simulation: StepSimulation) -> int:
    """Bytes of weight, gradient and the optimizer's state of each trainable parameter, fp32.

    Args:
        simulation: Of a step, which cannot be made.
    """
    training = simulation.config.training
    kind, settings = OPTIMIZERS[training.optimizer.name], training.optimizer
    state = sum(kind.kept_bytes(shape, settings) for shape in simulation.factors)
    # Averages are fp32.
    return math.ceil((8 + 4 * average_count(training.ema)) * simulation.trainable + state)


def text_tokens(items: Iterable[CachedItem]) -> int:
    """Tokens of the longest text among encoded samples, padding of the encoder included.

    Args:
        items: Samples whose files are there; their headers alone are read.
    """
    lengths: list[int] = []
    texts = ((item.text, item.empty_text, *item.class_texts[:1]) for item in items)
    for path in {entry.path for entries in texts for entry in entries}:
        with open_tensors(path) as file:
            lengths.append(file.tensors["text_embeddings"].shape[0])
    return max(lengths)


def largest_sample(items: Iterable[CachedItem]) -> tuple[tuple[Bucket, ...], int]:
    """Of that sample which has the most pixels.

    Returns:
        The sizes of its image and, behind it, of its control images; and how many layers it has.
    """

    def pixels(sample: tuple[tuple[Bucket, ...], int]) -> int:
        (image, *controls), layers = sample
        images = (*[image] * (layers + 1), *controls)
        return sum(each.width * each.height * each.frames for each in images)

    return max((((e.bucket, *e.control_buckets), len(e.layers)) for e in items), key=pixels)


def run_simulation(
    config: RunConfig,
    base: EmptyBase,
    images: Iterable[Bucket],
    device: torch.device,
    text: int | None = None,
    layers: int = 0,
) -> StepSimulation:
    """A simulation of a run's step.

    Args:
        images: Sizes of the largest sample's image or clip, and of its control images.
        device: Decides the precision where the run file does not.
        text: Tokens of the longest text; None for the most that the family's encoder yields.
        layers: How many layers the largest sample's image comes with.
    """
    target, *controls = images
    latents = (
        base.family.latent_shape(
            base.location, target.width, target.height, layers=layers, frames=target.frames
        ),
        *(base.family.control_shape(base.location, e.width, e.height) for e in controls),
    )
    tokens = base.location.text_length if text is None else text
    dtype = _dtype(config, device)
    inputs = StepInputs(latents, tokens, dtype, fused=device.type in FUSED)
    beside = outline_base_adapters(config.base, base.family)
    kept, folder = None, cache_folder(config)
    if folder.is_dir():
        kept = KeptSimulations(
            folder / "simulated_steps.json",
            step_facts(base.transformer, config),
            base.family.name,
            inputs,
            shapes_below(beside, ""),
        )
    return StepSimulation(base.transformer, base.family, config, inputs, beside=beside, kept=kept)


def cached_run_estimate(
    config: RunConfig, device: torch.device, free: int | None = None
) -> dict[str, int]:
    """Estimate the memory of a run whose samples are encoded. Loads no weight.

    Args:
        config: A run file with ``cache.manifest``.
        free: Free bytes there. For a base that is tiny beside them nothing is simulated, which
            would take longer than its first steps.

    Returns:
        As `memory_estimate`; of a tiny base its bytes alone.

    Raises:
        InputError: When cache, base or adapter settings cannot be used.
    """
    if not config.cache.manifest:
        raise ValueError("the run file names no finished cache")
    cache = read_manifest(Path(config.cache.manifest))
    family = get_family(config.family)
    settings = config.base.model_copy(update={"variant": cache.variant})
    edits = any(cache.dataset.control_buckets)
    located = locate_base(settings, family, edits, needs_encoders=False)
    location, config = family.joined(located, config), with_text(config)
    base = empty_base(location, family)
    weights = bytes_on_device(config.memory, base, _dtype(config, device))
    if free is not None and weights * TINY < free:
        return {"base": weights, "total": weights}
    largest, layers = largest_sample(cache.dataset.items)
    text, stepped = text_tokens(cache.dataset.items), with_largest_batch(config, cache.dataset)
    return memory_estimate(
        base, run_simulation(stepped, base, largest, device=device, text=text, layers=layers)
    )


def _dtype(config: RunConfig, device: torch.device) -> torch.dtype:
    return DTYPES[resolve_precision(config.training.precision, device)]


def check_memory(estimate: dict[str, int], free: int, device: torch.device) -> str | None:
    """Compare an estimate with what is free.

    A run without room for base and adapter is refused. One that activations alone make too large is
    only warned of: how the device's own kernels compute is not known.

    Args:
        free: Free bytes of the device.

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
    if estimate["base"] + estimate.get("adapter", 0) > free:
        raise RunError(
            found,
            "room for base and adapter, which stay in memory during the whole run",
            "Close other programs that use this memory, set memory.base_format to fp8 or nf4, "
            "raise memory.blocks_to_swap, choose a smaller base or precision bf16, or save the run "
            "file and train on a larger machine.",
        )
    if estimate["total"] > free:
        return (
            f"{found}. If it runs out of memory: lower resolution or batch size, switch "
            "gradient checkpointing on for all blocks, or set memory.checkpoint_inputs to ram."
        )
    return None
