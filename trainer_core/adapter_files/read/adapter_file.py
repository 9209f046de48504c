"""What is in an adapter file: its keys sorted by layer, and layers that are read one at a time.

Whether the factors of a layer make a whole is seen from their shapes alone, before any is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE
from ...adapters.kinds.file_rules import FileRules
from ...adapters.kinds.registry import FILE_RULES, LOW_RANK
from ...errors import AdapterFileError
from ...tensors.rounding import all_finite
from ...tensors.safetensors_reader import TensorFile, broken
from ...tensors.safetensors_writer import TensorInfo
from ...types import LayerState
from ..factors.outlines import LazyMapping
from ..names.key_layouts import (
    ALPHA,
    KIND_TITLES,
    MAGNITUDE,
    PATCH_ENDINGS,
    PEFT_PREFIX,
    WITH_ALPHA,
    ParsedKey,
    count_kinds,
    file_layout,
    kinds_in_words,
    parse_key,
    parse_text_key,
    with_comfyui_spelling,
    without_prefix,
)
from ..names.text_encoder_names import text_encoder_of, text_path
from .expert_parts import refuse_experts
from .factor_outlines import outline_factor, outline_layer
from .peft_config import CONFIG_NAME, PeftConfig

_ROWS = re.compile(r"(?:.*\.)?blocks\.\d+\.attn\.qkv_proj\.[^.]+\.default\.weight")
"""DiffSynth-Studio's names of a layer of MiniMax-H3 that is queries, keys and values.

Source: DiffSynth-Studio, ``minimax_h3_dit.py``, whose rows lie head by head, and
``minimax_h3_dit_comfy.py``, which has them as ComfyUI does.
"""

_CONFIGURED = {"diffusers", "peft", "bare"}
"""Prefixes of files whose readers take the scale from PEFT's configuration."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A layer whose values have not been read.

    Attributes:
        keys: Factor to the key in the file.
        outline: The layer with tensors of the meta device, in the file's number format.
        scaled: The factor that is multiplied when it is read; empty for none.
        scale: What it is multiplied by.
        check: Says of the factors why they are not what readers make of the file; empty where they
            are.
    """

    keys: Mapping[str, str]
    outline: LayerState
    scaled: str = ""
    scale: float = 1.0
    check: Callable[[Mapping[str, Tensor]], str] = lambda tensors: ""


Patches = LazyMapping[Mapping[str, Tensor]]
"""Layers' weight patches by ending, read one at a time when they are asked for."""


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A file's content before its names are mapped to a family's.

    Attributes:
        path: The safetensors file; of a folder the one in it.
        kind: ``lora``, ``loha`` or ``lokr``.
        layout: How its names are spelt: ``comfyui`` (ComfyUI's, also mixed with Diffusers' for the
            parts of fused layers), ``diffusers``, ``peft``, ``kohya``, ``lycoris``, ``onetrainer``,
            ``xlabs``, or ``bare`` for paths without a prefix.
        dtypes: The number formats of its tensors, without alphas.
        layers: Name in the file, with its prefix, to the layer. `open_file` reads a layer at each
            look-up; `outline_of` gives it without its values.
        metadata: The header's strings.
        extras: Name in the file to ending to a weight patch (`AdapterState`).
        zero_alpha: Layers of alpha 0, by which ComfyUI multiplies; the trainer takes the rank.
        whole: Layers without a rank, because all of their factors are whole.
        unused_alpha: Those of them that have an alpha, to it; it has no effect.
        unread: Key that lies beside the factors and is not read, to what it is of.
        texts: Those of these keys that are of text encoders that some families read, to which.
        text_layers: Gives the layers of some of these keys, as ``layers``.
        rows: Reads rows of a factor as a matrix, as they are in the file, which may be not finite;
            by the layer's name, the factor, the first row and the one behind the last.
        assumed: Why the scale is not known, for which alpha / rank = 1 is taken; empty where it is.
    """

    path: Path
    kind: str
    layout: str
    dtypes: tuple[str, ...]
    layers: LazyMapping[LayerState]
    metadata: Mapping[str, str]
    extras: Mapping[str, LazyMapping[Tensor]]
    zero_alpha: tuple[str, ...]
    whole: Collection[str]
    unused_alpha: Mapping[str, float]
    unread: Mapping[str, str]
    rows: Callable[[str, str, int, int], Tensor]
    assumed: str
    texts: Mapping[str, str]
    text_layers: Callable[[Collection[str]], LazyMapping[LayerState]]

    def patches(self) -> Iterator[tuple[str, str]]:
        """The layer's name and the ending of each weight patch."""
        return ((name, ending) for name, endings in self.extras.items() for ending in endings)


