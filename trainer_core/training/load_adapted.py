"""Loads a run's denoiser and attaches its adapter."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from ..adapter_files.write.adapter_file import check_layouts
from ..adapters import AttachedAdapter, attach
from ..config import RunConfig
from ..device import DTYPES
from ..offload.checkpointed_blocks import checkpoint_blocks
from ..offload.load_base import PlacedBase, load_base
from ..offload.machine import Machine
from ..quantization.quantized_linear import set_compute
from .encode_dataset import Prepared
from .observer import Observer, Warned
from .processes import Processes


def load_adapted(
    config: RunConfig,
    data: Prepared,
    precision: str,
    processes: Processes,
    observer: Observer,
    machine: Machine,
    at_end: contextlib.ExitStack,
) -> tuple[PlacedBase, AttachedAdapter]:
    """Load a run's base and attach a new adapter.

    Args:
        config: The run file.
        data: What `prepare` gave.
        precision: The number format that is computed in.
        processes: Those that share the run.
        observer: Told when the base cannot be multiplied as the run file says.
        machine: Where it is loaded.
        at_end: As `load_base`, and gives back the RAM of blocks' inputs.

    Returns:
        The base, and its adapter. They are on the CPU where no device is to hold them whole.

    Raises:
        InputError: When base and adapter do not fit each other, or as `load_base`.
    """
    device = torch.device("cpu") if processes.sharded else processes.device
    base = load_base(
        config.memory, data.family, data.location, DTYPES[precision], device, machine, at_end
    )
    transformer = base.transformer
    _choose_products(config, transformer, processes, observer)
    calls = checkpoint_blocks(
        transformer, data.family, config.memory, processes.device, machine, at_end
    )
    if calls is not None:
        base.before_swap = calls.chosen.update
    adapter = attach(
        transformer,
        config.adapter,
        presets=data.family.presets,
        unused=data.family.unused_layers(transformer),
        shared=data.family.shared_inputs,
        seed=config.seed,
    ).train()
    base.send_rest()  # the factors of a swapped block were made where its weights lie
    # Hours of training must not end at a file that cannot be written.
    check_layouts(adapter.state(), config.output.layouts, data.family.key_map)
    return base, adapter


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
