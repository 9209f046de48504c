"""The optimizer of a run, and its state in checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..adapters.parameter_groups import ParameterGroup
from ..config import OptimizerSection
from ..errors import InputError
from .adamw8bit import STATES, AdamW8bit, fit_moment, new_state, stored_shape
from .checkpoint import STATE_PREFIX


def make_optimizer(
    settings: OptimizerSection, groups: Sequence[ParameterGroup]
) -> torch.optim.Optimizer:
    """Build AdamW, with moments in fp32 or in 8 bits.

    Args:
        settings: The run file's section.
        groups: The adapter's parameters, float32, in a fixed order.

    Returns:
        A torch optimizer; `set_learning_rate` is called before each step.
    """
    torch_groups = [
        {
            "params": list(group.parameters),
            "rate": group.rate,
            "weight_decay": settings.weight_decay if group.decays else 0.0,
            # What does not decay is a magnitude: few numbers, whose size is their meaning.
            "bits": 8 if group.decays and settings.name == "adamw8bit" else 32,
        }
        for group in groups
    ]
    betas = (settings.beta1, settings.beta2)
    if settings.name == "adamw8bit":
        return AdamW8bit(torch_groups, settings.learning_rate, betas, settings.eps)
    # A few launches for all parameters instead of hundreds. On a CPU earlier runs go on bit for
    # bit without it.
    fused = all(each.is_cuda for group in groups for each in group.parameters)
    return torch.optim.AdamW(
        torch_groups, settings.learning_rate, betas, settings.eps, fused=fused or None
    )


def allocate_state(optimizer: torch.optim.Optimizer) -> None:
    """Take the memory of the optimizer's state now, so that no step fails half way for want of it.

    Args:
        optimizer: Of `make_optimizer`. Its steps are the same, bit for bit.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            state = optimizer.state[parameter]
            if not state:
                state.update(new_state(parameter, group))


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """Give each of an optimizer's groups its share of the run's learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate * group.get("rate", 1.0)


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """List the optimizer's state as ``optimizer.<parameter index>.<name>`` tensors."""
    states = optimizer.state_dict()["state"]
    return {
        f"{STATE_PREFIX}{index}.{name}": torch.as_tensor(value)
        for index, state in states.items()
        for name, value in state.items()
    }


def load_optimizer_tensors(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, Tensor],
    stored: Sequence[ParameterGroup] | None = None,
) -> None:
    """Put back what `optimizer_tensors` listed.

    Args:
        optimizer: An optimizer over the same parameters.
        tensors: Tensors by name; names without the optimizer's prefix are ignored.
        stored: The groups that the parameters were sorted into then; unset: the same as now.

    Raises:
        InputError: When the state belongs to other parameters, or a part of it is missing.
    """
    owner = {id(each): group for group in optimizer.param_groups for each in group["params"]}
    order = [each for group in optimizer.param_groups for each in group["params"]]
    place = {id(parameter): index for index, parameter in enumerate(order)}
    before = order if stored is None else [each for group in stored for each in group.parameters]
    states: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if not key.startswith(STATE_PREFIX):
            continue
        number, _, name = key[len(STATE_PREFIX) :].partition(".")
        if not number.isdecimal() or not name:
            raise _misfit(f"the tensor {key}", "names such as optimizer.0.exp_avg")
        if int(number) >= len(before):
            raise _misfit(f"{int(number) + 1} parameters", f"a state of {len(before)} parameters")
        states.setdefault(place[id(before[int(number)])], {})[name] = tensor
    _check_states(states, order)
    for index, state in states.items():
        parameter = order[index]
        group = owner[id(parameter)]
        kept = new_state(parameter, group)
        kept["step"].copy_(state["step"])
        for name in STATES:
            kept[name] = fit_moment(state[name], parameter, group, name)
        optimizer.state[parameter] = kept


def _check_states(states: Mapping[int, Mapping[str, Tensor]], parameters: Sequence[Tensor]) -> None:
    """Refuse what torch would take, and fail at, or go astray with, in the next step."""
    for index, state in states.items():
        odd = sorted(state.keys() ^ {"step", *STATES})
        if odd:
            found = "no" if odd[0] in {"step", *STATES} else "an unknown"
            raise _misfit(f"{found} {odd[0]} of parameter {index}", "every part of the state")
        for name in STATES:
            found, expected = tuple(state[name].shape), stored_shape(state[name], parameters[index])
            if found != expected:
                raise _misfit(f"{name} {index} of shape {found}", f"the shape {expected}")


def _misfit(found: str, expected: str) -> InputError:
    return InputError(
        f"the checkpoint's optimizer state has {found}",
        expected,
        "Resume with the run file that the checkpoint was made with (run.yaml beside it), or from "
        "another checkpoint: resume=PATH.",
    )
