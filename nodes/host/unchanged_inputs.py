"""`unchanged_inputs`, `followed_patches`: what changes its inputs in place, as autograd follows it.

Many of ComfyUI's blocks add to their input: ``img += attention``. What a layer before has kept of
it for its backward pass then has other numbers. Torch notices, and refuses, where nothing is
computed again; with gradient checkpointing it does not notice, and the gradients are wrong. A copy
of the inputs is not enough: the block changes it between its own layers too.

So a block gets its tensors as `Unchanged`. ``+=`` and its like then give a new tensor, as ``+``
does, and the name in the block's code is bound to that. A call such as ``x.addcmul_(y, z)``, whose
result is dropped, cannot bind a name: there the new tensor waits, and takes the place of the old
one when the block returns it. A block that reads the old one in between would go wrong by that: in
its first call it gets its tensors as `Followed`, of which every read sees the newest, and it keeps
them where it does such a thing. The first call of every block that drops a result is compared with
ComfyUI's own.

Patches of nodes are called in the same way. What they bring with them, such as the weights of a
hypernetwork, was made under inference mode, as every node is run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from ...trainer_core.errors import RunError
from .clip_and_vae_inputs import made_by
from .ordinary_tensors import ordinary_alias

_REBOUND: dict[str, Callable[..., Tensor]] = {
    "__iadd__": torch.add,
    "__isub__": torch.sub,
    "__imul__": torch.mul,
    "__itruediv__": torch.div,
}
_ORIGINAL = "original_block"
_AWAITED = ("add_", "sub_", "mul_", "div_", "addcmul_", "addcdiv_", "lerp_", "copy_", "clamp_")


class Unchanged(Tensor):
    """A tensor that is never changed in place; every other operation gives an ordinary tensor.

    Attributes:
        successor: What it would have become.
        dropped: Whether no name of the block's code is bound to that.
    """

    # As torch.nn.Parameter: operations on it cost no more than on an ordinary tensor.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    successor: Tensor | None = None
    dropped = False


class Followed(Unchanged):
    """A tensor that is never changed in place, and whose changes are what is read afterwards.

    Every operation on it goes through Python, which costs some microseconds each.

    Attributes:
        whole: What it is a part of, and which; None for none.
        reads: Gets an entry where `Unchanged` would have given old numbers.
    """

    whole: tuple[Followed, Any] | None = None
    reads: list[str]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Read the newest tensors; a change in place gives a new one."""
        del types
        name, first = func.__name__, args[0] if args else None
        if type(first) is Followed and name.endswith("_") and not name.endswith("__"):
            first.reads.append(name)
            return _awaited(name)(first, *args[1:], **(kwargs or {}))

        def newest(tensor: Tensor) -> Tensor:
            if type(tensor) is Followed and tensor.successor is not None:
                tensor.reads.append(name)
            return _latest(tensor)

        named = {name: _each(newest, value) for name, value in (kwargs or {}).items()}
        return func(*_each(newest, args), **named)


def _rebound(operation: Callable[..., Tensor]) -> Callable[[Unchanged, Any], Tensor]:
    def changed(self: Unchanged, other: Any) -> Tensor:
        found = _alike_kind(operation(_latest(self), _latest(other)), self)
        if isinstance(self, Followed) and isinstance(found, Followed):
            # Other names of it, and what it is a part of, see the change too.
            self.successor, found.whole = found, self.whole
            _tell_whole(self)
        return found

    return changed


def _awaited(name: str) -> Callable[..., Tensor]:
    in_place = getattr(Tensor, name)

    def changed(self: Unchanged, *args: Any, **options: Any) -> Tensor:
        found = in_place(_latest(self).clone(), *_each(_latest, args), **options)
        self.successor, self.dropped = found, True
        _tell_whole(self)
        return self

    return changed


def _item(self: Unchanged, place: Any) -> Tensor:
    # A part that is changed by itself would change the whole.
    part = _alike_kind(_latest(self)[place], self)
    if type(part) is Followed and type(self) is Followed:
        part.whole = self, place
    return part


