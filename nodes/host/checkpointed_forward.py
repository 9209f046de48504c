"""Gradient checkpointing for blocks of ComfyUI's models (`enable_checkpointing`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .unchanged_inputs import blocks_of

CallBlock = Callable[..., Any]


class _Given:
    """How a block was called, but for the tensors among its arguments by position and name."""

    def __init__(self, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        values = [*args, *options.values()]
        self._count, self._names = len(args), tuple(options)
        self.tensors = tuple(each for each in values if isinstance(each, Tensor))
        self._values = [None if isinstance(each, Tensor) else each for each in values]
        self._again = [_own(each) for each in self._values]
        self._places = [at for at, each in enumerate(values) if isinstance(each, Tensor)]

    def forget_tensors(self) -> tuple[Tensor, ...]:
        """The tensors, which whoever calls the block keeps in its own way from now on."""
        tensors, self.tensors = self.tensors, ()
        return tensors

    def call(self, forward: Callable[..., Any], tensors: Sequence[Tensor]) -> Any:
        """Call a forward pass as the block was called."""
        values = list(self._values)
        for at, tensor in zip(self._places, tensors, strict=True):
            values[at] = tensor
        # By the second time ComfyUI has noted another block, whose patches would be called.
        self._values = [_own(each) for each in self._again]
        named = dict(zip(self._names, values[self._count :], strict=True))
        return forward(*values[: self._count], **named)


def _own(value: Any) -> Any:
    """A mapping's copy, such as of ``transformer_options``; any other argument itself."""
    return dict(value) if type(value) is dict else value


class _CheckpointedForward:
    """A block's forward pass, by way of what calls each block."""

    def __init__(self, block: nn.Module, forward: Callable[..., Any], call: CallBlock) -> None:
        self.block, self.forward, self.call_block = block, forward, call

    def __call__(self, *args: Any, **options: Any) -> Any:
        if args and isinstance(args[-1], _Given):
            return args[-1].call(self.forward, args[:-1])
        if not torch.is_grad_enabled():
            return self.forward(*args, **options)
        passed = _Given(args, options)
        # As a module, now and in the backward pass: its hooks are called.
        return self.call_block(self.block, *passed.forget_tensors(), passed)


def enable_checkpointing(
    denoiser: nn.Module, paths: Sequence[str], call: CallBlock | None = None
) -> None:
    """Let blocks keep their inputs alone, and compute again in the backward pass.

    It is undone where the model is given back (`borrowed_denoiser`), which also has to protect the
    inputs of these blocks from changes in place: a second computation would begin with others.
    `call` calls each block, (block, inputs) to outputs; None is torch's checkpoint.
    """
    for block in blocks_of(denoiser, paths):
        forward = block.forward
        if isinstance(forward, _CheckpointedForward):
            forward = forward.forward
        block.forward = _CheckpointedForward(block, forward, call or _call_checkpointed)


def _call_checkpointed(block: nn.Module, *args: Any) -> Any:
    return checkpoint(block, *args, use_reentrant=False)
