"""Noise levels, losses and the average of OneTrainer.

Source: Nerogar/OneTrainer at 23df3832, ``modules/modelSetup/mixin/ModelSetupNoiseMixin.py`` and
``modules/util/config/TrainConfig.py``.
"""

from __future__ import annotations

from .rules import Conversion, Source, flag, number, text, whole
from .vocabulary import LIKE_UNIFORM, set_base_shift_of_uniform

_DENSITY = "training.sigma.density"


def set_noise(source: Source, to: Conversion) -> None:
    """The density; weight and bias mean something else with each."""
    kind = source.read("timestep_distribution", text, "UNIFORM")
    weight = source.read("noising_weight", number, 0.0)
    bias = source.read("noising_bias", number, 0.0)
    entry = ("timestep_distribution", kind)
    plain = _is_plain_shift(source)
    if kind == "LOGIT_NORMAL":
        to.say(_DENSITY, "logit_normal" if plain else "shifted", *entry)
        to.say("training.sigma.mean", bias, "noising_bias", bias, stated=bool(bias))
        to.say("training.sigma.std", weight + 1, "noising_weight", weight, stated=bool(weight))
    elif kind == "HEAVY_TAIL":
        to.say(_DENSITY, "mode", *entry)
        to.say("training.sigma.mode_scale", weight, "noising_weight", weight)
    elif kind == "BETA":
        to.say(_DENSITY, "beta", *entry)
        to.say("training.sigma.alpha", max(1e-4, weight), "noising_weight", weight)
        to.say("training.sigma.beta", max(1e-4, bias), "noising_bias", bias)
    elif kind == "COS_MAP":
        to.say(_DENSITY, "cosmap", *entry)
    elif kind in {"UNIFORM", "SIGMOID", "INVERTED_PARABOLA"}:
        near = "" if kind == "UNIFORM" or not weight else "There is no such density here."
        source.say(to, _DENSITY, "uniform", *entry, near)
    else:
        to.lack(*entry, "There is no such density here.")
    _leftover(source, to)


def _leftover(source: Source, to: Conversion) -> None:
    """Numbers that mean nothing with the density, and the bounds."""
    for key in ("noising_weight", "noising_bias"):
        if source.has(key) and not any(note.key == key for note in to.notes):
            (to.lack if source.values[key] else to.off)(
                key, source.values[key], "It means nothing with the density that is taken."
            )
    near = "Cut off here; there the whole density is pressed between the bounds."
    for key, setting, usual in (
        ("min_noising_strength", "min", 0.0),
        ("max_noising_strength", "max", 1.0),
    ):
        value = source.read(key, number, usual)
        if value != usual:
            to.say(f"training.sigma.{setting}", value, key, value, near)
        else:
            source.off(to, key)


def _is_plain_shift(source: Source) -> bool:
    dynamic = source.read("dynamic_timestep_shifting", flag, False)
    return not dynamic and source.read("timestep_shift", number, 1.0) == 1.0


def set_shift(source: Source, to: Conversion) -> None:
    """Say what moves the density that `set_noise` has said."""
    shift = source.read("timestep_shift", number, 1.0)
    density = to.values.get(_DENSITY, "logit_normal")
    if source.read("dynamic_timestep_shifting", flag, False):
        entry = ("dynamic_timestep_shifting", True)
        if density == "uniform":
            set_base_shift_of_uniform(to, entry)
            to.values["training.sigma.std"] = LIKE_UNIFORM
        elif density == "shifted":
            to.say(_DENSITY, "shifted", *entry, "By the base's own scheduler at the image's size.")
        else:
            to.lack(*entry, "This density is moved by a fixed shift alone (training.sigma.shift).")
        source.off(to, "timestep_shift", why="dynamic_timestep_shifting wins over it.")
        return
    if "dynamic_timestep_shifting" in source.values:
        to.off("dynamic_timestep_shifting", False)
    if shift != 1.0:
        to.say("training.sigma.shift", shift, "timestep_shift", shift)
    else:
        source.off(to, "timestep_shift")


_LOSSES = {
    "mse_strength": ("mse", 1.0),
    "mae_strength": ("mae", 0.0),
    "huber_strength": ("huber", 0.0),
    "log_cosh_strength": ("", 0.0),
}
_WEIGHTINGS = {
    "CONSTANT": ("none", ""),
    "MIN_SNR_GAMMA": ("min_snr", "There it ends with an error where flow matching is trained."),
}
"""Ours, and how it differs. SIGMA multiplies by sigma there, so that strong noise counts more;
``sigma_sqrt`` divides by its square."""

_HUBER = "There half of it, and with a kink at huber_delta."


def set_loss(source: Source, to: Conversion) -> None:
    """Say loss, weighting and average."""
    parts = {key: source.read(key, number, usual) for key, (_, usual) in _LOSSES.items()}
    used = {key: value for key, value in parts.items() if value}
    first = max(used, key=lambda key: used[key], default="mse_strength")
    kind = _LOSSES[first][0]
    if kind and len(used) == 1:
        near = _HUBER if kind == "huber" else ""
        near = near if used[first] == 1 else "Its strength scales the learning rate there."
        source.say(to, "training.loss.kind", kind, first, used[first], near)
    else:
        near = "Losses are not added up here; this one counts most there."
        to.say("training.loss.kind", kind or "mse", first, parts[first], near)
    for key, value in parts.items():
        if key != first and source.has(key):
            (to.lack if value else to.off)(key, value, "Only one loss is taken.")
    delta = source.read("huber_delta", number, 1.0)
    if kind == "huber":
        source.say(to, "training.loss.huber_delta", delta, "huber_delta")
    else:
        source.off(to, "huber_delta")
    name = source.read("loss_weight_fn", text, "CONSTANT")
    strength = source.read("loss_weight_strength", number, 5.0)
    if name in _WEIGHTINGS:
        weighting, near = _WEIGHTINGS[name]
        source.say(to, "training.loss.weighting", weighting, "loss_weight_fn", name, near)
    else:
        to.lack("loss_weight_fn", name, "There is no such weighting here.")
    if name == "MIN_SNR_GAMMA":
        source.say(to, "training.loss.snr_gamma", strength, "loss_weight_strength")
    else:
        source.off(to, "loss_weight_strength")
    _average(source, to)


def _average(source: Source, to: Conversion) -> None:
    mode = source.read("ema", text, "OFF")
    decay = source.read("ema_decay", number, 0.999)
    every = max(1, source.read("ema_update_step_interval", whole, 5))
    if mode == "OFF":
        for key in ("ema", "ema_decay", "ema_update_step_interval", "non_ema_sampling"):
            if key in source.values:
                to.off(key, source.values[key])
        return
    near = f"There it is updated every {every} steps: this decay forgets as fast."
    ours = round(decay ** (1 / every), 6) if decay > 0 else decay
    to.say("training.ema.decay", ours, "ema_decay", decay, near)
    source.off(to, "ema", "ema_update_step_interval", why="It is in training.ema.decay.")
    if source.read("non_ema_sampling", flag, True):
        source.say(to, "training.ema.previews", "last", "non_ema_sampling", True)
