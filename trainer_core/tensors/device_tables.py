"""Tables that many calls read, each sent to a device once, and kept until `forget_tables`.

A copy from memory that is not pinned makes the host wait for all that the device has still to do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

_KEPT: dict[tuple[object, ...], Tensor] = {}
_Args = ParamSpec("_Args")


def device_table(make: Callable[_Args, Tensor]) -> Callable[Concatenate[Tensor, _Args], Tensor]:
    """Let a function that makes a table on the CPU give the one that lies where a tensor does.

    A compiled graph has it as a constant; in a simulated step each call makes its own.
    """

    @torch.compiler.assume_constant_result
    def kept(device: torch.device, *args: _Args.args, **kwargs: _Args.kwargs) -> Tensor:
        key = (make, device, args, *kwargs.items())
        found = _KEPT.get(key)  # another thread may forget it
        if found is None:
            with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
                found = _KEPT[key] = make(*args, **kwargs).to(device)
        return found

    def table(like: Tensor, *args: _Args.args, **kwargs: _Args.kwargs) -> Tensor:
        if type(like) in (Tensor, nn.Parameter):
            return kept(like.device, *args, **kwargs)
        return make(*args, **kwargs).to(like.device)

    return table


def forget_tables() -> None:
    """Give the memory of all tables back; whoever needs one makes it again."""
    _KEPT.clear()
