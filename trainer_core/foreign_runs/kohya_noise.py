"""Noise levels of kohya's two programs, for models of flow.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/trainer_base.py``, and kohya-ss/sd-scripts at
48d368fa, ``library/flux_train_utils.py``.
"""

from __future__ import annotations

from .rules import Conversion, Source, flag, number, text, whole

DENSITY = "training.sigma.density"
_OF_BASE = ("flux_shift", "flux2_shift", "qwen_shift", "krea2_shift", "nextdit_shift")


def set_flow_noise(
    source: Source, to: Conversion, sampling: str = "sigma", shift: float = 1.0
) -> None:
    """Say which noise levels are trained, and how they count.

    Args:
        source: The arguments.
        to: Gets the settings.
        sampling: The program's default of ``timestep_sampling``.
        shift: The program's default of ``discrete_flow_shift``.
    """
    kind = source.read("timestep_sampling", text, sampling)
    row = ("timestep_sampling", kind)
    shift = source.read("discrete_flow_shift", number, shift)
    used = {"timestep_sampling", "weighting_scheme"}
    if kind == "sigma":
        used |= _by_weighting(source, shift, to)
    elif kind == "uniform":
        to.say(DENSITY, "uniform", *row)
    elif kind in {"sigmoid", "shift", *_OF_BASE}:
        used |= _moved(source, kind, shift, to)
    elif kind == "logsnr":
        used |= {"logit_mean", "logit_std"}
        source.say(to, DENSITY, "logit_normal", *row)
        for key, setting, factor, usual in (
            ("logit_mean", "mean", -0.5, 0.0),
            ("logit_std", "std", 0.5, 1.0),
        ):
            value = source.read(key, number, usual)
            source.say(to, f"training.sigma.{setting}", value * factor + 0.0, key, value)
    elif kind.startswith("qinglong"):
        to.say(DENSITY, "shifted", *row, "The largest part of its mixture of densities.")
    else:
        to.lack(*row, "There is no such density here.")
    for key in ("discrete_flow_shift", "sigmoid_scale", "logit_mean", "logit_std", "mode_scale"):
        if key not in used:
            source.off(to, key, why=f"It means nothing with timestep_sampling {kind}.")


def _moved(source: Source, kind: str, shift: float, to: Conversion) -> set[str]:
    scale = source.read("sigmoid_scale", number, 1.0)
    moves = kind in _OF_BASE or (kind == "shift" and shift != 1.0)
    near = "Moved as the base's own scheduler says." if kind in _OF_BASE else ""
    density = "shifted" if moves else "logit_normal"
    source.say(to, DENSITY, density, "timestep_sampling", kind, near)
    if kind == "shift" and moves:
        source.say(to, "training.sigma.shift", shift, "discrete_flow_shift")
    source.say(to, "training.sigma.std", scale, "sigmoid_scale")
    return {"sigmoid_scale"} | ({"discrete_flow_shift"} if kind == "shift" else set())


def _by_weighting(source: Source, shift: float, to: Conversion) -> set[str]:
    """timestep_sampling sigma: the weighting scheme is the density, on the moved levels."""
    scheme = source.read("weighting_scheme", text, "none")
    key = "weighting_scheme"
    used = {"discrete_flow_shift"}
    if scheme == "logit_normal":
        mean = source.read("logit_mean", number, 0.0)
        std = source.read("logit_std", number, 1.0)
        to.say(DENSITY, "shifted" if shift != 1 else "logit_normal", key, scheme)
        # Levels are counted from noise there.
        source.say(to, "training.sigma.mean", -mean + 0.0, "logit_mean", mean)
        source.say(to, "training.sigma.std", std, "logit_std")
        used |= {"logit_mean", "logit_std"}
    elif scheme == "mode":
        scale = source.read("mode_scale", number, 1.29)
        to.say(DENSITY, "mode", key, scheme)
        source.say(to, "training.sigma.mode_scale", scale, "mode_scale")
        used.add("mode_scale")
    else:
        source.say(to, DENSITY, "uniform", "timestep_sampling", "sigma")
    if shift != 1:
        source.say(to, "training.sigma.shift", shift, "discrete_flow_shift")
    else:
        source.off(to, "discrete_flow_shift", why="1 moves nothing.")
    return used


def set_weighting(source: Source, to: Conversion) -> None:
    """Say how each noise level counts, where the weighting scheme is no density."""
    scheme = source.read("weighting_scheme", text, "none")
    kind = source.read("timestep_sampling", text, "sigma")
    if scheme in {"sigma_sqrt", "cosmap"}:
        to.say("training.loss.weighting", scheme, "weighting_scheme", scheme)
    elif source.given("weighting_scheme") and (scheme == "none" or kind != "sigma"):
        to.off("weighting_scheme", scheme)


def set_bounds(source: Source, to: Conversion, *, cut: bool) -> None:
    """Set the smallest and the largest noise level.

    Args:
        source: The arguments.
        to: Gets the settings.
        cut: Whether the density is cut off there, as here, and not pressed between them.
    """
    cut = cut or source.read("preserve_distribution_shape", flag, False)
    near = "" if cut else "Cut off here; there the whole density is pressed between the bounds."
    for key, setting in (("min_timestep", "min"), ("max_timestep", "max")):
        if source.given(key):
            value = source.read(key, number)
            to.say(f"training.sigma.{setting}", value / 1000, key, value, near)
    source.off(to, "preserve_distribution_shape", why="Bounds always cut off here.")
    if source.read("num_timestep_buckets", whole, 0) > 1:
        value = source.values["num_timestep_buckets"]
        near = "Spread evenly over each step here, over each epoch there."
        source.say(to, "training.sigma.stratified", True, "num_timestep_buckets", value, near)