@dataclass(slots=True)
class _Sorted:
    """A file's keys by layer."""

    factors: dict[str, dict[str, str]] = field(default_factory=dict)
    outlines: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    alphas: dict[str, float] = field(default_factory=dict)
    extras: dict[str, dict[str, str]] = field(default_factory=dict)
    spellings: dict[str, tuple[str, str]] = field(default_factory=dict)
    layouts: dict[str, str] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)


def read_content(
    file: TensorFile, find_config: Callable[[], PeftConfig | None], *, always: bool = False
) -> AdapterFile:
    """Sort a file's keys, and check all that names and shapes tell; only alphas are read.

    PEFT's configuration is looked for where the names are those of a program that reads it; with
    `always` whatever they are, as for PEFT's folder.

    Raises:
        AdapterFileError: When it is not an adapter, mixes several, or lacks something; the message
            names the key.
    """
    refuse_experts(file.path, file.tensors)
    _refuse_unknown_rows(file)
    found, texts = _Sorted(), {}
    spelt = with_comfyui_spelling(file.tensors).items()
    keys = _without_strangers({text: parse_key(file.path, name) for text, name in spelt})
    for text, key in keys.items():
        if not isinstance(key, str):
            _sort(file, found, text, key=key, info=file.tensors[text])
            continue
        found.unread[text] = key
        if (own := parse_text_key(file.path, text)) is not None:
            texts[text] = own
    kind = _only_kind(file.path, found)
    layout = file_layout(
        file.path, found.layouts, plain=not found.alphas and WITH_ALPHA not in found.spellings
    )
    orphan = next((name for name in found.alphas if name not in found.factors), None)
    if orphan is not None:
        raise broken(file.path, f"{orphan}.alpha has no factors beside it")
    checked = always or set(found.layouts) <= _CONFIGURED
    config = find_config() if checked else None
    if config is not None:
        bare = (name for name, each in found.factors.items() if DORA_SCALE not in each)
        config.check(kind, next(bare, None))
    drafts = {
        name: _draft(file.path, name, kind, found=found, config=config) for name in found.factors
    }
    rules = FILE_RULES[kind]
    ranked = {n for n, factors in found.outlines.items() if rules.alpha_rank(factors) is not None}
    whole = () if rules.unused_alpha is not None else found.outlines.keys() - ranked
    return AdapterFile(
        file.path,
        kind,
        layout,
        dtypes=_dtypes(file, found),
        layers=_lazy(file, kind, drafts),
        metadata=file.metadata,
        extras={name: _tensors(file, keys) for name, keys in found.extras.items()},
        zero_alpha=tuple(n for n, alpha in found.alphas.items() if n in ranked and alpha == 0.0),
        whole=whole,
        unused_alpha={name: alpha for name, alpha in found.alphas.items() if name in whole},
        unread=found.unread,
        rows=lambda name, factor, first, last: _rows(file, drafts[name].keys[factor], first, last),
        assumed=_assumed(file) if checked and config is None else "",
        texts={text: text_encoder_of(text_path(key.name) or "") for text, key in texts.items()},
        text_layers=lambda keys: _text_layers(file, kind, {text: texts[text] for text in keys}),
    )


def _without_strangers(keys: Mapping[str, ParsedKey | str]) -> Mapping[str, ParsedKey | str]:
    """Name the few keys without a prefix that begin like no layer of those with one."""
    layers = {text: key for text, key in keys.items() if not isinstance(key, str)}
    usual = {
        without_prefix(key.name) for key in layers.values() if key.layout not in ("bare", "xlabs")
    }
    heads = {re.split(r"[._]", name)[0] for name in usual}
    odd = [text for text in layers if layers[text].layout == "bare"]
    odd = [text for text in odd if re.split(r"[._]", text)[0] not in heads]
    if not 2 * len(odd) < len(layers):
        return keys
    what = "a name without the prefix of the others, and of no layer beside theirs"
    return {**keys, **dict.fromkeys(odd, what)}


