"""An optimizer's state in a checkpoint: tensors by name, bit by bit, and nothing else.

A number that is not a tensor becomes one of 64 bits, a tensor in fewer bits that a library has a
class for the plain tensors that it is made of. What groups keep is named
``optimizer.group.<index>``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...adapters.parameter_groups import ParameterGroup
from ...errors import InputError
from .adamw8bit import STATES, fit_moment, new_state, stored_shape
from .allocation import keeps_moments, prototype

NUMBERS = frozenset(
    {
        *("k", "d", "d_max", "d_numerator", "d_denom", "d_hat", "d_prev"),
        *("prev_d_numerator", "max_d_numerator", "running_d_numerator", "running_d_denom"),
        *("weight_sum", "running_weight_sum", "lr_max", "scheduled_lr", "effective_lr"),
    }
)
"""What groups keep besides settings, by its name in the libraries: of Prodigy, of Prodigy-plus and
of schedule-free AdamW."""

STATE_PREFIX = "optimizer."
"""What the names of the optimizer's tensors begin with."""

_GROUP = "group."
_FUSED = "fused"

_SAME_STATE = frozenset({"adamw", "adamw8bit"})
"""Optimizers whose states are turned into each other."""

_State = dict[str, Tensor]

_TYPES: Mapping[type, torch.dtype] = {bool: torch.bool, int: torch.int64, float: torch.float64}


def goes_on(before: str, after: str) -> bool:
    """Whether an optimizer can take the state of another one, by their names in the run file."""
    return before == after or {before, after} == _SAME_STATE


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """List the optimizer's state as ``optimizer.<parameter index>.<name>`` tensors."""
    found: dict[str, Tensor] = {}
    order = [each for group in optimizer.param_groups for each in group["params"]]
    for index, parameter in enumerate(order):
        for name, value in optimizer.state.get(parameter, {}).items():
            for part, tensor in _plain(name, value):
                found[f"{STATE_PREFIX}{index}.{part}"] = tensor
    for index, group in enumerate(optimizer.param_groups):
        kept = sorted(NUMBERS & group.keys())
        # Whether rounding is that of one call for all factors; it was not on a CPU once.
        kept += [_FUSED] if group.get(_FUSED) and keeps_moments(optimizer) else []
        for name in kept:
            for part, tensor in _plain(name, group[name]):
                found[f"{STATE_PREFIX}{_GROUP}{index}.{part}"] = tensor
    return found


def _plain(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    """A value as plain tensors by name; none for what follows from the settings."""
    if isinstance(value, Tensor):
        if hasattr(value, "__tensor_flatten__"):
            own: Any = value
            for inner in own.__tensor_flatten__()[0]:
                yield from _plain(f"{name}.{inner}", getattr(value, inner))
        else:
            yield name, value.detach()
    elif type(value) in _TYPES:
        yield name, torch.tensor(value, dtype=_TYPES[type(value)])


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    stored: Sequence[ParameterGroup] | None = None,
) -> None:
    """Put back what `optimizer_tensors` listed.

    Args:
        tensors: Tensors by name; names without the optimizer's prefix are ignored.
        stored: The groups that the parameters were sorted into then; unset: the same as now.

    Raises:
        InputError: When the state belongs to other parameters, or a part of it is missing.
    """
    order = [each for group in optimizer.param_groups for each in group["params"]]
    before = order if stored is None else [each for group in stored for each in group.parameters]
    states, groups = _sorted(tensors, len(before))
    by_parameter: dict[Tensor, _State] = {before[index]: state for index, state in states.items()}
    if keeps_moments(optimizer):
        _fill_moments(optimizer, by_parameter, groups)
    elif by_parameter:
        _fill(optimizer, by_parameter, groups)


def _sorted(
    tensors: Mapping[str, Tensor], count: int
) -> tuple[dict[int, _State], dict[int, _State]]:
    """The state of each parameter, and of each group."""
    states: dict[int, _State] = {}
    groups: dict[int, _State] = {}
    for key, tensor in tensors.items():
        if not key.startswith(STATE_PREFIX):
            continue
        of_group = key.startswith(STATE_PREFIX + _GROUP)
        rest = key.removeprefix(STATE_PREFIX).removeprefix(_GROUP)
        number, _, name = rest.partition(".")
        if not number.isdecimal() or not name:
            raise _misfit(f"the tensor {key}", "names such as optimizer.0.exp_avg")
        if not of_group and int(number) >= count:
            raise _misfit(f"{int(number) + 1} parameters", f"a state of {count} parameters")
        (groups if of_group else states).setdefault(int(number), {})[name] = tensor
    return states, groups


