"""Optimizers that torch has, or that need torch alone."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ...config import OptimizerSection
from ...errors import InputError
from .adamw8bit import AdamW8bit
from .joined_optimizer import JoinedOptimizer
from .lion import Lion
from .optimizer_kind import Groups

FUSED = frozenset({"cpu", "cuda"})
"""Devices on which torch updates many tensors in one call."""


def adamw(settings: OptimizerSection, groups: Groups) -> torch.optim.Optimizer:
    """Torch's AdamW, with one call for all factors where the device has it."""
    betas = (settings.beta1, settings.beta2)
    fused = all(each.device.type in FUSED for group in groups for each in group["params"])
    return torch.optim.AdamW(
        [dict(group) for group in groups],
        settings.learning_rate,
        betas,
        settings.eps,
        fused=fused or None,
    )


def adamw8bit(settings: OptimizerSection, groups: Groups) -> torch.optim.Optimizer:
    """AdamW with moments in 8 bits; those of magnitudes stay in fp32."""
    betas = (settings.beta1, settings.beta2)
    # A magnitude is one of few numbers, whose size is their meaning.
    packed = [{**group, "bits": 32 if group["magnitudes"] else 8} for group in groups]
    return AdamW8bit(packed, settings.learning_rate, betas, settings.eps)


def lion(settings: OptimizerSection, groups: Groups) -> torch.optim.Optimizer:
    """Lion."""
    return Lion(groups, (settings.beta1, settings.beta2))


def sgd(settings: OptimizerSection, groups: Groups) -> torch.optim.Optimizer:
    """Gradient descent with momentum."""
    own = [{**each, "weight_decay": 0.0, "decay": each["weight_decay"]} for each in groups]
    return _DecayingSGD(own, settings.learning_rate, momentum=settings.beta1)


class _DecayingSGD(torch.optim.SGD):
    """Torch's, with the decay beside its update, as the other optimizers have it.

    Torch adds the decay to the gradient, whose momentum makes ``1 / (1 - momentum)`` times of it.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            moved = [each for each in group["params"] if each.grad is not None]
            if moved and group["decay"]:
                torch._foreach_mul_(moved, 1 - group["lr"] * group["decay"])  # pyright: ignore[reportPrivateImportUsage]
        super().step()


def muon(settings: OptimizerSection, groups: Groups) -> torch.optim.Optimizer:
    """Muon for matrices, AdamW for the rest.

    Steps are scaled to the size of AdamW's (Liu et al. 2025, arXiv:2502.16982, section 2.2), so
    that both take one learning rate. DoRA's magnitudes are not matrices, whatever their shape.

    Raises:
        InputError: When this torch has no Muon.
    """
    made = getattr(torch.optim, "Muon", None)
    if made is None:
        raise InputError(
            f"training.optimizer.name is muon, and torch {torch.__version__} has none",
            "torch 2.9 or newer",
            "Upgrade torch, or set training.optimizer.name to adamw.",
        )
    rate, beta1 = settings.learning_rate, settings.beta1
    return JoinedOptimizer(
        groups,
        lambda parameter, group: parameter.ndim == 2 and not group["magnitudes"],
        lambda own: made(own, lr=rate, momentum=beta1, adjust_lr_fn="match_rms_adamw"),
        lambda own: adamw(settings, own),
    )
