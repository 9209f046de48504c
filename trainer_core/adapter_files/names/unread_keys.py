"""Keys of an adapter file that are not read, named for what they are.

Some lie beside the factors, which mean the same without them: a text encoder's part, whole weights
and biases. Others say that the factors are of another method, so that nothing can be read.

Source: the writers of PEFT 0.21 (`modules_to_save`, `bias`), kohya's scripts and LyCORIS 4.1.3;
ComfyUI's reader, ``comfy/lora.py``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ...adapters.kinds.registry import FILE_RULES

_TITLES = [rules.title for rules in FILE_RULES.values()]
KIND_TITLES = f"{', '.join(_TITLES[:-1])} or {_TITLES[-1]}"
"""The kinds that are read, for messages."""

DROP = "adapter-trainer convert IN OUT --to LAYOUT --extras drop"
"""What leaves out all that is no factor of the denoiser."""

_PARTS = {
    r"lora_(prior_)?te\d*_|lycoris_te\d*_|text_encoders?(_\d+)?\.|text_model\.|conditioner\."
    r"|(clip_[lgh]|t5|t5xxl|qwen25_7b|bundle_emb|te\d?)\.": "of a text encoder",
    r"(unet|lora_prior_unet|vae|first_stage_model|controlnet|lora_controlnet)[._]": (
        "of another model"
    ),
}
"""How the key of another part of a pipeline begins."""

_METHODS = {
    r"\.[ab][12]\.weight$": "GLoRA",
    r"\.reshape_weight$": "a change of the layer's size",
    **{each: what for rules in FILE_RULES.values() for each, what in rules.other_methods},
    r"\.(ia3_l|vera_lambda|lora_E|ranknum)": "another method of PEFT",
}
"""Where a key is of another method, so that the factors beside it mean something else."""

_BESIDE = {each: what for rules in FILE_RULES.values() for each, what in rules.beside}
_WHOLE = {
    r"(^|\.)bias$": "a whole bias, such as of PEFT's bias",
    r"(^|\.)weight$|_norm\.scale$": "a whole weight, such as of PEFT's modules_to_save",
}
"""What is no difference and no factor, but the new value itself."""

_FACTOR_LIKE = re.compile(
    "|".join([*(rules.mark for rules in FILE_RULES.values()), "dora", "adapter"]),
    re.IGNORECASE,
)


def other_part(key: str) -> str | None:
    """What a key is of that belongs to another part of a pipeline; None for the denoiser's."""
    return next((what for pattern, what in _PARTS.items() if re.match(pattern, key)), None)


def beside_factors(name: str) -> str | None:
    """What a key is that no factor's ending fits, and without which factors mean the same.

    Args:
        name: The key without the prefix of its layout.

    Returns:
        None where nothing is known of it, or it is of another method.
    """
    if other_method(name) is not None:
        return None
    known = next((what for pattern, what in _BESIDE.items() if re.search(pattern, name)), None)
    if known is not None or _FACTOR_LIKE.search(name):
        return known
    return next((what for pattern, what in _WHOLE.items() if re.search(pattern, name)), None)


def other_method(key: str) -> str | None:
    """The method that a key is of, where it is none of those that are read; None if unknown."""
    return next((what for pattern, what in _METHODS.items() if re.search(pattern, key)), None)


def count_kinds(unread: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """How many keys there are of each kind, and the first of them.

    Args:
        unread: Key to what it is.
    """
    found: dict[str, tuple[int, str]] = {}
    for key, what in unread.items():
        count, first = found.get(what, (0, key))
        found[what] = count + 1, first
    return found


def told(kinds: Mapping[str, tuple[int, str]]) -> str:
    """Kinds of keys in words, as `count_kinds` gives them."""
    return "; ".join(
        f"{first!r} ({what})" + (f" and {count - 1} more such keys" if count > 1 else "")
        for what, (count, first) in kinds.items()
    )


PATCHES_TOLD = {
    "diff": "a whole difference of a weight (diff; LyCORIS's full, ComfyUI's Train LoRA)",
    "diff_b": "a difference of a bias (diff_b; LyCORIS's full, ComfyUI's Train LoRA)",
    "set_weight": "a new weight (set_weight)",
    "w_norm": "a difference of a norm's weight (w_norm; LyCORIS's train_norm)",
    "b_norm": "a difference of a norm's bias (b_norm; LyCORIS's train_norm)",
}
"""Ending of a weight patch to what it is."""


REPLACING = frozenset({"diff", "set_weight", "w_norm"})
"""Endings of weight patches for which ComfyUI drops the factors of the same layer."""


def patch_kinds(endings: Iterable[tuple[str, str]]) -> dict[str, tuple[int, str]]:
    """As `count_kinds`, of weight patches.

    Args:
        endings: Name of the layer and the ending of each.
    """
    return count_kinds({f"{name}.{ending}": PATCHES_TOLD[ending] for name, ending in endings})