def _fill_moments(
    optimizer: torch.optim.Optimizer, states: Mapping[Tensor, _State], groups: Mapping[int, _State]
) -> None:
    """Fill in moments, in the number format that is wanted now."""
    places = {each: index for index, each in enumerate(states)}
    for parameter, state in states.items():
        _check_moments(places[parameter], state, parameter)
    for group in optimizer.param_groups:
        on_cpu = all(each.device.type == "cpu" for each in group["params"])
        if states and on_cpu and _FUSED in group and not any(_FUSED in g for g in groups.values()):
            # Begun by a version that rounded otherwise: it goes on bit for bit.
            group[_FUSED] = None
        for parameter in group["params"]:
            state = states.get(parameter)
            if state is None:
                continue
            kept = new_state(parameter, group)
            kept["step"].copy_(state["step"])
            for name in STATES:
                kept[name] = fit_moment(state[name], parameter, group, name)
            optimizer.state[parameter] = kept


def _check_moments(index: int, state: Mapping[str, Tensor], parameter: Tensor) -> None:
    """Refuse what torch would take, and fail at, or go astray with, in the next step."""
    odd = sorted(state.keys() ^ {"step", *STATES})
    if odd:
        found = "no" if odd[0] in {"step", *STATES} else "an unknown"
        raise _misfit(f"{found} {odd[0]} of parameter {index}", "every part of the state")
    for name in STATES:
        found, expected = tuple(state[name].shape), stored_shape(state[name], parameter)
        if found != expected:
            raise _misfit(f"{name} {index} of shape {found}", f"the shape {expected}")


def _fill(
    optimizer: torch.optim.Optimizer, states: Mapping[Tensor, _State], groups: Mapping[int, _State]
) -> None:
    """Let the optimizer make a state of its own, and fill it."""
    prototype(optimizer)
    order = [each for group in optimizer.param_groups for each in group["params"]]
    for index, parameter in enumerate(order):
        if parameter not in states:
            # It had no gradient yet.
            optimizer.state.pop(parameter, None)
            continue
        _fill_values(optimizer.state[parameter], states[parameter], f"of parameter {index}")
    for index, group in enumerate(optimizer.param_groups):
        # Where parameters are sorted otherwise now, what groups keep is that of the first.
        for name, value in (groups.get(index) or groups.get(0) or {}).items():
            kept = group.get(name)
            if isinstance(kept, Tensor):
                kept.copy_(value)
            elif name in NUMBERS:
                group[name] = value.item()


def _fill_values(state: dict[str, Any], stored: Mapping[str, Tensor], whose: str) -> None:
    parts = {part: name for name, value in state.items() for part, _ in _plain(name, value)}
    odd = sorted(stored.keys() ^ parts.keys())
    if odd:
        found = "no" if odd[0] in parts else "an unknown"
        raise _misfit(f"{found} {odd[0]} {whose}", "every part of the state")
    for part, name in parts.items():
        value, inner = state[name], part.removeprefix(name).removeprefix(".")
        saved = stored[part]
        if not isinstance(value, Tensor):
            # CAME keeps a number at first, and then a tensor.
            state[name] = saved.item() if saved.dtype in _TYPES.values() else saved.clone()
            continue
        kept: Tensor = getattr(value, inner) if inner else value
        if kept.shape == saved.shape and kept.dtype == saved.dtype:
            kept.copy_(saved)
        elif not inner and 0 in {kept.ndim, saved.ndim} and kept.dtype == saved.dtype:
            # Prodigy writes one zero where a factor started as zeros.
            state[name] = saved.to(kept.device, copy=True)
        else:
            found, expected = tuple(saved.shape), tuple(kept.shape)
            raise _misfit(f"{part} {whose} of shape {found}", f"the shape {expected}")


def _misfit(found: str, expected: str) -> InputError:
    return InputError(
        f"the checkpoint's optimizer state has {found}",
        expected,
        "Resume with the run file that the checkpoint was made with (run.yaml beside it), or from "
        "another checkpoint: resume=PATH.",
    )
