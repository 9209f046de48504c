"""`frozen_modules`: a model of ComfyUI's as a run trains on it, and then exactly as it was."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .frozen_ops import counterpart, frozen_class
from .ordinary_tensors import ordinary_alias

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)


@contextmanager
def frozen_modules(model: nn.Module) -> Iterator[None]:
    """Freeze the ops of a loaded ``diffusion_model``, and put everything back on every way out.

    What is put back: each module's class, its children, its hooks, its forward pass and whether it
    is in training mode; parameters outside of ops, which meanwhile are ordinary tensors over the
    same memory; and which parameters ask for a gradient.
    """
    modules = list(model.modules())
    states, known = [_ModuleState(each) for each in modules], set(vars(model))
    try:
        _freeze(modules)
        yield
    finally:
        for state in states:
            state.restore()
        # Such as the note of an adapter's library that there is one.
        for name in vars(model).keys() - known:
            del vars(model)[name]


class _ModuleState:
    """What a module is made of, without its values."""

    def __init__(self, module: nn.Module) -> None:
        self.module, self.own, self.training = module, type(module), module.training
        self.children, self.forward = dict(module._modules), vars(module).get("forward")
        self.hooks = {name: dict(vars(module)[name]) for name in _HOOKS if name in vars(module)}
        held = {**module._parameters, **module._buffers}
        self.tensors = {name: each for name, each in held.items() if each is not None}
        self.trained = [name for name, each in self.tensors.items() if each.requires_grad]

    def restore(self) -> None:
        """Make the module what it was."""
        module = self.module
        object.__setattr__(module, "__class__", self.own)
        module.training = self.training
        if vars(module).get("forward") is not self.forward:
            del vars(module)["forward"]
        if self.forward is not None:
            vars(module)["forward"] = self.forward
        # Their order is that of the state's names.
        if list(module._modules.items()) != list(self.children.items()):
            _refill(module._modules, self.children)
        for name, before in self.hooks.items():
            if list(vars(module)[name]) != list(before):
                _refill(vars(module)[name], before)
        self._restore_tensors()

    def _restore_tensors(self) -> None:
        module: Any = self.module
        for held in (module._parameters, module._buffers):
            for name, now in held.items():
                before = self.tensors.get(name)
                if before is not None and now is not None and now is not before:
                    held[name] = _before_or_now(before, now)
        # Those made under inference mode may only be asked for a gradient there.
        with torch.inference_mode():
            for name in self.trained:
                parameter = module._parameters.get(name)
                if parameter is not None:
                    parameter.requires_grad_()


def _refill(held: Any, before: dict[Any, Any]) -> None:
    held.clear()
    held.update(before)


def _before_or_now(before: Tensor, now: Tensor) -> Tensor:
    """The tensor from before, unless ComfyUI has put another one there meanwhile.

    It does when it loads, moves or patches; both have their numbers in one memory when it has not.
    """
    same = type(now) in (Tensor, nn.Parameter) and now.data_ptr() == before.data_ptr()
    return before if same and now.dtype == before.dtype and now.device == before.device else now


def _freeze(modules: list[nn.Module]) -> None:
    # Attention of torch's own reads its projection's weight and never calls it.
    read = {id(m.out_proj) for m in modules if isinstance(m, nn.MultiheadAttention)}
    classes: dict[Any, type[nn.Module]] = {}
    for module in modules:
        frozen = None if id(module) in read else counterpart(module)
        if frozen is None:
            _make_ordinary(module)
        else:
            own = type(module)
            if own not in classes:
                classes[own] = frozen_class(own, frozen)
            object.__setattr__(module, "__class__", classes[own])
        for parameter in module._parameters.values():
            if parameter is not None and parameter.requires_grad:
                parameter.requires_grad_(False)


def _make_ordinary(module: nn.Module) -> None:
    """Let autograd keep the tensors that a module computes with itself, such as an embedding's."""
    for name, parameter in module._parameters.items():
        if parameter is not None and parameter.is_inference():
            held = nn.Parameter(ordinary_alias(parameter), requires_grad=False)  # type: ignore[arg-type]
            module._parameters[name] = held
    for name, buffer in module._buffers.items():
        if buffer is not None and buffer.is_inference():
            module._buffers[name] = ordinary_alias(buffer)
