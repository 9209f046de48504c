"""What is in an adapter file: its keys sorted by layer, and layers that are read one at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kinds.registry import FILE_RULES, LOW_RANK, layer_scale
from ...errors import AdapterFileError
from ...tensors.finiteness import all_finite
from ...tensors.safetensors_reader import TensorFile, broken
from ...tensors.safetensors_writer import TensorInfo
from ...types import LayerState
from ..factors.outlines import LazyMapping
from ..names.key_parsing import (
    ALPHA,
    MAGNITUDE,
    PATCH_ENDINGS,
    WITH_ALPHA,
    ParsedKey,
    parse_key,
    unprefixed,
)
from ..names.unread_keys import KIND_TITLES, count_kinds, told
from .factor_shapes import outline_factor, outline_layer
from .peft_config import PeftConfig

_CONFIGURED = {"diffusers", "peft", "bare"}
"""Prefixes of files whose readers take the scale from PEFT's configuration."""

_SAME = 1e-4
"""How far an alpha in 16 bits may be from the configuration's scale, relatively."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A layer whose values have not been read.

    Attributes:
        keys: Factor to the key in the file.
        outline: The layer with tensors of the meta device, in the file's number format.
        scaled: The factor that is multiplied when it is read; empty for none.
        scale: What the layer is multiplied by when it is read.
        check: Says of the factors why they are not what readers make of the file; empty where they
            are.
    """

    keys: Mapping[str, str]
    outline: LayerState
    scaled: str = ""
    scale: float = 1.0
    check: Callable[[Mapping[str, Tensor]], str] = lambda tensors: ""


class LazyLayers(LazyMapping[LayerState]):
    """Layers of an open file; each look-up reads one, in float32."""

    def __init__(self, file: TensorFile, kind: str, drafts: Mapping[str, Draft]) -> None:
        super().__init__(drafts)
        self._file = file
        self._rules = FILE_RULES[kind]
        self._drafts = drafts

    def __getitem__(self, name: str) -> LayerState:
        draft = self._drafts[name]
        tensors = {factor: self.factor(name, factor) for factor in draft.keys}
        problem = draft.check(tensors)
        if problem:
            raise AdapterFileError(
                f"{self._file.path}: {name} has {problem}",
                "an alpha that every reader takes alike, such as 0, which limits nothing",
                "Use the file with the program that made it.",
            )
        return replace(draft.outline, tensors=tensors)

    def outline(self, name: str) -> LayerState:
        """A layer on the meta device, in the number format of the file; nothing is read."""
        return self._drafts[name].outline

    def rows(self, name: str, factor: str, first: int, last: int) -> Tensor:
        """Read rows of one factor as a matrix, as they are in the file; they may be not finite."""
        rows = self._file.read_rows(self._drafts[name].keys[factor], first, last).flatten(1)
        return rows if rows.dtype.itemsize > 1 else rows.float()

    def factor(self, name: str, factor: str) -> Tensor:
        """Read one factor of a layer.

        Raises:
            AdapterFileError: When it cannot be read, or holds a value that is not finite.
        """
        draft = self._drafts[name]
        shape = draft.outline.tensors[factor].shape
        given = finite(self._file, draft.keys[factor])
        tensor = self._rules.own_form({factor: given})[factor].reshape(shape)
        return tensor * draft.scale if factor == draft.scaled else tensor


class OutlinedTensors(LazyMapping[Tensor]):
    """Tensors by ending that tell their outlines before they are read."""

    @abstractmethod
    def outline(self) -> dict[str, Tensor]:
        """All of them on the meta device, in the number format of the file."""


class LazyTensors(OutlinedTensors):
    """Tensors of an open file by ending; each look-up reads one, in float32."""

    def __init__(self, file: TensorFile, keys: Mapping[str, str]) -> None:
        super().__init__(keys)
        self._file = file
        self._keys = keys

    def __getitem__(self, ending: str) -> Tensor:
        return finite(self._file, self._keys[ending])

    def outline(self) -> dict[str, Tensor]:
        """All of them on the meta device, in the number format of the file."""
        infos = {ending: self._file.tensors[key] for ending, key in self._keys.items()}
        return {
            ending: torch.empty(info.shape, dtype=info.dtype, device="meta")
            for ending, info in infos.items()
        }


class LazyPatches(LazyMapping[OutlinedTensors]):
    """Layers' weight patches, read when they are asked for."""

    def __init__(self, layers: Mapping[str, OutlinedTensors]) -> None:
        super().__init__(layers)
        self._layers = layers

    def __getitem__(self, name: str) -> OutlinedTensors:
        return self._layers[name]

    def outline(self, name: str) -> dict[str, Tensor]:
        """A layer's differences by ending, on the meta device."""
        return self._layers[name].outline()


