"""What an adapter file is, without loading a base model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...adapters.dora_magnitude import DORA_SCALE, axis_of
from ...adapters.kinds.registry import layer_scale
from ..factors.effective_delta import delta_norm
from ..metadata import own_facts
from ..names.key_layouts import DROP, count_kinds, kinds_in_words, patch_kinds
from ..names.key_map import KeyMap
from ..names.layer_match import match_layer
from ..read.adapter_file import AdapterFile
from ..read.read_adapter import open_file, with_text_layers

_DIGITS = 9  # of a header's rank
_ODD_SCALE = 1000.0
_ODD_SPREAD = 8.0
"""Scales that are as large, and differ as much, are hardly those that layers were trained with."""


@dataclass(frozen=True, slots=True)
class AdapterReport:
    """The facts of an adapter file.

    Attributes:
        path: The file.
        size: Bytes on disk.
        kind: the kind's name.
        layout: As `adapter_file.AdapterFile.layout`.
        dtypes: Number formats of the factors.
        ranks: Rank to number of layers that have one.
        whole: How many layers have whole factors, and so no rank.
        scales: Scale to number of layers.
        parameters: Number of values in all factors.
        family: The architecture as the header says it; None when it does not.
        base: What the header tells of the base model (a hash, or a path at level ``full``).
        dora: The axis of DoRA's magnitude, ``input`` or ``output``; None without DoRA.
        norms: Layer to the Frobenius norm of its delta at strength 1, before DoRA.
        unknown: Layers that the given key map does not know.
        metadata: The header's strings.
        extras: Weight patches, by the file's names.
        notes: What ComfyUI makes of the file and one would not expect.
        unread: What lies beside the factors and is not read: what it is of, to the number of such
            keys and the first of them.
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
    whole: int = 0
    extras: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unread: Mapping[str, tuple[int, str]] = field(default_factory=dict)


def inspect_adapter(
    path: Path, key_map: KeyMap | None = None, *, texts: KeyMap | None = None
) -> AdapterReport:
    """Report what an adapter file holds; one layer at a time is in memory.

    Args:
        path: A safetensors file of any layout that can be read, or PEFT's or Diffusers' folder.
        key_map: The family's names; with it, layers are named as modules, and those that the
            family lacks are listed. Without it, and where a layer is several modules, layers keep
            the file's names.
        texts: Names whose text encoders' layers are read too, by the file's names.

    Raises:
        AdapterFileError: When it is not an adapter file, or a value in it is not finite; the
            message names the key.
    """
    with open_file(path) as file:
        read = key_map or texts
        return _report(with_text_layers(file, read) if read else file, key_map)


def _report(file: AdapterFile, key_map: KeyMap | None) -> AdapterReport:
    norms: dict[str, float] = {}
    unknown: list[str] = []
    ranks: Counter[int] = Counter()
    scales: Counter[float] = Counter()
    parameters, dora = 0, None
    for name, layer in file.layers.items():
        place = match_layer(name, key_map) if key_map else None
        if key_map and place is None:
            unknown.append(name)
        modules = [module for module, _ in place.modules] if place else []
        norms[modules[0] if len(modules) == 1 else name] = delta_norm(file.kind, layer)
        ranks[layer.rank if name not in file.whole else 0] += 1
        scales[layer_scale(file.kind, layer)] += 1
        parameters += sum(tensor.numel() for tensor in layer.tensors.values())
        magnitude = layer.tensors.get(DORA_SCALE)
        dora = dora or (None if magnitude is None else axis_of(magnitude))
    own, whole = own_facts(file.metadata), ranks.pop(0, 0)
    return AdapterReport(
        path=file.path,
        size=file.path.stat().st_size,
        kind=file.kind,
        layout=file.layout,
        dtypes=file.dtypes,
        ranks=dict(sorted(ranks.items())),
        scales=dict(sorted(scales.items())),
        parameters=parameters,
        family=_text(own.get("family")),
        base=_base(own, file.metadata),
        dora=dora,
        whole=whole,
        norms=dict(sorted(norms.items())),
        unknown=tuple(sorted(unknown)),
        metadata=file.metadata,
        extras=tuple(sorted(_extras(file))),
        notes=tuple(_notes(file, norms, scales)),
        unread=count_kinds(file.unread),
    )


