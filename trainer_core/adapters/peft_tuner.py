"""PEFT tuners that put this package's layers where a plan says."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from peft import LoHaConfig, LoHaModel, LoKrConfig, LoKrModel, LoraConfig, LoraModel, PeftConfig
from peft.tuners.lycoris_utils import LycorisConfig, LycorisTuner
from torch import nn

from ..config import AdapterConfig
from .kinds.kind import LayerPlan
from .kinds.registry import KINDS
from .layer.factor_layer import ADAPTER_NAME, FactorLayer
from .peft_layers import (
    LohaConv,
    LohaLinear,
    LokrConv,
    LokrLinear,
    LoraConv,
    LoraLinear,
    layer_classes,
)
from .targets import Layer


@dataclass(frozen=True)
class Job:
    """A layer to adapt and how."""

    layer: Layer
    plan: LayerPlan
    seed: int


class PlannedTuner:
    """Replaces PEFT's choice of layer and size by a plan's; mixed into PEFT's tuners.

    Args:
        model: The module that is adapted in place.
        config: PEFT's description of the adapter, whose targets are the plan's paths.
        jobs: Path to job.
    """

    linear_class: ClassVar[type[Any]]
    conv_class: ClassVar[type[Any]]
    layers: dict[str, FactorLayer]

    def __init__(self, model: nn.Module, config: PeftConfig, jobs: Mapping[str, Job]) -> None:
        # PEFT's constructor already puts the layers in, so the plan has to be there before it.
        self.__dict__["jobs"] = dict(jobs)
        self.__dict__["layers"] = {}
        super().__init__(model, config, ADAPTER_NAME)  # type: ignore[call-arg]

    def _create_and_replace(
        self,
        config: Any,
        adapter_name: str,
        target: Any,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        **kwargs: Any,
    ) -> None:
        del config, adapter_name, target_name, parent, kwargs
        job = self.__dict__["jobs"][current_key]
        layer_class = self.conv_class if job.plan.kernel else self.linear_class
        replacement = layer_class(target, job.plan, job.seed)
        for owner, attribute in job.layer.places:
            setattr(owner, attribute, replacement)
        self.__dict__["layers"][job.plan.name] = replacement


class LoraTuner(PlannedTuner, LoraModel):  # type: ignore[misc]  # PEFT names a parameter otherwise
    """LoRA."""

    linear_class = LoraLinear
    conv_class = LoraConv


class LohaTuner(PlannedTuner, LoHaModel):
    """LoHa."""

    linear_class = LohaLinear
    conv_class = LohaConv


class LokrTuner(PlannedTuner, LoKrModel):
    """LoKr."""

    linear_class = LokrLinear
    conv_class = LokrConv


@dataclass
class OwnConfig(LycorisConfig):
    """PEFT's description of a kind that it has none for; `OwnTuner` plans by the jobs instead."""

    target_modules: str = ""
    exclude_modules: str | None = None


class OwnTuner(PlannedTuner, LycorisTuner):  # type: ignore[misc]  # as above
    """A kind for which PEFT has no tuner, or one that computes something else."""

    def _mark_only_adapters_as_trainable(self, model: nn.Module) -> None:
        """Leave it to `attach`, which freezes the base: PEFT tells parameters by one prefix."""


@functools.cache
def _own_tuner(name: str) -> type[OwnTuner]:
    linear, conv = layer_classes(name)
    members = {
        "prefix": KINDS[name].factor_names[0],
        "linear_class": linear,
        "conv_class": conv,
        "__doc__": f"Kind {name}.",
    }
    return type(f"{name.title()}Tuner", (OwnTuner,), members)


def _target_expression(paths: list[str]) -> str:
    # PEFT takes a list's entries as endings of names, but a string as one whole expression.
    return "|".join(re.escape(path) for path in paths)


def _lora_config(config: AdapterConfig, targets: str) -> PeftConfig:
    return LoraConfig(
        r=config.rank,
        lora_alpha=config.rank if config.alpha is None else config.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        lora_dropout=config.dropout,
    )


def _loha_config(config: AdapterConfig, targets: str) -> PeftConfig:
    return LoHaConfig(
        r=config.rank,
        alpha=config.rank if config.alpha is None else config.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        rank_dropout=config.rank_dropout,
        module_dropout=config.module_dropout,
    )


def _lokr_config(config: AdapterConfig, targets: str) -> PeftConfig:
    return LoKrConfig(
        r=config.rank,
        alpha=config.rank if config.alpha is None else config.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        rank_dropout=config.rank_dropout,
        module_dropout=config.module_dropout,
        decompose_both=config.decompose_both,
        decompose_factor=config.factor,
    )


_TUNERS: dict[str, tuple[type[Any], Callable[[AdapterConfig, str], PeftConfig]]] = {
    "lora": (LoraTuner, _lora_config),
    "loha": (LohaTuner, _loha_config),
    "lokr": (LokrTuner, _lokr_config),
}


def inject(module: nn.Module, config: AdapterConfig, jobs: list[Job]) -> dict[str, FactorLayer]:
    """Put an adapter into a module, in place.

    Args:
        module: The module.
        config: The adapter's settings.
        jobs: What to adapt.

    Returns:
        Layer name to the new layer.
    """
    by_path = {job.plan.path: job for job in jobs}
    targets = _target_expression(list(by_path))
    if config.kind in _TUNERS:
        tuner_class, make_config = _TUNERS[config.kind]
        peft_config = make_config(config, targets)
    else:
        tuner_class, peft_config = _own_tuner(config.kind), OwnConfig(target_modules=targets)
    return tuner_class(module, peft_config, by_path).__dict__["layers"]
