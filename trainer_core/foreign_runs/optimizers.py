"""Optimizers of other programs, and what they are here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..config import OptimizerSection
from .conversion import Conversion, Source
from .value_readers import number, text

Said = tuple[str, Any]
"""A key with what it says there."""


class _Optimizer(NamedTuple):
    """An optimizer of other programs: its name here, and its library's own defaults."""

    name: str
    defaults: Mapping[str, float]
    near: str = ""


_ADAMW = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
_ADAM = {**_ADAMW, "weight_decay": 0.0}
_OPTIMI = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.0}
_LION = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0}
_DECAY = {"weight_decay": 0.0}
_NO_SUCH = "There is no such optimizer here; adamw stands in its place."
_NOT_DECOUPLED = "Adam without decoupled decay; adamw is the nearest."
_KAHAN = "Without Kahan's sums: factors are kept in fp32."
_AUTOMAGIC = _Optimizer(
    "prodigy_schedule_free",
    _DECAY,
    "It finds a rate for each number, by the signs of its updates; this one finds one for all.",
)
_OPTIMIZERS: Mapping[str, _Optimizer] = {
    "adamw": _Optimizer("adamw", _ADAMW),
    "adam": _Optimizer("adamw", _ADAM, _NOT_DECOUPLED),
    "adamw8bit": _Optimizer("adamw8bit", _ADAMW),
    "adamw8": _Optimizer("adamw8bit", _ADAMW, "Another library's 8 bits."),
    "adam8": _Optimizer("adamw8bit", _ADAM, _NOT_DECOUPLED),
    "adam8bit": _Optimizer("adamw8bit", _ADAM, _NOT_DECOUPLED),
    "adamwoptimi": _Optimizer("adamw", _OPTIMI, _KAHAN),
    "stableadamw": _Optimizer("adamw", _OPTIMI, "Updates are not clipped by their size."),
    "adamw8bitkahan": _Optimizer("adamw8bit", _ADAMW, _KAHAN),
    "offload": _Optimizer("adamw", _ADAMW),
    "pagedadamw": _Optimizer("adamw_paged", _ADAMW),
    "pagedadamw32bit": _Optimizer("adamw_paged", _ADAMW),
    "pagedadamw8bit": _Optimizer("adamw8bit_paged", _ADAMW),
    "adamw4bit": _Optimizer("adamw4bit", _ADAMW),
    "adamwfp8": _Optimizer("adamw_fp8", _ADAMW),
    "adamwschedulefree": _Optimizer("adamw_schedule_free", _ADAM),
    "schedulefreeadamw": _Optimizer("adamw_schedule_free", _ADAMW),
    "lion": _Optimizer("lion", _LION),
    "lion8bit": _Optimizer("lion8bit", _LION),
    "pagedlion8bit": _Optimizer("lion8bit_paged", _LION),
    "adafactor": _Optimizer("adafactor", _DECAY),
    "prodigy": _Optimizer("prodigy", _ADAM),
    "prodigy8bit": _Optimizer("prodigy", _ADAM, "Its state is not kept in 8 bits."),
    "prodigyplusschedulefree": _Optimizer("prodigy_schedule_free", {**_ADAM, "beta2": 0.99}),
    **dict.fromkeys(("automagic", "automagic2", "automagic3", "automagicexperiment"), _AUTOMAGIC),
    "came": _Optimizer("came", {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0}),
    "muon": _Optimizer("muon", {"beta1": 0.95, "weight_decay": 0.0}),
    "sgd": _Optimizer("sgd", {"beta1": 0.0, "weight_decay": 0.0}),
}
"""Name in small letters, with nothing but letters and figures, to ours."""

_BY_MOMENTUM = ("sgd", "muon")
"""Optimizers whose beta1 other programs call momentum."""
_NUMBERS = ("weight_decay", "eps", "beta1", "beta2", "momentum")

FINDS_ITS_RATE = ("prodigy", "prodigy_schedule_free")
"""Optimizers whose learning rate is a factor of what they find, and is to be 1."""


def set_optimizer(
    source: Source,
    to: Conversion,
    key: str,
    numbers: str | Mapping[str, str],
    *,
    word: str = "",
    defaults: Mapping[str, float] | None = None,
) -> str:
    """Say which optimizer, and its numbers: what the file says, else what its library takes.

    Args:
        key: Of the name, in any spelling, such as ``bitsandbytes.optim.AdamW8bit``.
        numbers: The section of the numbers, or their names to keys.
        word: The name, where the key alone does not say it.
        defaults: Of this program, where they differ from the library's.

    Returns:
        Its name here.
    """
    word = word or source.read(key, text, "") or "AdamW"
    plain = re.sub(r"[^a-z0-9]", "", word.rsplit(".", 1)[-1].lower())
    found = _OPTIMIZERS.get(plain, _Optimizer("adamw", _ADAMW, _NO_SUCH))
    section = "training.optimizer"
    source.set(to, f"{section}.name", found.name, key, word, found.near)
    if isinstance(numbers, str):
        numbers = {each: f"{numbers}.{each}" for each in (*_NUMBERS, "betas")}
    entries = _entries(source, to, numbers)
    if found.name in _BY_MOMENTUM and "momentum" in entries:
        entries["beta1"] = entries.pop("momentum")
    standard = {**found.defaults}
    standard |= {name: value for name, value in (defaults or {}).items() if name in standard}
    for name, (place, value) in entries.items():
        if name in standard:
            to.set(f"{section}.{name}", value, place, value)
        else:
            to.missing(place, value, f"{found.name} has no such number here.")
    usual = OptimizerSection.model_validate({"name": found.name})
    for name, value in standard.items():
        if name not in entries:
            place, ours = f"{source.name(key)} ({name})", getattr(usual, name)
            to.set(f"{section}.{name}", value, place, value, stated=False, ours=ours)
    return found.name


def _entries(source: Source, to: Conversion, keys: Mapping[str, str]) -> dict[str, Said]:
    """The numbers of a file, by their names."""
    entries = {
        name: (source.name(key), source.read(key, number))
        for name, key in keys.items()
        if source.has(key) and name != "betas"
    }
    key = keys.get("betas", "")
    if source.has(key):
        both = source.values[key]
        both = both.strip("()[] ").split(",")[:2] if isinstance(both, str) else both
        if not isinstance(both, list) or len(both) != 2:
            to.missing(source.name(key), both, "The optimizer here has no such number.")
        else:
            found = [source.check(key, each, number) for each in both]
            entries |= {f"beta{at}": (source.name(key), each) for at, each in enumerate(found, 1)}
    return entries
