"""What is compared: the frozen Linear, and one recipe for each implementation of each kind.

A recipe adapts a frozen Linear that it is given; all of them get the same weight. Its `group` says
what it computes, so that an implementation is compared with peers that compute the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig

RANK = 16
OURS = "ours"


@dataclass(frozen=True)
class Adapted:
    """A Linear with an adapter.

    Attributes:
        forward: ``x [..., in]`` to ``[..., out]``.
        parameters: The trainable ones.
        linear: The base.
        keep: What has to live as long as this does.
    """

    forward: Callable[[Tensor], Tensor]
    parameters: list[nn.Parameter]
    linear: nn.Linear
    keep: Any = None


@dataclass(frozen=True)
class Recipe:
    """One implementation of one kind.

    Attributes:
        source: Who wrote it.
        group: What it computes.
        form: Which of the source's forms it is; empty where there is one.
        build: Adapts a frozen Linear.
        own_weight: Whether it rearranges the weight, which is then copied for it.
    """

    source: str
    group: str
    build: Callable[[nn.Linear], Adapted]
    form: str = ""
    own_weight: bool = False

    @property
    def name(self) -> str:
        """As it stands in the tables."""
        return " ".join(part for part in (self.source, self.group, self.form) if part)


GROUPS: dict[str, dict[str, Any]] = {
    "lora": {"kind": "lora"},
    "loha": {"kind": "loha"},
    "lokr r16 f8": {"kind": "lokr", "factor": 8},
    "lokr r16 f-1": {"kind": "lokr", "factor": -1},
    "lokr full f8": {"kind": "lokr", "factor": 8, "full_matrix": True},
    "dora output": {"kind": "lora", "dora": True, "dora_axis": "output"},
    "dora input": {"kind": "lora", "dora": True, "dora_axis": "input"},
    "dora loha": {"kind": "loha", "dora": True, "dora_axis": "input"},
    "dora lokr": {"kind": "lokr", "factor": 8, "dora": True, "dora_axis": "input"},
}
"""What can be computed, as the settings of our own adapters."""

EXACT = ("lora", "loha", "lokr r16 f8")
"""Groups that `exact_delta` is a goal for."""


def our_recipes() -> list[Recipe]:
    """Every group, and the forms that keep a small delta."""
    plain = [Recipe(OURS, group, _attached(options)) for group, options in GROUPS.items()]
    exact = [
        Recipe(OURS, group, _attached({**GROUPS[group], "exact_delta": True}), "exact_delta", True)
        for group in EXACT
    ]
    return plain + exact


def _attached(options: dict[str, Any]) -> Callable[[nn.Linear], Adapted]:
    def build(linear: nn.Linear) -> Adapted:
        module = nn.Sequential(linear)
        adapter = attach(module, AdapterConfig(rank=RANK, **options))
        adapter.train()
        return Adapted(module, list(adapter.parameters()), linear, adapter)

    return build


def frozen_linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """A frozen Linear on these very tensors."""
    outputs, inputs = weight.shape
    linear = nn.Linear(inputs, outputs, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def draw_linear(
    inputs: int, outputs: int, dtype: torch.dtype, device: str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Weight and bias of a Linear, of the size that torch gives them."""
    generator = torch.Generator().manual_seed(1)
    bound = inputs**-0.5
    weight = torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(outputs).uniform_(-bound, bound, generator=generator)
    return weight.to(device, dtype), bias.to(device, dtype)


def disturb(parameters: list[nn.Parameter]) -> None:
    """Move every parameter a little, so that no factor is zero."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in parameters:
            noise = torch.randn(parameter.shape, generator=generator) * 0.01
            parameter += noise.to(parameter.device, parameter.dtype)


def as_if_updated(parameters: list[nn.Parameter]) -> None:
    """Mark parameters as changed, as an optimizer step does; what was made of them is stale."""
    for parameter in parameters:
        torch.autograd.graph.increment_version(parameter)
