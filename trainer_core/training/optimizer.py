"""The optimizer over the adapter's parameters, and its state as plain tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..config import OptimizerSection
from ..errors import RunError

if TYPE_CHECKING:
    from ..adapters.groups import ParameterGroup

STATE_PREFIX = "optimizer."


def make_optimizer(
    settings: OptimizerSection, groups: Sequence[ParameterGroup]
) -> torch.optim.Optimizer:
    """Build the optimizer that the run file names.

    Args:
        settings: The run file's section.
        groups: The adapter's parameters, float32, in a fixed order.

    Returns:
        A torch optimizer; `set_learning_rate` is called before each step.
    """
    return torch.optim.AdamW(
        [
            {
                "params": list(group.parameters),
                "rate": group.rate,
                "weight_decay": settings.weight_decay if group.decays else 0.0,
            }
            for group in groups
        ],
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Give each of an optimizer's groups its share of the run's learning rate."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("rate", 1.0)


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
        RunError: When the state belongs to other parameters.
    """
    order = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    place = {id(parameter): index for index, parameter in enumerate(order)}
    before = order if stored is None else [each for group in stored for each in group.parameters]
    states: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if not key.startswith(STATE_PREFIX):
            continue
        number, name = key[len(STATE_PREFIX) :].split(".", 1)
        if int(number) >= len(before):
            raise RunError(
                f"an optimizer state of at least {int(number) + 1} parameters",
                f"a state of {len(before)} parameters",
                "Resume with the run file that the checkpoint was made with.",
            )
        # torch keeps the very tensors it is given and updates them in place.
        states.setdefault(place[id(before[int(number)])], {})[name] = tensor.clone()
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
