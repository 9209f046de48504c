"""Tells of a GPU that has stopped in the middle of a run, and of one that never began."""

from __future__ import annotations

import torch

from ...device import is_out_of_memory
from ...errors import RESUME, RunError

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
