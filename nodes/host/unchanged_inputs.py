"""`unchanged_inputs`: blocks that change their inputs in place, as autograd can follow them.

Many of ComfyUI's blocks add to their input: ``img += attention``. What a layer before has kept of
it for its backward pass then has other numbers. Torch notices, and refuses, where nothing is
computed again; with gradient checkpointing it does not notice, and the gradients are wrong. A copy
of the inputs is not enough: the block changes it between its own layers too.

So a block gets its tensors as `Unchanged`: ``+=`` and its like then give a new tensor, as ``+``
does, and the name in the block's code is bound to that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

_PLAIN: dict[str, Callable[..., Tensor]] = {
    "__iadd__": torch.add,
    "__isub__": torch.sub,
    "__imul__": torch.mul,
    "__itruediv__": torch.div,
}


class Unchanged(Tensor):
    """A tensor that is never changed in place; every other operation gives an ordinary tensor."""

    # As torch.nn.Parameter: operations on it cost no more than on an ordinary tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]


def _instead(operation: Callable[..., Tensor]) -> Callable[[Tensor, Any], Tensor]:
    def changed(self: Tensor, other: Any) -> Tensor:
        return operation(self, other).as_subclass(Unchanged)

    return changed


for _name, _operation in _PLAIN.items():
    setattr(Unchanged, _name, _instead(_operation))


def protected(value: Any) -> Any:
    """A block's argument, with every tensor that a block could change as `Unchanged`."""
    if type(value) is Tensor and value.is_floating_point():
        return value.as_subclass(Unchanged)
    if type(value) in (list, tuple):
        return type(value)(protected(each) for each in value)
    return value


def released(value: Any) -> Any:
    """What a block gives, with ordinary tensors."""
    if type(value) is Unchanged:
        return value.as_subclass(Tensor)
    if type(value) in (list, tuple):
        return type(value)(released(each) for each in value)
    return value


def blocks_of(denoiser: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    """The blocks of lists, in order.

    A sequence of layers, as which a UNet has its blocks, counts as its layers: ComfyUI calls those,
    each with what it takes.

    Args:
        denoiser: Where they are.
        paths: Of lists of blocks, or of one block.
    """
    found: list[nn.Module] = []
    for path in paths:
        held = denoiser.get_submodule(path)
        for each in held if isinstance(held, nn.ModuleList) else [held]:
            found += list(each) if isinstance(each, nn.Sequential) else [each]
    return found


@contextmanager
def unchanged_inputs(denoiser: nn.Module, paths: Sequence[str]) -> Iterator[None]:
    """Call blocks with tensors that they cannot change, while it lasts.

    Args:
        denoiser: The model.
        paths: Where the lists of its blocks are.
    """
    blocks = [each for each in blocks_of(denoiser, paths) if "forward" not in vars(each)]
    try:
        for block in blocks:
            block.forward = _with_unchanged(block.forward)
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


def _with_unchanged(forward: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*args, **options)
        given = {name: protected(value) for name, value in options.items()}
        return released(forward(*(protected(each) for each in args), **given))

    return call
