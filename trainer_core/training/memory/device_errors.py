"""Errors of a device that is full, or that has stopped, in three parts.

What a step does where the device is full is decided by `memory_manager`.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator

import torch

from ...device import is_out_of_memory, release_memory
from ...errors import RESUME, RunError
from ..observer import Observer, Warned
from ..step.processes import Processes

_REMEDY = (
    "Switch gradient checkpointing on (memory.gradient_checkpointing) where it is off, lower the "
    "resolution, training.batch_size or adapter.rank, keep the base in fewer bits "
    "(memory.base_format), or close other programs."
)


def full_memory_error(what: str, purpose: str, saved: str = "") -> RunError:
    """The error of a device without memory."""
    return RunError(what, f"room on the device for {purpose}", f"{_REMEDY} {saved}".rstrip())


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextlib.contextmanager
def explain_device_errors(purpose: str, saved: str = "") -> Iterator[None]:
    """End in an error of three parts when the device is full, or stops, in the body.

    Args:
        purpose: What the body needs memory for.
    """
    try:
        yield
    except Exception as error:
        if (stopped := stopped_device(error)) is not None:
            raise stopped from error
        if not is_out_of_memory(error):
            raise
        # Who hears of it may keep it, and with it what filled the device.
        traceback.clear_frames(error.__traceback__)
        found = f"the device's memory is full ({first_line(error)})"
        raise full_memory_error(found, purpose, saved) from error


@contextlib.contextmanager
def skipped_when_full(what: str, processes: Processes, observer: Observer) -> Iterator[None]:
    """Go on behind the body when the device's memory is full in it.

    Args:
        what: What is left out, for the warning.
        processes: Of a base in parts each would have to leave the same pass; there the error stays.
    """
    reason = None
    try:
        yield
    except Exception as error:
        if processes.sharded or not is_out_of_memory(error):
            raise
        reason = first_line(error)
        # The error lives until the body's ``with`` is over; its frames hold what filled the device.
        traceback.clear_frames(error.__traceback__)
    if reason is not None:
        release_memory(processes.device)
        observer.notify(Warned(f"No {what}: the device's memory is full ({reason})."))


_STARTS = ("cuda error", "cuda driver error", "hip error")
_NO_KERNELS = ("no kernel image", "invalid device function")
_GOES_ON = ("not_supported", "not supported", "invalid_value", "invalid argument", "invalid config")
"""What is said of a single call that was refused; the GPU computes the next one."""


def stopped_device(error: BaseException) -> RunError | None:
    """The error of three parts for what a GPU says of itself; None for any other error.

    Args:
        error: As torch raised it. Behind an illegal access, an ECC error or a GPU that fell off the
            bus, the process cannot use the GPU any more.
    """
    text = next(iter(str(error).strip().splitlines()), "")
    if not isinstance(error, RuntimeError) or not text.lower().startswith(_STARTS):
        return None  # torch's AcceleratorError is a RuntimeError, too
    if is_out_of_memory(error) or any(each in text.lower() for each in _GOES_ON):
        return None
    if any(each in text.lower() for each in _NO_KERNELS):
        built = torch.version.cuda or torch.version.hip or "no GPU"
        return RunError(
            f"this torch ({torch.__version__}, built for {built}) cannot run on the GPU ({text})",
            "a torch that was built for this GPU",
            "Install the build of torch for it (pytorch.org says which), and start again.",
        )
    return RunError(
        f"the GPU has stopped ({text})",
        "a GPU that answers until the run ends",
        f"Start ComfyUI, or the command, again: this process cannot use the GPU any more. Then go "
        f"on with {RESUME}. If it comes again, update the driver, take back any overclocking, and "
        "look for Xid or ECC in the system's log.",
    )
