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


def load_optimizer_tensors(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Put back what `optimizer_tensors` listed.

    Args:
        optimizer: An optimizer over the same parameters in the same order.
        tensors: Tensors by name; names without the optimizer's prefix are ignored.

    Raises:
        RunError: When the state belongs to other parameters.
    """
    states: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        if key.startswith(STATE_PREFIX):
            index, name = key[len(STATE_PREFIX) :].split(".", 1)
            # torch keeps the very tensors it is given and updates them in place.
            states.setdefault(int(index), {})[name] = tensor.clone()
    current = optimizer.state_dict()
    count = sum(len(group["params"]) for group in current["param_groups"])
    if states and max(states) >= count:
        raise RunError(
            f"an optimizer state of at least {max(states) + 1} parameters",
            f"a state of {count} parameters",
            "Resume with the run file that the checkpoint was made with.",
        )
    optimizer.load_state_dict({"state": states, "param_groups": current["param_groups"]})
