"""Read adapter files of every layout that is written."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..adapters.convolution import CORES, as_matrices
from ..adapters.magnitude import DORA_SCALE
from ..errors import AdapterFileError
from ..types import AdapterState, LayerState
from .keys import (
    ALPHA_SUFFIX,
    DIFFUSERS_PREFIX,
    FACTOR_SUFFIXES,
    LENGTHS_SUFFIXES,
    NATIVE_PREFIX,
    KeyMap,
)
from .layouts import reader_rank, split_sizes
from .metadata import SETTINGS_KEY

_LOHA = {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"}
_WHOLE_SETS = {
    "lora": [{"lora_down", "lora_up"}, {"lora_down", "lora_mid", "lora_up"}],
    "loha": [_LOHA, _LOHA | {"hada_t1", "hada_t2"}],
    "lokr": [
        first | second
        for first in ({"lokr_w1"}, {"lokr_w1_a", "lokr_w1_b"})
        for second in (
            {"lokr_w2"},
            {"lokr_w2_a", "lokr_w2_b"},
            {"lokr_w2_a", "lokr_w2_b", "lokr_t2"},
        )
    ],
}
_PAIRS = (
    ("lora_up", "lora_down"),
    ("hada_w1_a", "hada_w1_b"),
    ("hada_w2_a", "hada_w2_b"),
    ("lokr_w1_a", "lokr_w1_b"),
    ("lokr_w2_a", "lokr_w2_b"),
)
_CORE_OF = {pair: core for core, pair in CORES.items()}
_LARGEST_RANK = 2**31


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A file's content before its names are mapped to a family's.

    Attributes:
        path: The file.
        kind: ``lora``, ``loha`` or ``lokr``.
        layout: ``comfyui`` or ``diffusers``.
        dtypes: The number formats of its tensors.
        layers: Name in the file, with its prefix, to the layer.
        metadata: The header's strings.
    """

    path: Path
    kind: str
    layout: str
    dtypes: tuple[str, ...]
    layers: Mapping[str, LayerState]
    metadata: Mapping[str, str]


def read_adapter(path: Path, key_map: KeyMap) -> AdapterState:
    """Read an adapter file of layout ``comfyui`` or ``diffusers``.

    Args:
        path: A safetensors file.
        key_map: The names of the family that the file is for.

    Returns:
        The adapter in the trainer's naming, in float32. An alpha that is absent or 0 means rank.

    Raises:
        AdapterFileError: When it is no adapter file, a key is unknown, or the layers are not the
            family's; the message names the key.
    """
    file = read_file(path)
    layers: dict[str, LayerState] = {}
    for name, layer in file.layers.items():
        module = module_name(name, key_map)
        if module is None:
            raise AdapterFileError(
                f"{path}: {name!r} is no layer of this family",
                "layers of the chosen family",
                "Check that the file is for this family.",
            )
        if module in layers:
            raise AdapterFileError(
                f"{path}: {name!r} and another key both mean the layer {module!r}",
                "one set of factors for each layer",
                "The file mixes two adapters; use the one that you want.",
            )
        layers[module] = layer
    return AdapterState(file.kind, layers, saved_settings(file.metadata))


def module_name(name: str, key_map: KeyMap) -> str | None:
    """Path of the module that a prefixed name of a file means; None when it is unknown."""
    if name.startswith(NATIVE_PREFIX):
        return key_map.to_module(name.removeprefix(NATIVE_PREFIX))
    module = name.removeprefix(DIFFUSERS_PREFIX)
    return module if key_map.to_native(module) is not None else None


