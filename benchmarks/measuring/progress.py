"""How far 100 optimizer steps take an adapter: along the gradient, and as norm of its delta."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapters import AdapterConfig
from trainer_core.adapters.attach_state import attach_state
from trainer_core.adapters.kinds.kind import LayerPlan
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.config import OptimizerSection, RunConfig
from trainer_core.counters import counter_seed
from trainer_core.data.batch_plan import BatchPlan
from trainer_core.data.load_batch import load_batch
from trainer_core.demo.run import dataset_folder
from trainer_core.diffusion.sigma import make_quantile
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import Prepared, prepare
from trainer_core.training.run import train
from trainer_core.training.step.micro_batch import MicroBatchLoss
from trainer_core.training.step.processes import SingleProcess

STEPS = 100
_SIGNAL_TOKENS, _NOISE_TOKENS = 4, 16
_LOSS_SCALE = 1000.0
"""Keeps the gradients far above AdamW's eps."""

_BATCH = 16


@dataclass(frozen=True, slots=True)
class Progress:
    """Where the steps of one run have led.

    Attributes:
        along: Length of the delta along the negative gradient at the start.
        norm: Frobenius norm of the delta.
        parameters: Trainable ones.
    """

    along: float
    norm: float
    parameters: int


def synthetic_progress(
    config: AdapterConfig,
    rate: float,
    shape: tuple[int, int],
    noise: float,
    seed: int,
) -> Progress:
    """Train the factors of one Linear on a gradient of low rank.

    The gradient is the sum of four outer products of Gaussian vectors, each half as strong as the
    one before (in energy); it does not change. Every step may add a fresh one of 16 such products.

    Args:
        config: The adapter, without DoRA.
        rate: AdamW's learning rate.
        shape: Inputs and outputs of the Linear.
        noise: Norm of what each step adds, over the norm of the steady gradient.
        seed: Of the adapter and of all draws.

    Returns:
        The progress after 100 steps.
    """
    generator = torch.Generator().manual_seed(counter_seed(seed, "calibration", *shape))
    kind = KINDS[config.kind]
    rank = kind.layer_rank(shape[1], config.rank)
    alpha = float(rank) if config.alpha is None else config.alpha
    plan = LayerPlan("layer", "layer", *shape, rank, alpha, config)
    factors = {
        name: factor.requires_grad_() for name, factor in kind.initial_factors(plan, seed).items()
    }
    scale = kind.scale(factors, plan.alpha, plan.rank)
    defaults = OptimizerSection()
    optimizer = torch.optim.AdamW(
        list(factors.values()),
        rate,
        (defaults.beta1, defaults.beta2),
        defaults.eps,
        defaults.weight_decay,
    )
    strengths = 0.5 ** torch.arange(_SIGNAL_TOKENS)
    signal = _outer_products(shape, strengths, generator)
    weight = _weight(shape, seed)
    # What multiplies the weight works on what the weight computes.
    seen = functools.partial(F.linear, weight=weight) if kind.multiplies else lambda x: x
    for _ in range(STEPS):
        x, g = signal
        if noise:
            fresh = _outer_products(shape, torch.ones(_NOISE_TOKENS), generator)
            x, g = (
                torch.cat([each, other * math.sqrt(noise)])
                for each, other in zip(signal, fresh, strict=True)
            )
        (_LOSS_SCALE * (kind.apply(seen(x), factors, scale) * g).sum()).backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        along = -(kind.apply(seen(signal[0]), factors, scale) * signal[1]).sum().item()
        norm = torch.linalg.vector_norm(kind.difference(factors, scale, lambda: weight)).item()
    return Progress(along, norm, sum(each.numel() for each in factors.values()))


def _weight(shape: tuple[int, int], seed: int) -> Tensor:
    """A frozen weight whose outputs are as large as its inputs; additive kinds do not look."""
    generator = torch.Generator().manual_seed(counter_seed(seed, "calibration", "weight"))
    return torch.randn(shape[1], shape[0], generator=generator) / math.sqrt(shape[0])