def _text_layers(
    file: TensorFile, kind: str, texts: Mapping[str, ParsedKey]
) -> LazyMapping[LayerState]:
    """Layers of text encoders, which are checked only where a family reads them."""
    found = _Sorted()
    for text, key in texts.items():
        _sort(file, found, text, key=key, info=file.tensors[text])
    if texts and _only_kind(file.path, found) != kind:
        raise broken(file.path, f"its denoiser has a {kind}, and its text encoder has none")
    drafts = {
        name: _draft(file.path, name, kind, found=found, config=None) for name in found.factors
    }
    return _lazy(file, kind, drafts)


def _lazy(file: TensorFile, kind: str, drafts: Mapping[str, Draft]) -> LazyMapping[LayerState]:
    return LazyMapping(
        drafts,
        lambda name: _read_layer(file, name, FILE_RULES[kind], drafts[name]),
        lambda name: drafts[name].outline,
    )


def has_peft_names(file: TensorFile) -> bool:
    """Whether a file has names as PEFT writes them, without a scale of their own."""
    return any(key.startswith(PEFT_PREFIX) for key in file.tensors)


def _assumed(file: TensorFile) -> str:
    """Why the scale of a file without a configuration is not known; empty where it is."""
    if not has_peft_names(file) or any(key.endswith(".alpha") for key in file.tensors):
        return ""
    return f"its names are PEFT's, and the {CONFIG_NAME} that says its scale is not beside it"


def patches_of(layers: Mapping[str, LazyMapping[Tensor]]) -> Patches:
    """Give layers' weight patches as one mapping, which tells all of a layer's outlines at once."""

    def outline(name: str) -> Mapping[str, Tensor]:
        return {ending: layers[name].outline(ending) for ending in layers[name]}

    return LazyMapping(layers, layers.__getitem__, outline)


def _read_layer(file: TensorFile, name: str, rules: FileRules, draft: Draft) -> LayerState:
    tensors: dict[str, Tensor] = {}
    for factor, key in draft.keys.items():
        own = rules.own_form({factor: _finite(file, key)})[factor]
        like = draft.outline.tensors[factor]
        tensor = own.reshape(like.shape)
        if like.dtype == torch.float64:
            tensor = tensor.double()  # as another factor of the layer is
        tensors[factor] = tensor * draft.scale if factor == draft.scaled else tensor
    problem = draft.check(tensors)
    if problem:
        raise AdapterFileError(
            f"{file.path}: {name} has {problem}",
            "an alpha that every reader takes alike, such as 0, which limits nothing",
            "Use the file with the program that made it.",
        )
    return replace(draft.outline, tensors=tensors)


def _rows(file: TensorFile, key: str, first: int, last: int) -> Tensor:
    rows = file.read_rows(key, first, last).flatten(1)
    return rows if rows.dtype.itemsize > 1 else rows.float()


def _refuse_unknown_rows(file: TensorFile) -> None:
    """`AdapterFileError` for names that do not say which row of a layer is which."""
    for key in filter(_ROWS.fullmatch, file.tensors):
        raise AdapterFileError(
            f"{file.path}: {key}, of MiniMax-H3 by DiffSynth-Studio, whose rows lie head by head, "
            "or as ComfyUI has them, by the base that it was trained on",
            "names that say how the rows lie, such as those of ComfyUI",
            "Use it with DiffSynth-Studio, or ask for a file that ComfyUI loads.",
        )


def _tensors(file: TensorFile, keys: Mapping[str, str]) -> LazyMapping[Tensor]:
    """Tensors of a file by ending."""

    def outline(ending: str) -> Tensor:
        info = file.tensors[keys[ending]]
        return torch.empty(info.shape, dtype=info.dtype, device="meta")

    return LazyMapping(keys, lambda ending: _finite(file, keys[ending]), outline)


