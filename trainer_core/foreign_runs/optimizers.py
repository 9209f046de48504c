"""Names and numbers of optimizers of other programs, and what they are here."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from ..config import OptimizerSection
from .rules import Conversion, Source, number
from .vocabulary import Said

_NO_SUCH = "There is no such optimizer here; adamw stands in its place."
_NOT_DECOUPLED = "Adam without decoupled decay; adamw is the nearest."


class _Optimizer(NamedTuple):
    """An optimizer of other programs: its name here, and its library's own defaults."""

    name: str
    defaults: Mapping[str, float]
    near: str = ""


_ADAMW = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
_ADAM = {**_ADAMW, "weight_decay": 0.0}
_PRODIGY = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
_AUTOMAGIC = _Optimizer(
    "prodigy_schedule_free",
    {"weight_decay": 0.0},
    "It finds a rate for each number, by the signs of its updates; this one finds one for all.",
)
_OPTIMI = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6, "weight_decay": 0.0}
_KAHAN = "Without Kahan's sums: factors are kept in fp32."
_LION = {"beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0}
_DECAY = {"weight_decay": 0.0}

OPTIMIZERS: Mapping[str, _Optimizer] = {
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
    "adamwschedulefree": _Optimizer("adamw_schedule_free", _PRODIGY),
    "schedulefreeadamw": _Optimizer("adamw_schedule_free", _ADAMW),
    "lion": _Optimizer("lion", _LION),
    "lion8bit": _Optimizer("lion8bit", _LION),
    "pagedlion8bit": _Optimizer("lion8bit_paged", _LION),
    "adafactor": _Optimizer("adafactor", _DECAY),
    "prodigy": _Optimizer("prodigy", _PRODIGY),
    "prodigy8bit": _Optimizer("prodigy", _PRODIGY, "Its state is not kept in 8 bits."),
    "prodigyplusschedulefree": _Optimizer("prodigy_schedule_free", {**_PRODIGY, "beta2": 0.99}),
    **dict.fromkeys(("automagic", "automagic2", "automagic3", "automagicexperiment"), _AUTOMAGIC),
    "came": _Optimizer("came", {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.0}),
    "muon": _Optimizer("muon", {"beta1": 0.95, "weight_decay": 0.0}),
    "sgd": _Optimizer("sgd", {"beta1": 0.0, "weight_decay": 0.0}),
}
"""Name in small letters, with nothing but letters and figures, to ours."""

_MOMENTUM = "momentum"
_BY_MOMENTUM = ("sgd", "muon")
"""Optimizers whose beta1 other programs call momentum."""

FINDS_ITS_RATE = ("prodigy", "prodigy_schedule_free")
"""Optimizers whose learning rate is a factor of what they find, and is to be 1."""


_ALWAYS_ON = ("use_bias_correction", "safeguard_warmup")
"""What those optimizers do here whatever is said."""


def note_number(to: Conversion, kind: str, key: str, name: str, value: Any) -> None:
    """Note a number of an optimizer that is no setting here.

    Args:
        key: The number's key, for the note.
    """
    if name in _ALWAYS_ON and find_optimizer(kind).name in FINDS_ITS_RATE:
        (to.off if str(value).lower() == "true" else to.lack)(key, value, "It is always on here.")
    else:
        to.lack(key, value, "The optimizer here has no such number.")


def find_optimizer(name: str) -> _Optimizer:
    """The optimizer of a name in any spelling, such as ``bitsandbytes.optim.AdamW8bit``."""
    plain = re.sub(r"[^a-z0-9]", "", name.rsplit(".", 1)[-1].lower())
    return OPTIMIZERS.get(plain, _Optimizer("adamw", _ADAMW, _NO_SUCH))


NUMBERS = ("weight_decay", "eps", "momentum", "beta1", "beta2")


def set_optimizer_by(
    source: Source,
    to: Conversion,
    name: Said,
    args: Mapping[str, Any],
    place: str,
    defaults: Mapping[str, float] | None = None,
    *,
    named: bool | None = None,
) -> str:
    """Say which optimizer, and its numbers, which stand together in the file.

    Args:
        name: The key of its name, and its name.
        args: The numbers, as its library calls them; what is none of ours is noted.
        place: What a number's key is, with ``{}`` for its name there.
        defaults: As `set_optimizer`.
        named: As `set_optimizer`; unset: whether the file says the name's key.

    Returns:
        Its name here.
    """
    numbers: dict[str, Said] = {}
    for key, value in args.items():
        path = place.format(key)
        row = source.prefix + path
        if key == "betas" and isinstance(value, list) and len(value) == 2:
            both = [source.check(path, each, number) for each in value]
            numbers |= {f"beta{at}": (row, each) for at, each in enumerate(both, 1)}
        elif key in NUMBERS:
            numbers[key] = (row, source.check(path, value, number))
        else:
            note_number(to, str(name[1]), row, key, value)
    entry = (source.prefix + name[0], name[1])
    named = source.has(name[0]) if named is None else named
    return set_optimizer(to, entry, numbers, defaults, named=named)


def set_optimizer(
    to: Conversion,
    name: Said,
    entries: Mapping[str, Said],
    defaults: Mapping[str, float] | None = None,
    *,
    named: bool = True,
) -> str:
    """Say which optimizer, and its numbers: what the file says, else what its library takes.

    Args:
        entries: Settings of the section ``optimizer``, or ``momentum``, to key and value.
        defaults: Of this program, where they differ from the library's.
        named: Whether the file says its name.

    Returns:
        Its name here.
    """
    found = find_optimizer(str(name[1]))
    section = "training.optimizer"
    to.say(f"{section}.name", found.name, *name, found.near, stated=named)
    if found.name in _BY_MOMENTUM and _MOMENTUM in entries:
        entries = {"beta1" if each == _MOMENTUM else each: entry for each, entry in entries.items()}
    standard = {**found.defaults}
    standard |= {key: value for key, value in (defaults or {}).items() if key in standard}
    for setting, (key, value) in entries.items():
        if setting in standard:
            to.say(f"{section}.{setting}", value, key, value)
        else:
            to.lack(key, value, f"{found.name} has no such number here.")
    usual = OptimizerSection.model_validate({"name": found.name})
    for setting, value in standard.items():
        if setting not in entries:
            key, ours = f"{name[0]} ({setting})", getattr(usual, setting)
            to.say(f"{section}.{setting}", value, key, value, stated=False, ours=ours)
    return found.name
