"""Which layout an adapter file's keys are in: how trainers spell layers and factors.

A key is a name and an ending. The name is a layer's path with a prefix; the ending says which
factor it is. Both differ from trainer to trainer, and every spelling that ComfyUI 0.33, Diffusers
0.42, PEFT, kohya's scripts, musubi-tuner, LyCORIS, ai-toolkit or OneTrainer writes is known here.

Keys that are not read are named for what they are. Some lie beside the factors, which mean the same
without them: a text encoder's part, whole weights and biases. Others say that the factors are of
another method, so that nothing can be read.

Source: each program's own writer; ComfyUI's reader, comfy/lora.py and comfy/weight_adapter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...adapters.dora_magnitude import DORA_SCALE
from ...adapters.kinds.registry import FILE_RULES, LOW_RANK
from ...errors import AdapterFileError
from .key_map import DIFFUSERS_PREFIX, MODULATION, NATIVE_PREFIX, UNET_PREFIX
from .text_encoder_names import text_path

_TITLES = [rules.title for rules in FILE_RULES.values()]
KIND_TITLES = f"{', '.join(_TITLES[:-1])} or {_TITLES[-1]}"
"""The kinds that are read, for messages."""
DROP = "adapter-trainer convert IN OUT --to LAYOUT --extras drop"
"""What leaves out all that is not a factor of the denoiser."""
TEXT_PART = (
    r"(base_model\.model\.)?((lora_(prior_)?te|lycoris_te)\d*[._]|text_encoders?(_\d+)?\."
    r"|text_model\.|(conditioner|cond_stage_model|text_embedding_projection|clip_[lgh]|t5|t5xxl|qwen25_7b"
    r"|bundle_emb|te\d?)\.)"
)
"""How the key of a text encoder's part begins, in any spelling."""
_PARTS = {
    TEXT_PART: "of a text encoder",
    r"unet_|(lora_prior_unet|vae|first_stage_model|controlnet|lora_controlnet)[._]": (
        "of another model"
    ),
}
"""How the key of another part of a pipeline begins."""
_METHODS = {
    r"\.[ab][12]\.weight$": "GLoRA",
    r"\.reshape_weight$": "a change of the layer's size",
    **{each: what for rules in FILE_RULES.values() for each, what in rules.other_methods},
    r"\.on_input$": "IA3",
    r"\.(ia3_l|vera_lambda|lora_E|ranknum)": "another method of PEFT",
}
"""Where a key is of another method, so that the factors beside it mean something else."""
_BESIDE = {each: what for rules in FILE_RULES.values() for each, what in rules.beside}
_WHOLE = {
    r"(^|\.)bias$": "a whole bias, such as of PEFT's bias",
    r"(^|\.)weight$|_norm\.scale$": "a whole weight, such as of PEFT's modules_to_save",
    "": "what neither ComfyUI nor the trainer reads",
}
"""What is not a difference and no factor, but the new value itself, or not known at all."""
_FACTOR_LIKE = re.compile(
    "|".join([*(rules.mark for rules in FILE_RULES.values()), "dora", "adapter"]),
    re.IGNORECASE,
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
PEFT_PREFIX = "base_model.model."
FLAT_PREFIXES = {
    "lora_unet__": "kohya",
    "lora_unet_": "kohya",
    "lycoris_": "lycoris",
    "lora_transformer_": "onetrainer",
}
"""Prefix of names whose dots became ``_``, to the layout; VideoX-Fun puts two lines."""
_PREFIXES = {
    NATIVE_PREFIX: "comfyui",
    PEFT_PREFIX: "peft",
    DIFFUSERS_PREFIX: "diffusers",
    UNET_PREFIX: "diffusers",
    **FLAT_PREFIXES,
}
_WRAPPER = re.compile(
    r"(?<![^._])(_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)[._]|^module\."
)
"""What torch.compile, FSDP, checkpointed blocks and DDP put into names of a model they wrap."""
ALPHA = "alpha"
MAGNITUDE = "lora_magnitude_vector"
PATCH_ENDINGS = tuple(PATCHES_TOLD)
"""Endings of weight patches (`AdapterState.extras`)."""
WITH_ALPHA = FILE_RULES[LOW_RANK].spellings[0][2]
"""The set of endings that comes with alphas, which Diffusers does not read."""
_LONGEST = 500
_FACTORS: dict[str, tuple[str, str, str]] = {
    ending: (kind, factor, spelling)
    for kind, rules in FILE_RULES.items()
    for ending, factor, spelling in rules.spellings
}
FACTOR_ENDINGS = tuple(_FACTORS)
"""How the key of a factor ends, in any spelling."""
MODULATION_ENDING = ".diff_m"
"""How lightx2v's files call the difference of a block's modulation, which ComfyUI does not read."""
_OTHERS: dict[str, str] = {
    ".alpha": ALPHA,
    ".dora_scale": DORA_SCALE,
    # PEFT's and Diffusers' three forms, and ai-toolkit's.
    ".lora_magnitude_vector": MAGNITUDE,
    ".lora_magnitude_vector.weight": MAGNITUDE,
    ".lora_magnitude_vector.default.weight": MAGNITUDE,
    ".magnitude": MAGNITUDE,
    **{f".{each}": each for each in PATCH_ENDINGS},
    MODULATION_ENDING: "diff",
}
_ENDINGS = "|".join(map(re.escape, (*_FACTORS, *_OTHERS)))
# The shortest name, so that the ending is the longest that fits.
_KEY = re.compile(f"(?P<name>.+?)(?P<ending>{_ENDINGS})", re.DOTALL)
_XLABS = re.compile(r"(?P<name>.+\.processor\.(?:qkv|proj)_lora[12]?)\.(?P<side>up|down)\.weight")
"""A key of x-flux, XLabs' trainer, whose layers have names of their own (`KeyMap.aliases`)."""
_OF_TOOLS = ("img_in.lora_A.weight", "single_blocks.0.norm.key_norm.scale")
"""Keys by which ComfyUI knows the spelling of Black Forest Labs' own LoRAs (Canny, Depth)."""
_OF_WAN_FUN = "lora_unet__blocks_0_cross_attn_k.lora_down.weight"
"""The key by which ComfyUI knows VideoX-Fun's spelling."""


@dataclass(frozen=True, slots=True)
class ParsedKey:
    """A key of an adapter file, taken apart.

    Attributes:
        name: The layer's name with its prefix.
        layout: What the prefix says: ``comfyui``, ``diffusers``, ``peft``, ``kohya``, ``lycoris``,
            ``onetrainer``, or ``bare`` without one; ``xlabs`` for XLabs' own names.
        role: A factor's name, ``alpha``, ``dora_scale``, ``lora_magnitude_vector``, or one of
            `PATCH_ENDINGS`.
        kind: The adapter's kind for a factor; else empty.
        spelling: Of which set of endings a factor's is; else empty.
    """

    name: str
    layout: str
    role: str
    kind: str = ""
    spelling: str = ""


def with_comfyui_spelling(keys: Iterable[str]) -> dict[str, str]:
    """A file's keys to ComfyUI's spelling of them, where it knows the file's by two of its keys.

    Source: ``convert_lora_bfl_control`` and ``convert_lora_wan_fun`` in ComfyUI's
    ``comfy/lora_convert.py``.
    """
    names = {key: key for key in keys}
    if _OF_WAN_FUN in names:
        return {key: re.sub("^lora_unet__", "lora_unet_", key) for key in names}
    if all(mark in names for mark in _OF_TOOLS):
        for key in names:
            name = key.replace(".lora_B.bias", ".diff_b").replace("_norm.scale", "_norm.set_weight")
            names[key] = f"{NATIVE_PREFIX}{name}"
    return names


def parse_key(path: Path, text: str) -> ParsedKey | str:
    """Take a key apart, or say what it is of where it lies beside the factors and is not read.

    Raises:
        AdapterFileError: When it is of no adapter that is read here; the message says what it is
            of, where that is known, and names the file, ``path``.
    """
    if len(text) > _LONGEST:
        raise _unknown(path, f"{text[:_LONGEST]}...")
    return other_part(text) or parse_ending(path, text)


def parse_ending(path: Path, text: str) -> ParsedKey | str:
    """As `parse_key`, whatever part of a pipeline the key begins with; errors as there."""
    found = _XLABS.fullmatch(text)
    if found is not None:
        return ParsedKey(
            found["name"], "xlabs", f"lora_{found['side']}", kind=LOW_RANK, spelling="xlabs"
        )
    found = _KEY.fullmatch(text)
    if found is None:
        beside = beside_factors(without_prefix(text))
        if beside is None:
            raise _unknown(path, text)
        return beside
    name, ending = found["name"], found["ending"]
    layout, rest = part_prefix(name)
    if not rest or rest.startswith((".", "_")):
        raise _unknown(path, text)
    if ending in _OTHERS:
        own = name + MODULATION if ending == MODULATION_ENDING else name
        return ParsedKey(own, layout, _OTHERS[ending])
    kind, role, spelling = _FACTORS[ending]
    return ParsedKey(name, layout, role, kind=kind, spelling=spelling)


def file_layout(path: Path, layouts: Mapping[str, str], *, plain: bool) -> str:
    """The one layout of a file, from each layout of its keys to the first such key.

    ComfyUI takes its own names mixed with Diffusers' and with paths without a prefix.

    Args:
        plain: Whether it has no alphas, which Diffusers does not read, and factors as PEFT spells
            them: then names of Diffusers alone are a file of Diffusers.

    Raises:
        AdapterFileError: When its keys are of several programs.
    """
    if len(layouts) == 1 and "diffusers" not in layouts:
        return next(iter(layouts))
    if layouts.keys() <= {"comfyui", "diffusers", "bare"}:
        return "diffusers" if layouts.keys() == {"diffusers"} and plain else "comfyui"
    first, second = list(layouts.values())[:2]
    raise AdapterFileError(
        f"{path} mixes layouts: {first!r} and {second!r}",
        "the names of one program",
        "Convert the parts on their own.",
    )


def is_text_key(text: str) -> bool:
    """Whether a key is of a layer of a text encoder that some families train."""
    found = _KEY.fullmatch(text)
    return found is not None and text_path(found["name"]) is not None


def parse_text_key(path: Path, text: str) -> ParsedKey | None:
    """Take a key of such a text encoder apart; None for every other key."""
    key = parse_ending(path, text) if is_text_key(text) else None
    return key if isinstance(key, ParsedKey) else None


def without_prefix(name: str) -> str:
    """A name without its prefix."""
    return part_prefix(name)[1]


def part_prefix(name: str) -> tuple[str, str]:
    """The layout that a name's prefix says, as `ParsedKey.layout`, and the name without it."""
    name = _WRAPPER.sub("", name)
    prefix = next((each for each in _PREFIXES if name.startswith(each)), "")
    return _PREFIXES.get(prefix, "bare"), name[len(prefix) :]


def _unknown(path: Path, key: str) -> AdapterFileError:
    reason = other_method(key)
    return AdapterFileError(
        f"{path}: unknown key {key!r}" + (f" ({reason})" if reason else ""),
        f"keys of a {KIND_TITLES}, such as {NATIVE_PREFIX}<layer>.lora_up.weight or "
        f"{DIFFUSERS_PREFIX}<layer>.lora_A.weight",
        "The file is of another method or for another part of the model; use it with the program "
        "that made it.",
    )


def other_part(key: str) -> str | None:
    """What a key is of that belongs to another part of a pipeline; None for the denoiser's."""
    return next((what for pattern, what in _PARTS.items() if re.match(pattern, key)), None)


def beside_factors(name: str) -> str | None:
    """What a key without its prefix is that fits no factor's ending, if factors mean the same.

    None where it may change what the factors mean, or is of another method.
    """
    if other_method(name) is not None:
        return None
    known = next((what for pattern, what in _BESIDE.items() if re.search(pattern, name)), None)
    if known is not None or _FACTOR_LIKE.search(name):
        return known
    return next(what for pattern, what in _WHOLE.items() if re.search(pattern, name))


def other_method(key: str) -> str | None:
    """The method that a key is of, where it is none of those that are read; None if unknown."""
    return next((what for pattern, what in _METHODS.items() if re.search(pattern, key)), None)


def count_kinds(unread: Mapping[str, str]) -> dict[str, tuple[int, str]]:
    """How many keys there are of each kind, and the first of them, from key to what it is."""
    found: dict[str, tuple[int, str]] = {}
    for key, what in unread.items():
        count, first = found.get(what, (0, key))
        found[what] = count + 1, first
    return found


def kinds_in_words(kinds: Mapping[str, tuple[int, str]]) -> str:
    """Kinds of keys in words, as `count_kinds` gives them."""
    return "; ".join(
        f"{first!r} ({what})" + (f" and {count - 1} more such keys" if count > 1 else "")
        for what, (count, first) in kinds.items()
    )


def patch_kinds(endings: Iterable[tuple[str, str]]) -> dict[str, tuple[int, str]]:
    """As `count_kinds`, of weight patches: a layer's name and the ending of each."""
    return count_kinds({f"{name}.{ending}": PATCHES_TOLD[ending] for name, ending in endings})
