"""Loads a run's denoiser with its adapter, and the blocks swapped that the run file names."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from ..adapter_files.write.adapter_file import check_layouts
from ..adapters import AttachedAdapter, attach
from ..config import MemorySection, RunConfig
from ..device import DTYPES
from ..families.family import Family
from ..offload.host_weights import make_master
from ..offload.streamed_blocks import StreamedBlocks
from ..offload.swapped import swapped_blocks
from ..offload.transfer import make_transfer
from ..quantization.quantized_linear import set_compute
from ..weights.base_location import BaseLocation
from .encode_dataset import Prepared
from .memory_estimate import empty_base
from .observer import Observer, Warned
from .processes import Processes


def load_base(
    memory: MemorySection,
    family: Family,
    location: BaseLocation,
    dtype: torch.dtype,
    device: torch.device,
    at_end: contextlib.ExitStack,
) -> tuple[nn.Module, Callable[[], object]]:
    """Load the frozen denoiser; of what is swapped, nothing is on the device as yet.

    Args:
        memory: Which blocks are swapped, and how.
        family: The base's family.
        location: The base.
        dtype: Of its weights.
        device: Where it computes.
        at_end: Gives the blocks their weights back, and the device its memory.

    Returns:
        The denoiser, and what sends to the device all that an adapter adds to it.

    Raises:
        ConfigError: When there are fewer blocks; nothing is loaded then.
        BaseModelError: When the base's files are damaged, its blocks cannot be swapped, or are to
            be left in a file that has them in another number format.
        RunError: When the system does not pin memory that has to be pinned.
    """
    kept = memory.base_format
    if not memory.blocks_to_swap:
        return family.load_transformer(location, dtype, device, kept), lambda: None
    swapped_blocks(empty_base(location, family).transformer, family.repeated_blocks, memory)
    master = make_master(memory.master, device)
    # On the way to another device nothing has to be copied within RAM.
    mapped = memory.master == "file" or device.type != "cpu"
    transformer = family.load_transformer(location, dtype, "cpu", kept, mapped)
    streamed = StreamedBlocks(
        swapped_blocks(transformer, family.repeated_blocks, memory),
        device,
        memory.swap_slots,
        master,
        make_transfer(device),
    )
    at_end.callback(streamed.close)
    send_rest = partial(streamed.place_rest, transformer, device)
    send_rest()
    return transformer, send_rest


def load_adapted(
    config: RunConfig,
    data: Prepared,
    precision: str,
    processes: Processes,
    observer: Observer,
    at_end: contextlib.ExitStack,
) -> tuple[nn.Module, AttachedAdapter]:
    """Load a run's base and attach a new adapter.

    Args:
        config: The run file.
        data: What `prepare` gave.
        precision: The number format that is computed in.
        processes: Those that share the run.
        observer: Told when the base cannot be multiplied as the run file says.
        at_end: As `load_base`.

    Returns:
        The denoiser, and its adapter. They are on the CPU where no device is to hold them whole.

    Raises:
        InputError: When base and adapter do not fit each other, or as `load_base`.
    """
    device = torch.device("cpu") if processes.sharded else processes.device
    transformer, send_rest = load_base(
        config.memory, data.family, data.location, DTYPES[precision], device, at_end
    )
    _choose_products(config, transformer, processes, observer)
    if config.memory.gradient_checkpointing:
        data.family.enable_checkpointing(transformer)
    adapter = attach(
        transformer,
        config.adapter,
        presets=data.family.presets,
        unused=data.family.unused_layers(transformer),
        shared=data.family.shared_inputs,
        seed=config.seed,
    ).train()
    send_rest()  # the factors of a swapped block were made where its weights lie
    # Hours of training must not end at a file that cannot be written.
    check_layouts(adapter.state(), config.output.layouts, data.family.key_map)
    return transformer, adapter


def _choose_products(
    config: RunConfig, transformer: nn.Module, processes: Processes, observer: Observer
) -> None:
    taken = set_compute(transformer, config.memory.compute)
    if config.memory.compute == "8bit" and not taken and processes.index == 0:
        observer.notify(
            Warned(
                f"memory.compute is 8bit, and {processes.device} can multiply no weight of this "
                "base in 8 bits: the run computes with dense weights"
            )
        )