def saved_settings(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """The adapter's settings as this trainer wrote them into a header; empty for other files."""
    try:
        settings = json.loads(metadata.get(SETTINGS_KEY, "{}"))["settings"]["adapter"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}


def read_file(path: Path) -> AdapterFile:
    """Read a file, check that its layers are whole, and find kind and layout.

    Raises:
        AdapterFileError: When it is no readable adapter file; the message names file and key.
    """
    tensors, metadata = _load(path)
    grouped: dict[str, dict[str, Tensor]] = {}
    alphas: dict[str, float] = {}
    spellings: dict[str, str] = {}
    for key, tensor in tensors.items():
        name, suffix = _parse(path, key)
        if suffix == ALPHA_SUFFIX:
            alphas[name] = _alpha(path, key, tensor)
            continue
        if suffix in LENGTHS_SUFFIXES:
            lengths = tensor.unsqueeze(1) if tensor.dim() == 1 else tensor
            grouped.setdefault(name, {})[DORA_SCALE] = _checked(path, key, lengths)
            continue
        kind, factor = FACTOR_SUFFIXES[suffix]
        spelling = "lora_A" if suffix.startswith((".lora_A", ".lora_B")) else kind
        spellings.setdefault(spelling, key)
        grouped.setdefault(name, {})[factor] = _checked(path, key, tensor)
    kind = _only_kind(path, spellings)
    orphan = next((name for name in alphas if name not in grouped), None)
    if orphan is not None:
        raise _broken(path, f"{orphan}{ALPHA_SUFFIX} has no factors beside it")
    layers = {
        name: _layer(path, name, kind, factors, alphas.get(name))
        for name, factors in grouped.items()
    }
    native = any(name.startswith(NATIVE_PREFIX) for name in layers)
    layout = "comfyui" if native or alphas or "lora" in spellings else "diffusers"
    dtypes = sorted({str(t.dtype).removeprefix("torch.") for t in tensors.values() if t.dim()})
    return AdapterFile(path, kind, layout, tuple(dtypes), layers, metadata)


def _load(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(9)
        if size == 0:
            raise _broken(path, "the file is empty")
        if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04") and start[8:9] != b"{":
            raise AdapterFileError(
                f"{path} is a pickle",
                "a safetensors file; a pickle could run code and is never opened",
                "Ask its author for a safetensors file.",
            )
        with safe_open(str(path), framework="pt") as file:
            # Copies: Windows neither replaces nor removes a file while a tensor points into it.
            tensors = {key: file.get_tensor(key).clone() for key in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, UnicodeDecodeError, MemoryError, RuntimeError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise _broken(path, f"it is no whole safetensors file ({reason})") from error
    except OSError as error:
        raise AdapterFileError(
            f"{path} cannot be read ({error.strerror or error})",
            "a readable adapter file",
            "Check the path and the file's permissions.",
        ) from error


def _parse(path: Path, key: str) -> tuple[str, str]:
    for suffix in (*FACTOR_SUFFIXES, *LENGTHS_SUFFIXES, ALPHA_SUFFIX):
        if not key.endswith(suffix):
            continue
        name = key[: -len(suffix)]
        for prefix in (NATIVE_PREFIX, DIFFUSERS_PREFIX):
            if name.startswith(prefix) and len(name) > len(prefix):
                return name, suffix
    raise AdapterFileError(
        f"{path}: unknown key {key!r}",
        f"keys such as {NATIVE_PREFIX}<layer>.lora_up.weight or "
        f"{DIFFUSERS_PREFIX}<layer>.lora_A.weight",
        "The file is of another layout or for another part of the model.",
    )


def _alpha(path: Path, key: str, tensor: Tensor) -> float:
    if tensor.numel() != 1:
        raise _broken(path, f"{key} has {tensor.numel()} values instead of one")
    return float(tensor.item())


def _checked(path: Path, key: str, tensor: Tensor) -> Tensor:
    if not 2 <= tensor.dim() <= 5 or 0 in tensor.shape or not tensor.is_floating_point():
        raise AdapterFileError(
            f"{path}: {key} is {tensor.dtype} of shape {tuple(tensor.shape)}",
            "a floating-point matrix, with up to three axes more for a convolution's window",
            "Only adapters of Linear layers and of convolutions can be read.",
        )
    if tensor.dtype != torch.float64:
        tensor = tensor.to(torch.float32)
    if not bool(torch.isfinite(tensor).all()):
        raise _broken(path, f"{key} holds a value that is not finite")
    return tensor


def _only_kind(path: Path, spellings: Mapping[str, str]) -> str:
    if len(spellings) > 1:
        first, second = list(spellings.values())[:2]
        raise AdapterFileError(
            f"{path} mixes spellings or kinds: {first!r} and {second!r}",
            "one kind of adapter in one layout",
            "Convert the parts on their own.",
        )
    if not spellings:
        raise _broken(path, "it holds no adapter")
    kind = next(iter(spellings))
    return "lora" if kind == "lora_A" else kind


def _layer(
    path: Path, name: str, kind: str, factors: dict[str, Tensor], alpha: float | None
) -> LayerState:
    if set(factors) - {DORA_SCALE} not in _WHOLE_SETS[kind]:
        raise _broken(path, f"{name} has only {', '.join(sorted(factors))}; a factor is missing")
    for pair in _PAIRS:
        _check_pair(path, name, pair, factors)
    if DORA_SCALE in factors and not _lengths_fit(factors[DORA_SCALE], _sizes(kind, factors)):
        found = tuple(factors[DORA_SCALE].shape)
        raise _broken(path, f"{name}: lengths (dora_scale) of shape {found} do not fit its factors")
    rank = reader_rank(factors)
    if rank is None:
        return _whole_layer(factors, alpha)
    if alpha is not None and not math.isfinite(alpha):
        raise _broken(path, f"{name}{ALPHA_SUFFIX} is {alpha}")
    return LayerState(factors, float(alpha or rank), rank)


def _check_pair(path: Path, name: str, pair: tuple[str, str], factors: dict[str, Tensor]) -> None:
    """See whether two factors, and the core between them, agree on the rank."""
    if pair[0] not in factors:
        return
    up, down = (tuple(factors[each].shape) for each in pair)
    core = factors.get(_CORE_OF.get(pair, ""))
    if core is None:
        fits = up[1] == down[0]
    else:
        # LoHa and LoKr keep the outputs' factor lying beside a core.
        fits = tuple(core.shape[:2]) == (up[1] if pair[0] == "lora_up" else up[0], down[0])
    if not fits:
        beside = "" if core is None else f" beside a core {tuple(core.shape)}"
        raise _broken(
            path, f"{name}: {pair[0]} and {pair[1]} of shapes {up} and {down}{beside} do not fit"
        )


def _sizes(kind: str, factors: dict[str, Tensor]) -> tuple[int, int]:
    """Rows and columns of the delta as a matrix."""
    matrices = as_matrices(factors)
    if kind == "lora":
        return matrices["lora_up"].shape[0], matrices["lora_down"].shape[1]
    if kind == "loha":
        return matrices["hada_w1_a"].shape[0], matrices["hada_w1_b"].shape[1]
    (out_first, out_second), (in_first, in_second) = split_sizes(matrices)
    return out_first * out_second, in_first * in_second


def _lengths_fit(lengths: Tensor, sizes: tuple[int, int]) -> bool:
    """Whether there is one length for each row, or for each column or window of columns."""
    rows, columns = sizes
    if math.prod(lengths.shape[2:]) != 1:
        return False
    given = tuple(lengths.shape[:2])
    if lengths.dim() == 2:
        return given in ((rows, 1), (1, columns))
    return given == (rows, 1) or (given[0] == 1 and columns % given[1] == 0)


def _whole_layer(factors: dict[str, Tensor], alpha: float | None) -> LayerState:
    """Both factors whole: the scale is 1, and alpha only remembers the rank (or is junk)."""
    if alpha is not None and 1.0 <= alpha < _LARGEST_RANK:
        rank = round(alpha)
    else:
        rank = math.ceil(max(factors["lokr_w2"].shape[:2]) / 2)
    return LayerState(factors, float(rank), rank)


def _broken(path: Path, reason: str) -> AdapterFileError:
    return AdapterFileError(
        f"{path}: {reason}",
        "a whole safetensors file with every factor of every layer",
        "Export or download it again.",
    )
