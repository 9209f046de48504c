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

_Numbers = ParamSpec("_Numbers")


def device_table(
    make: Callable[_Numbers, Tensor],
) -> Callable[Concatenate[Tensor, _Numbers], Tensor]:
    """Let a function that makes a table give the one that lies where a tensor does.

    Args:
        make: Makes it on the CPU, from what can be a key, and always the same.

    Returns:
        A function of the tensor, and of what ``make`` takes. A compiled graph has its table as a
        constant; in a simulated step there is one for each call.
    """

    @torch.compiler.assume_constant_result
    def kept(device: torch.device, *numbers: object) -> Tensor:
        key = (make, device, *numbers)
        found = _KEPT.get(key)
        if found is None:
            with _disable_current_modes(), torch.inference_mode(False), torch.no_grad():
                found = _KEPT[key] = make(*numbers).to(device)  # type: ignore[call-arg]
        return found

    def table(like: Tensor, *args: _Numbers.args, **kwargs: _Numbers.kwargs) -> Tensor:
        if type(like) in (Tensor, nn.Parameter) and not kwargs:
            return kept(like.device, *args)
        return make(*args, **kwargs).to(like.device)

    return table


def forget_tables() -> None:
    """Give the memory of all tables back; whoever needs one makes it again."""
    _KEPT.clear()
