"""Optimizers that come from libraries; each is imported when it is chosen."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch

from ...config import OptimizerSection
from .joined_optimizer import JoinedOptimizer
from .optimizer_kind import Groups


def bitsandbytes(
    settings: OptimizerSection, groups: Groups, *, name: str, bits: int, paged: bool
) -> torch.optim.Optimizer:
    """An optimizer of bitsandbytes; the state of magnitudes stays in fp32.

    Args:
        name: Of the class: ``AdamW`` or ``Lion``.
        paged: Whether state may be moved to RAM where the device's memory is full.
    """
    from bitsandbytes import optim  # pyright: ignore[reportMissingImports]

    own: dict[str, Any] = {"lr": settings.learning_rate, "is_paged": paged}
    own["betas"] = (settings.beta1, settings.beta2)
    if name == "AdamW":
        own["eps"] = settings.eps

    def make(kept: int, taken: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return getattr(optim, name)(taken, **own, optim_bits=kept)

    return JoinedOptimizer(
        groups, lambda _, group: not group["magnitudes"], partial(make, bits), partial(make, 32)
    )


def torchao(settings: OptimizerSection, groups: Groups, *, name: str) -> torch.optim.Optimizer:
    """An AdamW of torchao; the moments of magnitudes stay in fp32."""
    with _quiet():
        from torchao import optim  # pyright: ignore[reportMissingImports]

    betas, eps = (settings.beta1, settings.beta2), settings.eps
    rate = settings.learning_rate

    def in_full(taken: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(taken, rate, betas, eps)

    def packed(taken: list[dict[str, Any]]) -> torch.optim.Optimizer:
        # The rate becomes a tensor of the group's own, which is filled before each step.
        own = [{**group, "lr": float(group["lr"])} for group in taken]
        return getattr(optim, name)(own, lr=rate, betas=betas, eps=eps)

    return JoinedOptimizer(groups, lambda _, group: not group["magnitudes"], packed, in_full)


def adafactor(settings: OptimizerSection, groups: Groups) -> torch.optim.Optimizer:
    """Adafactor at a learning rate that is given.

    Torch's scales every step by the factor's own size. A factor that starts at zero, as each
    adapter has one, would hardly move; transformers' need not.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from transformers.optimization import Adafactor

    return Adafactor(
        _as_libraries_take(groups),
        lr=settings.learning_rate,
        eps=(settings.eps, 1e-3),
        beta1=settings.beta1 or None,
        scale_parameter=False,
        relative_step=False,
        warmup_init=False,
    )


def prodigy(settings: OptimizerSection, groups: Groups) -> torch.optim.Optimizer:
    """Prodigy, with what its authors advise for diffusion models."""
    from prodigyopt import Prodigy

    return Prodigy(
        _as_libraries_take(groups),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.eps,
        decouple=True,
        use_bias_correction=True,
        safeguard_warmup=True,
    )


def prodigy_schedule_free(settings: OptimizerSection, groups: Groups) -> torch.optim.Optimizer:
    """Prodigy and schedule-free AdamW in one, with one estimate for all groups."""
    from prodigyplus import ProdigyPlusScheduleFree

    with _quiet():
        return ProdigyPlusScheduleFree(
            _as_libraries_take(groups),
            lr=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            eps=settings.eps,
            split_groups=False,
        )


def adamw_schedule_free(settings: OptimizerSection, groups: Groups) -> torch.optim.Optimizer:
    """Schedule-free AdamW."""
    from schedulefree import AdamWScheduleFree

    betas = (settings.beta1, settings.beta2)
    made = AdamWScheduleFree(
        _as_libraries_take(groups), lr=settings.learning_rate, betas=betas, eps=settings.eps
    )
    made.train()
    return made


def came(settings: OptimizerSection, groups: Groups) -> torch.optim.Optimizer:
    """CAME."""
    from came_pytorch import CAME

    return CAME(
        _as_libraries_take(groups),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2, 0.9999),
        eps=(settings.eps, 1e-16),
    )


def _as_libraries_take(groups: Groups) -> list[dict[str, Any]]:
    """Groups for a library; what is ours alone stays in them, as torch's groups may have it."""
    return [{**group, "lr": float(group["lr"])} for group in groups]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what a library prints while it is set up off the screen, where a run's progress is."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
