"""Devices, number formats, threads and random state: all that a run borrows from the machine.

The only module that may name an accelerator, besides those that move weights to one (`offload`);
what it borrows it gives back.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch
from torch import Tensor

from .config import MemorySection
from .errors import ConfigError

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def resolve_device(setting: str) -> torch.device:
    """Turn ``memory.device`` into a device that is there.

    Args:
        setting: ``auto`` or a torch device name.

    Returns:
        The device.

    Raises:
        ConfigError: When the name is unknown or the machine has no such device.
    """
    if setting == "auto":
        return _best_device()
    try:
        device = torch.device(setting)
        # Fetching a number tells real devices from "meta", on which tensors have no values.
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError, ImportError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(
            f"memory.device: {setting} ({reason})",
            f"a device of this machine, such as {_best_device()}",
            "Set memory.device to auto, or see `adapter-trainer doctor` for the devices.",
        ) from error
    return device


def resolve_precision(setting: str, device: torch.device) -> str:
    """Turn ``training.precision`` into ``bf16`` or ``fp32``."""
    if setting != "auto":
        return setting
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if device.type == "xpu" else "fp32"


@contextlib.contextmanager
def borrowed_threads(settings: MemorySection, *, embedded: bool) -> Iterator[None]:
    """Set torch's CPU threads for a run and restore them.

    The embedded base's matrices are so small that threads cost more than they give; with a busy
    second core two threads were measured 75 times slower than one.
    """
    wanted = settings.threads or (1 if embedded else None)
    before = torch.get_num_threads()
    if wanted is not None:
        torch.set_num_threads(wanted)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def borrowed_random_state(device: torch.device) -> Iterator[None]:
    """Restore torch's global generators afterwards; dropout draws from them."""
    if device.type == "cpu":
        indices, kind = [], "cuda"
    elif device.type == "mps":
        # There is one, and torch.mps cannot be asked for the current device.
        indices, kind = [0], "mps"
    else:
        current = torch.get_device_module(device).current_device()
        indices, kind = [current if device.index is None else device.index], device.type
    with torch.random.fork_rng(devices=indices, device_type=kind):
        yield


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the global generators that `borrowed_random_state` gives back, and no other device's.

    Args:
        seed: Of the CPU's generator and the device's.
        device: Where dropout draws.
    """
    torch.default_generator.manual_seed(seed)
    if device.type == "mps":
        torch.mps.manual_seed(seed)
    elif device.type not in {"cpu", "meta"}:
        module = torch.get_device_module(device)
        with module.device(device):
            module.manual_seed(seed)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device, without waiting for what the device still computes.

    Args:
        tensor: On any device.
        device: Where it is needed.
    """
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    # From pageable memory CUDA copies only when all that was queued before is done.
    return tensor.pin_memory().to(device, non_blocking=True)


def release_memory(device: torch.device) -> None:
    """Give unreferenced memory back to the device."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
    elif device.type == "xpu":
        torch.xpu.empty_cache()


def _best_device() -> torch.device:
    if torch.cuda.is_available():
        return torch.device("cuda", torch.cuda.current_device())
    if hasattr(torch, "xpu") and torch.xpu.is_available():
        return torch.device("xpu", 0)
    if torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