def _with_item(self: Unchanged, place: Any, value: Any) -> None:
    found = _latest(self).clone()
    found[place] = _latest(value)
    self.successor, self.dropped = found, True
    _tell_whole(self)


def _tell_whole(part: Unchanged) -> None:
    """Change what a part belongs to, as the part has changed."""
    if isinstance(part, Followed) and part.whole is not None:
        whole, place = part.whole
        part.reads.append("part")
        whole[place] = part.successor


def _alike_kind(tensor: Tensor, other: Unchanged) -> Unchanged:
    """A new tensor of the kind of one that it was made of."""
    found = tensor.as_subclass(type(other))
    if isinstance(found, Followed) and isinstance(other, Followed):
        found.reads = other.reads
    return found


def _latest(tensor: Any) -> Any:
    while isinstance(tensor, Unchanged) and tensor.successor is not None:
        tensor = tensor.successor
    if not isinstance(tensor, Unchanged):
        return tensor
    with torch._C.DisableTorchFunctionSubclass():  # pyright: ignore[reportPrivateImportUsage]
        return tensor.as_subclass(Tensor)


for _name, _operation in _REBOUND.items():
    setattr(Unchanged, _name, _rebound(_operation))
for _name in _AWAITED:
    setattr(Unchanged, _name, _awaited(_name))
Unchanged.__getitem__ = _item  # type: ignore[method-assign]
Unchanged.__setitem__ = _with_item  # type: ignore[method-assign]


def _each(change: Callable[[Tensor], Any], value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value)(_each(change, each) for each in value)
    return change(value) if isinstance(value, Tensor) else value


def protected(value: Any, reads: list[str] | None = None) -> Any:
    """A block's argument: every tensor that a block could change as `Unchanged`, or `Followed`."""

    def kept(tensor: Tensor) -> Tensor:
        if type(tensor) is not Tensor or not tensor.is_floating_point():
            return tensor
        if reads is None:
            return tensor.as_subclass(Unchanged)
        followed = tensor.as_subclass(Followed)
        followed.reads = reads
        return followed

    return _each(kept, value)


def released(value: Any) -> Any:
    """What a block gives, with ordinary tensors."""
    return _each(_latest, value)


def _ordinary(value: Any) -> Any:
    return _each(lambda x: ordinary_alias(x) if x.is_inference() else x, value)


def blocks_of(denoiser: nn.Module, paths: Sequence[str]) -> list[nn.Module]:
    """The blocks, in order, of lists of blocks, or of single ones, at these paths.

    A sequence of layers, as which a UNet has its blocks, counts as its layers: ComfyUI calls those,
    each with what it takes.
    """
    found: list[nn.Module] = []
    for path in paths:
        held = denoiser.get_submodule(path)
        for each in held if isinstance(held, nn.ModuleList) else [held]:
            found += list(each) if isinstance(each, nn.Sequential) else [each]
    return found


@contextmanager
def unchanged_inputs(denoiser: nn.Module, paths: Sequence[str]) -> Iterator[None]:
    """While it lasts, call blocks of the lists at these paths with tensors that stay the same."""
    blocks = blocks_of(denoiser, paths)
    # Of some a node has patched the forward pass: a block's own or another.
    patched = {block: vars(block)["forward"] for block in blocks if "forward" in vars(block)}
    try:
        for block in blocks:
            block.forward = _WithUnchanged(type(block).__name__, block.forward)
        yield
    finally:
        for block in blocks:
            vars(block).pop("forward", None)
        for block, forward in patched.items():
            block.forward = forward


def followed_patches(held: Any) -> Any:
    """A MODEL's ``patches`` or ``patches_replace``, each as autograd can follow it.

    They are functions, nested in lists and mappings.
    """
    if isinstance(held, Mapping):
        return {name: followed_patches(each) for name, each in held.items()}
    if isinstance(held, list | tuple):
        return [followed_patches(each) for each in held]
    return _FollowedPatch(held)


