"""Sharding (FSDP): each process keeps a part of every frozen weight.

torch's FSDP2 (`fully_shard`) gathers the weights of one block before it runs and frees them behind
it. The adapter's factors stay whole in every process, so that their gradients are summed as they
are without it. A forward pass needs all processes at once: what the first one does alone, such as
a preview, the others have to follow pass by pass.
"""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...config import RunConfig
from ...errors import ConfigError, InputError
from ...quantization.quantized_linear import QuantizedLinear

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_LAUNCH = "accelerate launch --use_fsdp --fsdp_version 2"


def is_requested() -> bool:
    """Whether the launcher asks for a base in parts, as ``--use_fsdp`` of accelerate does.

    On a CPU accelerate itself does not look at that.

    Raises:
        InputError: When it asks for FSDP1, or this torch cannot leave factors whole.
    """
    if os.environ.get("ACCELERATE_USE_FSDP", "false").lower() != "true":
        return False
    version = os.environ.get("FSDP_VERSION", "1")
    if version != "2":
        raise InputError(
            f"accelerate is set up for FSDP{version}",
            "FSDP2, which leaves the adapter's factors whole beside a base in parts",
            f"Launch with `{_LAUNCH} ...`, or without sharding: --multi_gpu.",
        )
    from torch.distributed import fsdp

    make = getattr(fsdp, "fully_shard", None)
    if make is None or "ignored_params" not in inspect.signature(make).parameters:
        raise InputError(
            f"torch {torch.__version__}, and accelerate is set up for FSDP2",
            "torch 2.7 or newer, whose FSDP2 can leave the adapter's factors whole",
            "Upgrade torch, or launch without sharding: --multi_gpu.",
        )
    return True


def check_settings(config: RunConfig) -> None:
    """Refuse what a base in parts cannot do, before anything is loaded.

    Raises:
        ConfigError: For a setting that keeps whole weights beside the parts.
    """
    if config.adapter.exact_delta:
        raise ConfigError(
            "adapter.exact_delta, and a base in parts (FSDP2)",
            "one of them: exact_delta keeps every adapted weight whole in each process",
            "Set adapter.exact_delta=false, or launch without sharding: --multi_gpu.",
        )
    if config.training.text_encoder.train:
        raise ConfigError(
            "training.text_encoder.train, and a base in parts (FSDP2)",
            "one of them: the text encoder computes before the denoiser's parts are gathered",
            "Leave training.text_encoder.train out, or launch without sharding: --multi_gpu.",
        )
    memory = config.memory
    if memory.checkpoint_inputs == "ram":
        raise ConfigError(
            "memory.checkpoint_inputs is ram, and a base in parts (FSDP2)",
            "one of them: that a base in parts is called again with inputs from RAM is not tested",
            "Leave memory.checkpoint_inputs out, or launch without sharding: --multi_gpu.",
        )
    if memory.blocks_to_swap or memory.base_format not in {"auto", "dense"}:
        setting = "blocks_to_swap" if memory.blocks_to_swap else "base_format"
        raise ConfigError(
            f"memory.{setting} is {getattr(memory, setting)}, and a base in parts (FSDP2)",
            "one of them: a base in parts is dense, and all of it on the devices",
            f"Leave memory.{setting} out, or launch without sharding: --multi_gpu.",
        )
    if memory.compile:
        raise ConfigError(
            "memory.compile is true, and a base in parts (FSDP2)",
            "one of them: nobody has tried blocks that are compiled and in parts",
            "Leave memory.compile out, or launch without sharding: --multi_gpu.",
        )


def make_mesh(device: torch.device, count: int) -> DeviceMesh:
    """All processes in a row; each has to call this at the same time."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(device.type, (count,))


def shard(
    module: nn.Module,
    blocks: Iterable[nn.Module],
    whole: Iterable[nn.Parameter],
    mesh: DeviceMesh,
    device: torch.device,
) -> None:
    """Keep this process's part of a frozen module's weights on its device, and free the rest.

    The whole of one block at most is on the device meanwhile. No process waits for another.

    Args:
        module: On the CPU, with its adapter; changed in place.
        blocks: Its parts that run one after another, each gathered for its own passes alone.
        whole: The parameters that every process keeps.
        mesh: From `make_mesh`.

    Raises:
        InputError: When weights are kept in fewer bits.
    """
    from torch.distributed.fsdp import fully_shard

    if any(isinstance(part, QuantizedLinear) for part in module.modules()):
        raise InputError(
            "a quantized base, and a base in parts (FSDP2)",
            "one of them: weights in fewer bits are not divided among processes",
            "Keep the base in bf16, or launch without sharding: --multi_gpu.",
        )
    kept = set(whole)
    for parameter in kept:
        # What knows the parameter by identity, such as an optimizer, must not lose it.
        parameter.data = parameter.data.to(device)
    # A Linear's output is a view of another shape; nobody writes into what a base gives.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    for part in (*blocks, module):
        fully_shard(part, mesh=mesh, ignored_params=kept)


@contextmanager
def leading(module: nn.Module, index: int, device: torch.device) -> Iterator[bool]:
    """Let the first process run a module in parts as it likes, while the others follow.

    It sends its arguments ahead of every pass, so that how many passes there are, and when they
    end, is its decision alone. An error in it is not sent: the others may be in the middle of a
    pass, and the launcher ends them.

    Yields:
        Whether this is the first process; to the others when all passes are over.
    """
    from accelerate.utils import broadcast_object_list, send_to_device

    def announce(_: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        broadcast_object_list([send_to_device((args, dict(kwargs)), torch.device("cpu"))])

    if index == 0:
        handle = module.register_forward_pre_hook(announce, prepend=True, with_kwargs=True)
        try:
            yield True
        finally:
            handle.remove()
        broadcast_object_list([None])
        return
    with torch.no_grad():
        while (call := broadcast_object_list([None])[0]) is not None:
            args, kwargs = send_to_device(call, device)
            module(*args, **kwargs)
    yield False
