"""What an adapter file is, without loading a base model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..adapters import KINDS, layer_scale
from ..adapters.convolution import as_matrices
from ..adapters.magnitude import DORA_SCALE, axis_of
from ..types import LayerState
from .keys import KeyMap
from .metadata import SETTINGS_KEY
from .reading import module_name, read_file


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """The facts of an adapter file.

    Attributes:
        path: The file.
        size: Bytes on disk.
        kind: ``lora``, ``loha`` or ``lokr``.
        layout: ``comfyui`` or ``diffusers``.
        dtypes: Number formats of the factors.
        ranks: Rank to number of layers.
        scales: Scale to number of layers.
        parameters: Number of values in all factors.
        family: The architecture as the header says it; None when it does not.
        base: What the header tells of the base model (a hash, or a path at level ``full``).
        dora: The axis of DoRA's lengths, ``input`` or ``output``; None without DoRA.
        norms: Layer to the Frobenius norm of its delta at strength 1, before DoRA.
        unknown: Layers that the given key map does not know.
        metadata: The header's strings.
    """

    path: Path
    size: int
    kind: str
    layout: str
    dtypes: tuple[str, ...]
    ranks: Mapping[int, int]
    scales: Mapping[float, int]
    parameters: int
    family: str | None
    base: str | None
    dora: str | None
    norms: Mapping[str, float]
    unknown: tuple[str, ...]
    metadata: Mapping[str, str]


def inspect_adapter(path: Path, key_map: KeyMap | None = None) -> AdapterReport:
    """Report what an adapter file holds.

    Args:
        path: A safetensors file of any layout that can be read.
        key_map: The family's names; with it, layers are named as modules, and those that the
            family lacks are listed. Without it, layers keep the file's names.

    Raises:
        AdapterFileError: When it is no adapter file.
    """
    file = read_file(path)
    norms: dict[str, float] = {}
    unknown: list[str] = []
    for name, layer in file.layers.items():
        module = module_name(name, key_map) if key_map else name
        if module is None:
            unknown.append(name)
        norms[module or name] = delta_norm(file.kind, layer)
    scales = Counter(layer_scale(file.kind, layer) for layer in file.layers.values())
    own = _own_facts(file.metadata)
    return AdapterReport(
        path=path,
        size=path.stat().st_size,
        kind=file.kind,
        layout=file.layout,
        dtypes=file.dtypes,
        ranks=dict(sorted(Counter(layer.rank for layer in file.layers.values()).items())),
        scales=dict(sorted(scales.items())),
        parameters=sum(t.numel() for layer in file.layers.values() for t in layer.tensors.values()),
        family=_text(own.get("family")) or file.metadata.get("ss_base_model_version"),
        base=_base(own, file.metadata),
        dora=_dora_axis(file.layers),
        norms=dict(sorted(norms.items())),
        unknown=tuple(sorted(unknown)),
        metadata=file.metadata,
    )


def delta_norm(kind: str, layer: LayerState) -> float:
    """Frobenius norm of a layer's delta, in float64; only LoHa's delta is built for it."""
    factors = as_matrices({name: tensor.double() for name, tensor in layer.tensors.items()})
    scale = abs(layer_scale(kind, layer))
    if kind == "lora":
        # ||B A||^2 = <B^T B, A A^T>, which is rank x rank.
        up, down = factors["lora_up"], factors["lora_down"]
        return scale * float(((up.T @ up) * (down @ down.T)).sum().clamp(min=0.0).sqrt())
    if kind == "lokr":
        # The norm of a Kronecker product is the product of the norms.
        sizes = [_product_norm(factors, name) for name in ("lokr_w1", "lokr_w2")]
        return scale * sizes[0] * sizes[1]
    return float(torch.linalg.norm(KINDS[kind].delta(factors, scale)))


def _dora_axis(layers: Mapping[str, LayerState]) -> str | None:
    lengths = (layer.tensors.get(DORA_SCALE) for layer in layers.values())
    return next((axis_of(each) for each in lengths if each is not None), None)


def _product_norm(factors: Mapping[str, torch.Tensor], name: str) -> float:
    whole = factors.get(name)
    if whole is None:
        whole = factors[f"{name}_a"] @ factors[f"{name}_b"]
    return float(torch.linalg.norm(whole))


def _own_facts(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        facts = json.loads(metadata.get(SETTINGS_KEY, "{}"))
    except (ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _base(own: Mapping[str, Any], metadata: Mapping[str, str]) -> str | None:
    settings = own.get("settings")
    base = settings.get("base") if isinstance(settings, dict) else None
    path = base.get("path") if isinstance(base, dict) else None
    return _text(path) or metadata.get("ss_sd_model_hash")
