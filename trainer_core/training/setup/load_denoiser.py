"""Loads a run's denoiser and attaches its adapter."""

from __future__ import annotations

import contextlib

import torch
from torch import nn

from ...adapter_files.factors.put_on_base import BaseAdapters, put_on_base
from ...adapter_files.write.write_adapter import check_layouts
from ...adapters import AttachedAdapter
from ...bases.read_base_adapters import read_base_adapters
from ...config import RunConfig
from ...device import DTYPES, is_out_of_memory, release_memory
from ...offload.checkpointed_blocks import checkpoint_blocks
from ...offload.empty_base import empty_base
from ...offload.load_base import HOST_KEEPS, PlacedBase, load_base
from ...offload.machine import Machine
from ...quantization.quantized_linear import set_compute
from ..memory.out_of_memory import first_line, full_memory_error
from ..observer import Observer, Warned
from ..prepare.attach import attach_adapter
from ..prepare.encode_dataset import Prepared
from ..step.processes import Processes


def load_adapted(
    config: RunConfig,
    data: Prepared,
    precision: str,
    processes: Processes,
    observer: Observer,
    machine: Machine,
    at_end: contextlib.ExitStack,
) -> tuple[PlacedBase, BaseAdapters, AttachedAdapter]:
    """Load a run's base and attach a new adapter, with more blocks swapped where memory is full.

    Args:
        data: What `prepare` gave.
        precision: The number format that is computed in.
        observer: Told when the base cannot be multiplied as the run file says.
        machine: Where it is loaded.
        at_end: As `load_base`, and gives back the RAM of blocks' inputs.

    Returns:
        The base, what is part of it, and its adapter. They are on the CPU where no device is to
        hold them whole.

    Raises:
        InputError: When base and adapter do not fit each other, or as `load_base`.
        RunError: When the device's memory is full although all blocks are swapped.
    """
    while True:
        try:
            with contextlib.ExitStack() as attempt:
                found = _load(config, data, precision, processes, observer, machine, attempt)
                at_end.push(attempt.pop_all())
                return found
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            reason = first_line(error)
        # Behind the handler: the error's frames hold what was loaded.
        release_memory(processes.device)
        config = _with_more_swapped(config, data, processes, reason)
        count = config.memory.blocks_to_swap
        observer.notify(
            Warned(f"Memory was full at loading ({reason}): {count} blocks are swapped.")
        )


def _with_more_swapped(
    config: RunConfig, data: Prepared, processes: Processes, reason: str
) -> RunConfig:
    memory, before = config.memory, config.memory.blocks_to_swap or 0
    lent = data.family.lent is not None
    refused = HOST_KEEPS if lent else _unchangeable(config, processes)
    most = 0 if lent else empty_base(data.location, data.family).blocks
    if refused or not memory.gradient_checkpointing or before >= most:
        why = refused or f"{before} of {most} blocks are swapped"
        found = f"the device's memory is full when the base is loaded ({reason}), and {why}"
        raise full_memory_error(found, "the base and its adapter")
    count = min(max(1, 2 * before), most)
    checkpoints = memory.blocks_to_checkpoint
    more = {
        "blocks_to_swap": count,
        "blocks_to_checkpoint": None if checkpoints is None else max(checkpoints, count),
    }
    return config.model_copy(update={"memory": memory.model_copy(update=more)})


def _unchangeable(config: RunConfig, processes: Processes) -> str | None:
    """Why a run cannot swap more blocks than it was told to."""
    if processes.sharded:
        return "the base is in parts (FSDP2)"
    # Weights stay on the device, beside which exact_delta puts the adapter's.
    return "adapter.exact_delta is true" if config.adapter.exact_delta else None


def _load(
    config: RunConfig,
    data: Prepared,
    precision: str,
    processes: Processes,
    observer: Observer,
    machine: Machine,
    at_end: contextlib.ExitStack,
) -> tuple[PlacedBase, BaseAdapters, AttachedAdapter]:
    device = torch.device("cpu") if processes.sharded else processes.device
    base = load_base(
        config.memory, data.family, data.location, DTYPES[precision], device, machine, at_end
    )
    transformer = base.transformer
    if data.location.reads_tokens:
        data.encoders.join_text(transformer, DTYPES[precision], device, at_end)
    _choose_products(config, transformer, processes, observer)
    beside = put_on_base(
        transformer,
        data.family.layers.key_map,
        read_base_adapters(config.base, data.family),
        merge=not config.memory.blocks_to_swap,
    )
    base.mark(True)  # weights that an adapter was merged into are other tensors
    if beside.unrepaired and processes.index == 0:
        first, count = beside.unrepaired[0], len(beside.unrepaired)
        observer.notify(
            Warned(
                f"{count} layers in {config.memory.base_format}, such as {first}, have no part in "
                "the accuracy-recovery adapter and stay rounded"
            )
        )
    if beside.beside and config.adapter.exact_delta and processes.index == 0:
        observer.notify(
            Warned(
                f"adapter.exact_delta changes nothing in {len(beside.beside)} layers, which have "
                "adapters of the base beside their weights"
            )
        )
    checkpoints = checkpoint_blocks(
        transformer,
        data.family,
        config.memory,
        processes.device,
        machine,
        at_end,
        may_keep=not processes.sharded and config.training.recovery.smaller,
    )
    base.refusal = base.refusal or _unchangeable(config, processes)
    if checkpoints is None:
        base.refusal = base.refusal or "none is checkpointed"
    else:
        base.before_swap = checkpoints.chosen.update
        # A step that one process makes again would wait for the others' parts for ever.
        if not processes.sharded:
            base.checkpoint_all = checkpoints.checkpoint_all
            base.uncheckpointed = checkpoints.uncheckpointed
            base.unsettled, base.keep = checkpoints.unsettled, checkpoints.keep
    adapter = attach_adapter(transformer, data.family, config).train()
    if not processes.sharded:
        # A host, or the next run, goes on with the base's own layers.
        at_end.callback(adapter.detach)
    base.send_rest()  # the factors of a swapped block were made where its weights lie
    # Hours of training must not end at a file that cannot be written.
    check_layouts(adapter.state(), config.output.layouts, data.family.layers.key_map)
    return base, beside, adapter


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
