"""Noise levels, losses and preservation of ai-toolkit.

Source: ostris/ai-toolkit at 27a03a91, ``jobs/process/BaseSDTrainProcess.py`` and
``toolkit/samplers/custom_flowmatch_sampler.py``.
"""

from __future__ import annotations

import math

from .rules import Conversion, Source, Table, flag, mapping, number, text, whole
from .vocabulary import set_base_shift_of_uniform

_EVEN = "Each noise level is weighted there besides, which is left out."
_LOSSES = {
    "mse": ("mse", ""),
    "mae": ("mae", ""),
    "pseudo_huber": ("huber", "There it is divided by 2 huber_delta."),
}
_DELTA = 0.01
"""Of its pseudo_huber, ``sqrt(e^2 + delta^2) - delta``."""
_FEW_STEPS = "It trains a few fixed noise levels, for distilled models."


def set_noise(train: Source, to: Conversion) -> None:
    """Which noise levels are trained."""
    kind = train.read("timestep_type", text, "sigmoid")
    bias = train.read("content_or_style", text, "balanced")
    linear = train.read("linear_timesteps", flag, False)
    linear = linear or train.read("linear_timesteps2", flag, False)
    entry = ("train.timestep_type", kind)
    density = "training.sigma.density"
    _linear(train, to)
    if bias in {"content", "style"}:
        exact = linear or kind == "linear"
        near = "" if exact else f"There on top of timestep_type {kind}."
        to.say(density, bias, "train.content_or_style", bias, near)
        _bounds(train, to)
        return
    if train.has("content_or_style"):
        to.off("train.content_or_style", bias)
    if linear:
        pass
    elif kind == "sigmoid":
        train.say(to, density, "logit_normal", "timestep_type", kind)
    elif kind in {"linear", "weighted"}:
        to.say(density, "uniform", *entry, _EVEN if kind == "weighted" else "")
    elif kind in {"shift", "flux_shift", "lumina2_shift"}:
        set_base_shift_of_uniform(to, entry)
    elif kind == "lognorm_blend":
        to.say(density, "content", *entry, "Mostly strong noise, with a quarter of all levels.")
    else:
        to.lack(*entry, _FEW_STEPS)
    _bounds(train, to)


def _linear(train: Source, to: Conversion) -> None:
    for key in ("linear_timesteps", "linear_timesteps2"):
        if train.read(key, flag, False):
            to.say("training.sigma.density", "uniform", f"train.{key}", True, _EVEN)
        elif train.has(key):
            to.off(f"train.{key}", False)


def _bounds(train: Source, to: Conversion) -> None:
    near = "There levels are counted by place; the bound is exact with timestep_type linear."
    least = train.read("min_denoising_steps", whole, 0)
    most = train.read("max_denoising_steps", whole, 999)
    if least > 0:
        to.say("training.sigma.max", 1 - least / 1000, "train.min_denoising_steps", least, near)
    if most < 999:
        low = math.floor(1000 - most) / 1000
        to.say("training.sigma.min", low, "train.max_denoising_steps", most, near)


def set_loss(train: Source, average: Table, to: Conversion) -> None:
    """Loss, weighting and average, whose keys are in a section of their own."""
    kind = train.read("loss_type", text, "mse")
    if kind in _LOSSES:
        ours, near = _LOSSES[kind]
        train.say(to, "training.loss.kind", ours, "loss_type", kind, near)
    else:
        to.lack("train.loss_type", kind, "There is no such loss here; mse stands in its place.")
    if kind == "pseudo_huber":
        to.say("training.loss.huber_delta", _DELTA, "train.loss_type", kind)
    for key in ("min_snr_gamma", "snr_gamma"):
        if gamma := train.read(key, number, 0.0):
            near = "Weighted here by the signal-to-noise ratio of flow matching."
            to.say("training.loss.weighting", "min_snr", f"train.{key}", gamma, near)
            to.say("training.loss.snr_gamma", gamma, f"train.{key}", gamma)
        elif key in train.values:
            to.off(f"train.{key}", train.values[key])
    if train.read("do_differential_guidance", flag, False):
        scale = train.read("differential_guidance_scale", number, 3.0)
        to.say(
            "training.loss.differential_guidance", scale, "train.differential_guidance_scale", scale
        )
    ema = train.read("ema_config", mapping, {})
    source = Source(train.file, ema, average, "train.ema_config.")
    source.apply(to)
    decay = source.read("ema_decay", number, 0.999)
    if source.read("use_ema", flag, False):
        near = "Here the first steps keep less of the average."
        to.say("training.ema.decay", decay, "train.ema_config.ema_decay", decay, near)
    elif ema:
        to.off("train.ema_config", dict(ema))


def set_preservation(train: Source, to: Conversion) -> None:
    """Output and blank-prompt preservation: a second loss there, a share of the batch here."""
    for key, kind in (
        ("diff_output_preservation", "output"),
        ("blank_prompt_preservation", "blank"),
    ):
        weight = train.read(f"{key}_multiplier", number, 1.0)
        if not train.read(key, flag, False):
            train.off(to, key, f"{key}_multiplier")
            continue
        share = weight / (1 + weight) if weight > 0 else 0.0
        near = "There each sample has a second loss; here a share of each batch has it."
        to.say("dataset.preservation.kind", kind, f"train.{key}", True, near)
        to.say(
            "dataset.preservation.share",
            round(share, 3),
            f"train.{key}_multiplier",
            weight,
            "The share that weighs as much.",
        )
    word = train.read("diff_output_preservation_class", text, "")
    if word:
        to.say(
            "dataset.preservation.class_word", word, "train.diff_output_preservation_class", word
        )