@dataclass(frozen=True, slots=True)
class FileContent:
    """What is in an open adapter file.

    Attributes:
        file: The file.
        kind: Name of its kind.
        layout: As `adapter_file.AdapterFile.layout`.
        dtypes: Names of its number formats, without those of alphas.
        layers: Name in the file to the layer.
        extras: Name in the file to weight patches.
        zero_alpha: Names of layers whose alpha is 0 and counts: ComfyUI multiplies them by it.
        unread: ParsedKey that lies beside the factors and is not read, to what it is of.
    """

    file: TensorFile
    kind: str
    layout: str
    dtypes: tuple[str, ...]
    layers: LazyLayers
    extras: LazyPatches
    zero_alpha: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)


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
) -> FileContent:
    """Sort a file's keys, and check all that names and shapes tell.

    Args:
        file: The open file; only alphas are read.
        find_config: Gives PEFT's configuration, where there is one; asked where the names are
            those of a program that reads it.
        always: Whether it is asked whatever the names are, as for PEFT's folder.

    Raises:
        AdapterFileError: When it is no adapter, mixes several, or lacks something; the message
            names the key.
    """
    found = _Sorted()
    for text, info in file.tensors.items():
        key = parse_key(file.path, text)
        if isinstance(key, str):
            found.unread[text] = key
        else:
            _sort(file, found, text, key, info)
    kind = _only_kind(file.path, found)
    layout = _only_layout(file.path, found)
    orphan = next((name for name in found.alphas if name not in found.factors), None)
    if orphan is not None:
        raise broken(file.path, f"{orphan}.alpha has no factors beside it")
    config = find_config() if always or set(found.layouts) <= _CONFIGURED else None
    if config is not None:
        _check_config(config, kind, found)
    drafts = {name: _draft(file.path, name, kind, found, config) for name in found.factors}
    extras = {name: LazyTensors(file, keys) for name, keys in found.extras.items()}
    rules = FILE_RULES[kind]
    zero_alpha = (name for name, alpha in found.alphas.items() if alpha == 0.0)
    return FileContent(
        file,
        kind,
        layout,
        _dtypes(file, found),
        LazyLayers(file, kind, drafts),
        LazyPatches(extras),
        tuple(name for name in zero_alpha if rules.alpha_rank(found.outlines[name]) is not None),
        found.unread,
    )


def finite(file: TensorFile, key: str) -> Tensor:
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
            f"{path} holds no adapter of a denoiser, but {told(count_kinds(found.unread))}",
            f"factors of a {KIND_TITLES} of a denoiser",
            "Choose the file of the denoiser's adapter; a base model is none.",
        )
    raise broken(path, "it holds no adapter")


def _only_layout(path: Path, found: _Sorted) -> str:
    layouts = set(found.layouts)
    if layouts <= {"comfyui", "diffusers"}:
        # ComfyUI takes both prefixes. Diffusers reads no alphas and has one spelling for LoRA.
        diffusers = (
            "comfyui" not in layouts and not found.alphas and WITH_ALPHA not in found.spellings
        )
        return "diffusers" if diffusers and layouts else "comfyui"
    if len(layouts) == 1:
        return layouts.pop()
    first, second = list(found.layouts.values())[:2]
    raise AdapterFileError(
        f"{path} mixes layouts: {first!r} and {second!r}",
        "the names of one program",
        "Convert the parts on their own.",
    )


def _check_config(config: PeftConfig, kind: str, found: _Sorted) -> None:
    if config.kind not in (None, kind):
        raise AdapterFileError(
            f"{config.source}: it is of a {config.kind}, and the factors are of a {kind}",
            "the configuration that was saved with the factors",
            "Restore the file that was saved with the adapter.",
        )
    bare = next((n for n, each in found.factors.items() if DORA_SCALE not in each), None)
    if config.dora and bare is not None:
        raise AdapterFileError(
            f"{config.source}: use_dora is set, and {bare} has no magnitude",
            "a lora_magnitude_vector for every layer",
            "Export the adapter again.",
        )


def _draft(path: Path, name: str, kind: str, found: _Sorted, config: PeftConfig | None) -> Draft:
    alpha = found.alphas.get(name)
    outline = outline_layer(path, name, kind, found.outlines[name], alpha)
    check = partial(FILE_RULES[kind].check_alpha, alpha=alpha or 0.0)
    draft = Draft(found.factors[name], outline, check=check)
    return draft if config is None else _configured(draft, name, kind, alpha, config)


def _configured(
    draft: Draft, name: str, kind: str, alpha: float | None, config: PeftConfig
) -> Draft:
    """Give a layer the scale that a configuration says."""
    module, outline = unprefixed(name), draft.outline
    scale, rank = config.scale(module), config.rank_of(module)
    rules = FILE_RULES[kind]
    if rules.multiplies:
        return draft
    whole = rules.is_whole(draft.keys)
    if not whole and rank != outline.rank:
        raise AdapterFileError(
            f"{config.source}: it gives {module} the rank {rank}, and its factors have "
            f"{outline.rank}",
            "the configuration that was saved with the factors",
            "Restore the file that was saved with the adapter.",
        )
    if alpha is not None:
        own = layer_scale(kind, outline)
        if abs(own - scale) > _SAME * abs(own):
            raise AdapterFileError(
                f"{config.source}: it gives {module} the scale {scale:g}, and the alpha in the "
                f"file {own:g}",
                "one scale for each layer",
                "Take out what is wrong: the alphas, or the configuration.",
            )
        return draft
    if whole:
        # PEFT multiplies whole factors too, for which alpha says nothing elsewhere.
        scaled = rules.row_factors(outline.tensors)[0][0]
        outline = replace(outline, alpha=float(rank), rank=rank)
        return replace(draft, outline=outline, scaled=scaled, scale=scale)
    return replace(draft, outline=replace(outline, alpha=scale * outline.rank))


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