class _FollowedPatch:
    """A patch with inputs that it cannot change and with ordinary tensors of its own.

    Patches of transformers get their tensors in a mapping, and give such a one.
    """

    def __init__(self, patch: Callable[..., Any]) -> None:
        self._patch = patch
        self._follow = _WithUnchanged(made_by(patch), self._called)

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._patch(*args, **options)
        names = tuple(args[0]) if args and type(args[0]) is dict else None
        values = args if names is None else (*args[0].values(), *args[1:])
        names, found = self._follow(names, *values, **options)
        return found if names is None else dict(zip(names, found, strict=True))

    def _called(self, names: tuple[str, ...] | None, *values: Any, **options: Any) -> Any:
        with _OrdinaryTensors():
            if names is not None:
                rest = map(_following, values[len(names) :])
                values = dict(zip(names, values, strict=False)), *rest
            found = self._patch(*values, **options)
        names = tuple(found) if type(found) is dict else None
        return names, _ordinary(found if names is None else list(found.values()))


def _following(value: Any) -> Any:
    """What a patch that takes a block's place is given besides: the block, to be called by it."""
    run = value.get(_ORIGINAL) if type(value) is dict else None
    if run is None or not torch.is_grad_enabled():
        return value

    def followed(args: Mapping[str, Any]) -> dict[str, Any]:
        found = run({name: released(each) for name, each in args.items()})
        return {name: protected(each) for name, each in found.items()}

    return {**value, _ORIGINAL: followed}


class _OrdinaryTensors(TorchFunctionMode):
    """While it lasts, torch's functions get inference tensors as ordinary ones."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        if func.__name__ == "__set__":
            return func(*args)  # of an attribute, such as where a module's weight is moved to
        named = {name: _ordinary(each) for name, each in (kwargs or {}).items()}
        return func(*_ordinary(args), **named)


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

    def __init__(self, name: str, forward: Callable[..., Any]) -> None:
        self._name, self._forward = name, forward
        self._follows, self._proven = True, False

    def __call__(self, *args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._forward(*args, **options)
        reads = list[str]() if self._follows else None
        inputs = protected(args, reads)
        named = {name: protected(value, reads) for name, value in options.items()}
        if self._proven:
            return released(self._run(*inputs, **named))
        drawn = _RandomState(_tensors([*args, *options.values()]))
        result = self._run(*inputs, **named)
        if any(map(_has_dropped, (inputs, list(named.values()), result))):
            self._prove(args, options, released(result), drawn)
        self._follows = bool(reads)
        return released(result)

    def _run(self, *inputs: Any, **named: Any) -> Any:
        with register_module_forward_pre_hook(_newest_inputs) if self._follows else nullcontext():
            return self._forward(*inputs, **named)

    def _prove(self, args: Any, options: dict[str, Any], found: Any, drawn: _RandomState) -> None:
        """Compare with the block as it is, on copies; it drops what was dropped before."""
        with torch.no_grad(), drawn.again():
            named = {name: _each(_copy, value) for name, value in options.items()}
            own = self._forward(*_each(_copy, args), **named)
        pairs = zip(_tensors(own), _tensors(found), strict=True)
        if not all(_alike(one, other) for one, other in pairs):
            raise RunError(
                f"{self._name} of this model changes its input in place and reads it afterwards",
                "blocks and patches whose gradients can be computed",
                "Report the model: it cannot be trained through until that is known.",
            )
        self._proven = True


def _newest_inputs(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """What a module is called with: the newest tensors, each as another object.

    A function of autograd's own goes past `Followed`, and what it keeps must not change afterwards.
    Tensors given by keyword stay as they are: a hook of all modules does not get these.
    """
    del module

    def newest(value: Any) -> Any:
        if type(value) is not Followed:
            return value
        if value.successor is not None:
            value.reads.append("module")
        found = _alike_kind(_latest(value), value)
        found.whole = value, ...
        return found

    return tuple(map(newest, args))


def _has_dropped(value: Any) -> bool:
    if type(value) in (list, tuple):
        return any(map(_has_dropped, value))
    while isinstance(value, Unchanged):
        if value.dropped:
            return True
        value = value.successor
    return False


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [found for each in value for found in _tensors(each)]
    return []