def _extras(file: AdapterFile) -> Iterator[str]:
    for name, ending in file.patches():
        file.extras[name][ending]  # read, because that refuses a value that is not finite
        yield f"{name}.{ending}"


def _average_note(average: object) -> str | None:
    """What the header, which may come from anybody, says of an average; None without one."""
    if not isinstance(average, dict):
        return None
    updates = average.get("updates")
    for name in ("decay", "length"):
        value = average.get(name)
        if isinstance(value, float) and isinstance(updates, int):
            return f"it is an average of the weights of {updates} steps, {name} {value:g}"
    return None


def _notes(
    file: AdapterFile, norms: Mapping[str, float], scales: Mapping[float, int]
) -> Iterator[str]:
    average = _average_note(own_facts(file.metadata).get("average"))
    if average is not None:
        yield average
    if file.zero_alpha:
        yield (
            f"alpha is 0 in {len(file.zero_alpha)} of {len(norms)} layers, {file.zero_alpha[0]} "
            "first: ComfyUI computes nothing with them, and the trainer takes their rank for it"
        )
    yield from _alpha_notes(file)
    odd = [scale for scale in scales if not 0.0 < scale < _ODD_SCALE]
    if odd:
        count = sum(scales[scale] for scale in odd)
        yield (
            f"the scale is {odd[0]:g} in {count} layer(s), by an alpha that is hardly meant: "
            "ComfyUI multiplies the change by it, and so does the trainer"
        )
    least, most = min(scales, default=1.0), max(scales, default=1.0)
    if not odd and min(most, most / least) >= _ODD_SPREAD:
        yield (
            f"the scale is {least:.3g} to {most:.3g}, and {most:.3g} in {scales[most]} layer(s): "
            "where all layers were trained with one scale, the file has one alpha for every rank, "
            f"and these are up to {most / least:.3g} times too strong"
        )
    if file.assumed:
        yield f"the scale is a guess (alpha = rank): {file.assumed}"
    if file.unread:
        yield f"not read: {kinds_in_words(count_kinds(file.unread))}. To leave it out: {DROP}"
    for what, (count, first) in patch_kinds(file.patches()).items():
        yield (
            f"{count} tensor(s) beside the factors, {first} first: {what}; layouts comfyui and "
            "kohya hold them"
        )
    still = [name for name, norm in norms.items() if norm == 0.0]
    if still:
        yield f"{len(still)} of {len(norms)} layers change nothing, {still[0]} first"


def _alpha_notes(file: AdapterFile) -> Iterator[str]:
    """What is to be known of alphas that have no effect, whatever number they are."""
    text = file.metadata.get("ss_network_dim", "")[:_DIGITS]
    dim = int(text) if text.isdecimal() else 0
    odd = {n: a for n, a in file.unused_alpha.items() if a not in (0, dim)}
    if not odd:
        return
    name, alpha = next(iter(odd.items()))
    note = (
        f"alpha {alpha:g} of {len(odd)} layers is not used, {name} first: their factors are whole, "
        "so that the scale is 1 in LyCORIS, in ComfyUI and here"
    )
    if dim and 0 < alpha < dim:
        note += (
            f". If the program that made it multiplied by alpha / dim, {alpha:g} / {dim}, the "
            f"change is {dim / alpha:g} times too strong"
        )
    yield note


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _base(own: Mapping[str, Any], metadata: Mapping[str, str]) -> str | None:
    settings = own.get("settings")
    base = settings.get("base") if isinstance(settings, dict) else None
    path = base.get("path") if isinstance(base, dict) else None
    return _text(path) or metadata.get("ss_sd_model_hash")
