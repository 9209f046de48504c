"""`unchanged_inputs`: blocks that change their inputs in place, as autograd can follow them.

Many of ComfyUI's blocks add to their input: ``img += attention``. What a layer before has kept of
it for its backward pass then has other numbers. Torch notices, and refuses, where nothing is
computed again; with gradient checkpointing it does not notice, and the gradients are wrong. A copy
of the inputs is not enough: the block changes it between its own layers too.

So a block gets its tensors as `Unchanged`. ``+=`` and its like then give a new tensor, as ``+``
does, and the name in the block's code is bound to that. A call such as ``x.addcmul_(y, z)``, whose
result is dropped, cannot bind a name: there the new tensor waits, and takes the place of the old
one when the block returns it. A block that reads the old one in between would go wrong by that; the
first call of every block that does such a thing is compared with ComfyUI's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ...trainer_core.errors import RunError

_REBOUND: dict[str, Callable[..., Tensor]] = {
    "__iadd__": torch.add,
    "__isub__": torch.sub,
    "__imul__": torch.mul,
    "__itruediv__": torch.div,
}
_AWAITED = ("add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "copy_", "clamp_")


class Unchanged(Tensor):
    """A tensor that is never changed in place; every other operation gives an ordinary tensor.

    Attributes:
        successor: What it would have become.
    """

    # As torch.nn.Parameter: operations on it cost no more than on an ordinary tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    successor: Tensor | None = None


def _rebound(operation: Callable[..., Tensor]) -> Callable[[Unchanged, Any], Tensor]:
    def changed(self: Unchanged, other: Any) -> Tensor:
        return operation(_latest(self), other).as_subclass(Unchanged)

    return changed


def _awaited(name: str) -> Callable[..., Tensor]:
    in_place = getattr(Tensor, name)

    def changed(self: Unchanged, *args: Any, **options: Any) -> Tensor:
        self.successor = in_place(_latest(self).clone(), *args, **options)
        return self

    return changed


def _latest(tensor: Tensor) -> Tensor:
    while type(tensor) is Unchanged and tensor.successor is not None:
        tensor = tensor.successor
    return tensor.as_subclass(Tensor) if type(tensor) is Unchanged else tensor


for _name, _operation in _REBOUND.items():
    setattr(Unchanged, _name, _rebound(_operation))
for _name in _AWAITED:
    setattr(Unchanged, _name, _awaited(_name))


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
        return _latest(value)
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
            block.forward = _WithUnchanged(block, block.forward)
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)


class _RandomState:
    """Where torch's generators stand, of the CPU and of the devices of some tensors."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._devices = sorted({e.get_device() for e in tensors if e.device.type == "cuda"})
        self._cpu = torch.get_rng_state()
        self._others = [torch.cuda.get_rng_state(each) for each in self._devices]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw from there once more; what comes behind draws as if that had not been."""
        with torch.random.fork_rng(devices=self._devices):
            torch.set_rng_state(self._cpu)
            for device, state in zip(self._devices, self._others, strict=True):
                torch.cuda.set_rng_state(state, device)
            yield


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether two results are those of one computation; a GPU's kernels may add in any order."""
    if one.device.type == "cpu":
        return torch.equal(one, other)
    near = 4 * torch.finfo(one.dtype).eps if one.is_floating_point() else 0.0
    return bool((one - other).abs().max() <= near * one.abs().max())


class _WithUnchanged:
    """A block's forward pass with inputs that it cannot change."""

    def __init__(self, block: nn.Module, forward: Callable[..., Any]) -> None:
        self._name, self._forward, self._proven = type(block).__name__, forward, False

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **options)
        given = [protected(each) for each in args]
        named = {name: protected(value) for name, value in options.items()}
        if self._proven:
            return released(self._forward(*given, **named))
        drawn = _RandomState(_tensors([*args, *options.values()]))
        result = self._forward(*given, **named)
        if any(map(_has_successor, (given, list(named.values()), result))):
            self._prove(args, options, released(result), drawn)
        return released(result)

    def _prove(self, args: Any, options: dict[str, Any], found: Any, drawn: _RandomState) -> None:
        """Compare with the block as it is, on copies; it drops what was dropped before."""
        with torch.no_grad(), drawn.again():
            named = {name: _copied(value) for name, value in options.items()}
            own = self._forward(*_copied(args), **named)
        pairs = zip(_tensors(own), _tensors(found), strict=True)
        if not all(_alike(one, other) for one, other in pairs):
            raise RunError(
                f"a {self._name} of this model changes its input in place and reads it afterwards",
                "blocks whose gradients can be computed",
                "Report the model: it cannot be trained through until the block is known.",
            )
        self._proven = True


def _has_successor(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(map(_has_successor, value))
    return type(value) is Unchanged and value.successor is not None


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(_copied(each) for each in value)
    return value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [found for each in value for found in _tensors(each)]
    return []
