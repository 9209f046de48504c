"""The memory of an optimizer's state, taken before anything can be lost."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from .adamw8bit import AdamW8bit, new_state
from .joined_optimizer import JoinedOptimizer, set_rate
from .lion import Lion


def keeps_moments(optimizer: torch.optim.Optimizer) -> bool:
    """Whether its state is that of `new_state`: AdamW's, in fp32 or in 8 bits."""
    return isinstance(optimizer, AdamW8bit) or type(optimizer) is torch.optim.AdamW


def allocate_state(optimizer: torch.optim.Optimizer) -> None:
    """Take the memory of the optimizer's state now, so that no step fails half way for want of it.

    Args:
        optimizer: AdamW or Lion of `make_optimizer`. Its steps are the same, bit for bit.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if state:
                continue
            if isinstance(optimizer, Lion):
                state["exp_avg"] = torch.zeros_like(parameter)
            else:
                state.update(new_state(parameter, group))


def rehearse(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer without state take the memory of an update, and change nothing.

    An update that fails halfway would leave some weights and moments changed.

    Args:
        optimizer: Before its first update; one that has a state already is left alone.
    """
    if any(optimizer.state.values()):
        return
    # Gradients of zero at a learning rate of zero change no bit of a weight, and a new state of
    # AdamW or Lion is all zeros.
    if keeps_moments(optimizer) or isinstance(optimizer, Lion):
        with _at_rest(optimizer):
            for _ in range(2):  # the second one with the state of all groups beside it
                _step(optimizer, 0.0)
            for state in optimizer.state.values():
                for tensor in state.values():
                    tensor.zero_()
        return
    with _as_before(optimizer):
        first_state(optimizer)
    optimizer.state.clear()


def first_state(optimizer: torch.optim.Optimizer) -> None:
    """Leave a state of the right names, types and sizes behind, with some numbers in it.

    Weights and what groups keep are changed; see `_as_before`.
    """
    parts = optimizer.parts if isinstance(optimizer, JoinedOptimizer) else [optimizer]
    for part in parts:
        make: Any = getattr(part, "init_state", None)
        if make is None:
            continue
        # bitsandbytes never gives pages back, so that they are taken once.
        for number, group in enumerate(part.param_groups):
            for place, parameter in enumerate(group["params"]):
                make(group, parameter, number, place)
    if any(optimizer.state.values()):
        return
    for _ in range(2):
        _step(optimizer, 1e-3)


def prototype(optimizer: torch.optim.Optimizer) -> None:
    """Give an optimizer without state one that can be filled, and change nothing else."""
    with _as_before(optimizer):
        first_state(optimizer)


def _step(optimizer: torch.optim.Optimizer, gradient: float) -> None:
    for group in optimizer.param_groups:
        for each in group["params"]:
            each.grad = torch.full_like(each, gradient)
    optimizer.step()


@contextlib.contextmanager
def _at_rest(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """A learning rate of zero, and no gradient left behind; no state either, where it fails."""
    rates = [group["lr"] for group in optimizer.param_groups]
    try:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        yield
    except BaseException:
        optimizer.state.clear()
        raise
    finally:
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
            for each in group["params"]:
                each.grad = None


@contextlib.contextmanager
def _as_before(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Put weights and all numbers of an optimizer back behind the body, but not its state."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    weights = [each.detach().to("cpu", copy=True) for each in parameters]
    groups = [_numbers(group) for group in optimizer.param_groups]
    # Prodigy-plus counts the parameters of a step in one.
    counters = {name: value for name, value in vars(optimizer).items() if _is_number(value)}
    try:
        yield
    except BaseException:
        optimizer.state.clear()
        raise
    finally:
        vars(optimizer).update(counters)
        for group, numbers in zip(optimizer.param_groups, groups, strict=True):
            _put_back(group, numbers)
        with torch.no_grad():
            for each, weight in zip(parameters, weights, strict=True):
                each.copy_(weight)
                each.grad = None


def _is_number(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float)


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in group.items() if name != "params"}
    return {n: v.clone() if isinstance(v, Tensor) else v for n, v in kept.items()}


def _put_back(group: dict[str, Any], numbers: dict[str, Any]) -> None:
    for name in group.keys() - numbers.keys() - {"params"}:
        del group[name]
    for name, value in numbers.items():
        if name == "lr":
            set_rate(group, float(value))
        elif isinstance(value, Tensor):
            group[name].copy_(value)
        else:
            group[name] = value
