"""Settings of the optimizer."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from .optimizer_facts import with_own_defaults
from .section import Section, setting

OptimizerName = Literal[
    "adamw",
    "adamw8bit",
    "adamw_paged",
    "adamw8bit_paged",
    "adamw4bit",
    "adamw_fp8",
    "adamw_schedule_free",
    "lion",
    "lion8bit",
    "lion8bit_paged",
    "adafactor",
    "prodigy",
    "prodigy_schedule_free",
    "came",
    "muon",
    "sgd",
]


class OptimizerSection(Section):
    """How gradients become updates."""

    name: OptimizerName = setting(
        "adamw",
        "Take adamw8bit when VRAM is short (10 bytes of memory for a trained number instead of "
        "16), prodigy to have the learning rate found by itself, else leave it. Rate, betas, eps "
        "and decay that you leave out suit the optimizer. Some need adapter-trainer[optimizers].",
    )
    learning_rate: float = setting(
        1e-4,
        "Lower it when previews fall apart; raise it when they hardly change. 1e-4 suits every "
        "kind but oft with adamw, and 1e-2 the embedded base; lion takes 3e-5, the prodigies 1. "
        "Highest learning rate of the run: how far each step goes.",
        gt=0.0,
        le=10.0,
    )
    beta1: float = setting(
        0.9,
        "Leave it unless a recipe names another value. Decay of the mean gradient.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    beta2: float = setting(
        0.999,
        "Leave it unless a recipe names another value. Decay of the mean squared gradient.",
        advanced=True,
        ge=0.0,
        lt=1.0,
    )
    eps: float = setting(
        1e-8,
        "Leave it unless a recipe names another value. Added to the denominator of an update.",
        advanced=True,
        gt=0.0,
        le=1.0,
    )
    weight_decay: float = setting(
        0.01,
        "Leave it; raise it when a long run makes the adapter too strong. Decoupled decay of the "
        "adapter's weights; DoRA's magnitudes do not decay.",
        advanced=True,
        ge=0.0,
        le=1.0,
    )
    decay_pattern: dict[str, float] = setting(
        {},
        "Leave it empty unless some layers should be held back more or less than others. Another "
        "decay for layers that match: regular expression to a multiple of weight_decay.",
        advanced=True,
    )
    lora_plus_ratio: float = setting(
        1.0,
        "Leave it at 1; raise it to let a lora learn faster. The paper takes 16. LoRA+: learning "
        "rate of the upper factor over that of the lower one; kind lora only.",
        advanced=True,
        ge=1.0,
        le=1000.0,
    )
    rate_pattern: dict[str, float] = setting(
        {},
        "Leave it empty unless some layers should learn faster or slower than others. Another "
        "learning rate for layers that match: regular expression to a multiple of learning_rate.",
        advanced=True,
    )
    magnitude_ratio: float = setting(
        1.0,
        "Leave it at 1; lower it when a dora changes contrast or color before it learns the "
        "subject. Learning rate of DoRA's magnitudes over that of the other factors.",
        advanced=True,
        gt=0.0,
        le=1000.0,
    )

    @model_validator(mode="before")
    @classmethod
    def _own_defaults(cls, values: Any) -> Any:
        return with_own_defaults(values)