def _outer_products(
    shape: tuple[int, int], strengths: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs and output gradients whose products add up to a gradient of norm 1."""
    roots = strengths.pow(0.25).unsqueeze(1)
    x, g = (torch.randn(len(strengths), size, generator=generator) * roots for size in shape)
    norm = ((x @ x.t()) * (g @ g.t())).sum().sqrt()
    return x / norm.sqrt(), g / norm.sqrt()


class EmbeddedBase:
    """The embedded base with the demonstration's images, trained by the real loop.

    Args:
        folder: Where the cache and the runs lie.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        config = self.config({"kind": "lora"}, 1e-4, 0)
        self._process = SingleProcess(torch.device("cpu"))
        self._data = prepare(config, SilentObserver(), self._process)
        self._gradient = self._mean_gradient(self._data)

    def config(self, adapter: Mapping[str, Any], rate: float, seed: int) -> RunConfig:
        """A run of 100 steps at a constant rate."""
        return RunConfig.model_validate(
            {
                "base": {"path": "embedded", "variant": "generate"},
                "dataset": {"path": str(dataset_folder("generate")), "resolution": 64},
                "cache": {"dir": str(self._folder / "cache")},
                "adapter": {"targets": "all_linear", **adapter},
                "training": {
                    "steps": STEPS,
                    "batch_size": 2,
                    "checkpoint_every": 0,
                    "precision": "fp32",
                    "optimizer": {"learning_rate": rate},
                },
                "memory": {"device": "cpu", "threads": 1, "gradient_checkpointing": False},
                "output": {"dir": str(self._folder / "runs"), "name": "calibration"},
                "seed": seed,
            }
        )

    def progress(self, adapter: Mapping[str, Any], rate: float, seed: int) -> Progress:
        """Train an adapter on all Linears of the base.

        Args:
            adapter: The run file's section.
            rate: The learning rate.
            seed: The run's seed.

        Returns:
            The progress of all layers together.
        """
        result = train(self.config(adapter, rate, seed))
        state = read_adapter(result.adapters[0], self._data.family.layers.key_map)
        module = self._transformer()
        attached = attach_state(module, state)
        deltas = {name: attached.delta_weight(name).detach() for name in attached.names}
        products = [(deltas[name] * self._gradient[name]).sum().item() for name in deltas]
        return Progress(
            along=-sum(products) / _norm(self._gradient),
            norm=_norm(deltas),
            parameters=sum(each.numel() for each in attached.parameters()),
        )

    def _transformer(self) -> nn.Module:
        data = self._data
        return data.family.load_transformer(data.location, torch.float32, self._process.device)

    def _mean_gradient(self, data: Prepared) -> dict[str, Tensor]:
        """The gradient of every Linear's weight over 640 samples, before anything is trained."""
        transformer = self._transformer().requires_grad_(False)
        weights = {
            name: module.weight.requires_grad_()
            for name, module in transformer.named_modules()
            if isinstance(module, nn.Linear)
        }
        plan = BatchPlan(data.dataset.buckets, data.dataset.control_buckets, _BATCH, 1, 1, seed=987)
        step = MicroBatchLoss(
            load=functools.partial(
                load_batch, data.dataset, plan, caption_dropout=0.0, seed=987, share=(0, 1)
            ),
            load_preserved=lambda step, micro: None,
            predict=functools.partial(data.family.prediction.predict, transformer, guidance=1.0),
            sigma_at=lambda _, place: _sigma(place),
            seed=987,
            part=(0, 1),
            device=self._process.device,
        )
        for number in range(1, 41):
            (step(number, 0).loss / _BATCH).backward()
        unused = data.family.layers.unused(transformer)
        return {
            name: weight.grad
            for name, weight in weights.items()
            if weight.grad is not None and name not in unused
        }


def _sigma(place: float) -> float:
    """As the default ``training.sigma`` draws."""
    return make_quantile("logit_normal", 0.0, 1.0, 1.0, 0.0, 1.0)(place)


def _norm(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(sum(each.square().sum().item() for each in tensors.values()))
