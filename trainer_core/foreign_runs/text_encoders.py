"""A text encoder that another program trains beside the denoiser."""

from __future__ import annotations

from .rules import Conversion, Source, flag, number

_NONE = "Its bases have no text encoder that is trained here."


def set_text_encoder(to: Conversion, source: Source, train: str, rate: str, near: str = "") -> None:
    """Say whether it is trained, at which rate, and of which rank: that of the adapter.

    Args:
        to: Gets the settings; family, rank and learning rate are in it.
        source: The file.
        train: The key that says whether it is trained.
        rate: The key of its learning rate; where it is unset, that of the denoiser counts.
        near: How ours differs; empty for an exact counterpart.
    """
    from ..families.registry import FAMILIES, get_family

    keys = tuple(source.prefix + key for key in (train, rate))
    if not source.read(train, flag, False):
        for key, place in zip((train, rate), keys, strict=True):
            if key in source.values:
                to.off(place, source.values[key], "The text encoder stays as it is.")
        return
    if to.values["family"] not in FAMILIES or not get_family(to.values["family"]).trainable_text:
        to.lack(keys[0], True, _NONE)
        if rate in source.values:
            to.off(keys[1], source.values[rate], _NONE)
        return
    section = "training.text_encoder"
    to.say(f"{section}.train", True, keys[0], True, near)
    usual = to.values.get("training.optimizer.learning_rate", 1e-4)
    value = source.read(rate, number, usual)
    source.say(to, f"{section}.learning_rate", value, rate, source.values.get(rate, usual))
    rank = to.values.get("adapter.rank")
    if rank is not None:
        to.say(f"{section}.rank", rank, keys[0], rank)