def _finite(file: TensorFile, key: str) -> Tensor:
    """Read a tensor in float32, or in float64 where the file has it.

    Raises:
        AdapterFileError: When it cannot be read, or holds a value that is not finite.
    """
    tensor = file.read(key)
    if not all_finite(tensor):
        raise AdapterFileError(
            f"{file.path}: {key} holds a value that is not finite",
            "numbers, and neither infinity nor NaN",
            "The training that made it went wrong, or it was stored in a number format that is "
            "too small: use an earlier checkpoint, or make it again with another dtype.",
        )
    return tensor if tensor.dtype == torch.float64 else tensor.to(torch.float32)


def _sort(file: TensorFile, found: _Sorted, text: str, key: ParsedKey, info: TensorInfo) -> None:
    found.layouts.setdefault(key.layout, text)
    if key.role == ALPHA:
        if key.name in found.alphas:
            raise _twice(file.path, text, key.role)
        found.alphas[key.name] = _alpha(file, text)
        return
    if key.role in PATCH_ENDINGS:
        if not info.shape or 0 in info.shape or not info.dtype.is_floating_point:
            raise broken(file.path, f"{text} is {info.dtype} of shape {info.shape}")
        found.extras.setdefault(key.name, {})[key.role] = text
        return
    role = DORA_SCALE if key.role == MAGNITUDE else key.role
    factors = found.factors.setdefault(key.name, {})
    if role in factors:
        raise _twice(file.path, text, role, factors[role])
    factors[role] = text
    outlines = found.outlines.setdefault(key.name, {})
    outlines[role] = outline_factor(file.path, text, key.role, info)
    if key.kind:
        found.spellings.setdefault(key.spelling, (key.kind, text))


def _alpha(file: TensorFile, key: str) -> float:
    info = file.tensors[key]
    if info.size != info.dtype.itemsize:
        count = info.size // info.dtype.itemsize
        raise broken(file.path, f"{key} has {count} values instead of one")
    return float(file.read(key).reshape(()).item())


def _only_kind(path: Path, found: _Sorted) -> str:
    if len(found.spellings) > 1:
        (_, first), (_, second) = list(found.spellings.values())[:2]
        raise AdapterFileError(
            f"{path} mixes spellings or kinds: {first!r} and {second!r}",
            "one kind of adapter in one layout",
            "Convert the parts on their own.",
        )
    if found.spellings:
        return next(iter(found.spellings.values()))[0]
    if found.extras and not found.factors:
        return LOW_RANK  # of no layers
    if found.unread:
        raise AdapterFileError(
            f"{path} holds no adapter of a denoiser, but "
            f"{kinds_in_words(count_kinds(found.unread))}",
            f"factors of a {KIND_TITLES} of a denoiser",
            "Choose the file of the denoiser's adapter; a base model is none.",
        )
    raise broken(path, "it holds no adapter")


def _draft(path: Path, name: str, kind: str, found: _Sorted, config: PeftConfig | None) -> Draft:
    alpha = found.alphas.get(name)
    outline = outline_layer(path, name, kind, factors=found.outlines[name], alpha=alpha)
    rules = FILE_RULES[kind]
    check = partial(rules.check_alpha, alpha=alpha or 0.0)
    if config is None or rules.multiplies:
        return Draft(found.factors[name], outline, check=check)
    outline, scale = config.scaled(without_prefix(name), kind, outline, own=alpha is not None)
    scaled = "" if scale is None else rules.row_factors(outline.tensors)[0][0]
    return Draft(found.factors[name], outline, scaled, scale=scale or 1.0, check=check)


def _dtypes(file: TensorFile, found: _Sorted) -> tuple[str, ...]:
    keys = [
        key
        for each in (found.factors, found.extras)
        for roles in each.values()
        for role, key in roles.items()
        if role not in (DORA_SCALE, MAGNITUDE)
    ]
    return tuple(sorted({str(file.tensors[key].dtype).removeprefix("torch.") for key in keys}))


def _twice(path: Path, key: str, role: str, other: str | None = None) -> AdapterFileError:
    beside = f" and {other!r}" if other else ""
    return AdapterFileError(
        f"{path}: {key!r}{beside} give the same layer's {role} twice",
        "one tensor for each factor",
        "The file mixes two adapters; use the one that you want.",
    )
