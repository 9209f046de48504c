"""Merge adapters into a base: the same files with other values for the layers that change.

A single file becomes a single file and a Diffusers folder a folder. Weights are read, changed and
written one after another, so that the largest of them decides how much memory is needed and not
the base.

Differences that are not factors, such as ``diff`` and ``diff_b``, are named as ComfyUI names its
layers; a Diffusers folder may hold such a layer in parts, or with its halves in the opposite order.
Of several for one tensor ComfyUI takes one, and a strength does not weaken ``set_weight``
(``comfy/lora.py``, `load_lora` and `calculate_weight`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from ..adapter_files.factors.effective_delta import check_size, effective_delta
from ..adapter_files.factors.fuse_layers import undivided_delta, undivided_parts
from ..adapter_files.factors.outlines import outline_of, patch_outline
from ..adapter_files.factors.split_fused import take_rows
from ..adapter_files.names.key_layouts import DROP
from ..adapter_files.names.layer_match import RowSlice
from ..adapter_files.names.text_encoder_names import text_layers
from ..counters import counter_seed
from ..errors import AdapterError, NonFiniteError
from ..tensors.rounding import (
    EIGHT_BIT,
    Loss,
    all_finite,
    fitting_scale,
    rounded,
    rounding_loss,
    slices_of_rows,
)
from ..tensors.widening import widened
from ..types import AdapterState
from ..weights.tensor_reader import TensorReader
from .base_weights import BaseFile, BaseWeights, Place

Rounding = Literal["nearest", "stochastic"]
Progress = Callable[[int, int, str], None]
"""Called with the layers that are done, all of them, and the name of the last."""

Change = Callable[[Tensor], Tensor]
"""From a weight in Diffusers' order of rows to what is added to it."""


@dataclass(frozen=True, slots=True)
class Job:
    """One layer's part in the new value of a tensor.

    Attributes:
        title: The layer, for the report.
        place: Where its weight lies.
        changes: What is added, one for each adapter; each is computed from the base's own weight.
    """

    title: str
    place: Place
    changes: list[Change] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What merging did.

    Attributes:
        path: The new file or folder.
        family: The base's family.
        losses: Layer to what rounding to the file's number format did to its change.
        rescaled: Layers with 8-bit weights that did not fit under their scale any more.
        stored: Number formats of the weights that changed.
    """

    path: Path
    family: str
    losses: Mapping[str, Loss]
    rescaled: tuple[str, ...]
    stored: tuple[str, ...]


def plan_jobs(
    base: BaseWeights, adapters: Sequence[tuple[AdapterState, float]]
) -> dict[tuple[Path, str], list[Job]]:
    """Find the tensor of every adapted layer, and refuse what does not fit before any work.

    File and name of a tensor there, to the layers in its rows.

    Raises:
        AdapterError: When a layer is not in the base, has another size, or is changed twice by
            one adapter.
    """
    jobs: dict[str, Job] = {}
    for state, strength in adapters:
        _refuse_texts(state)
        own: list[tuple[str, Place]] = []
        for name in state.layers:
            for module, place, change in _layer_changes(base, state, name, strength):
                own.append((module, place))
                jobs.setdefault(module, Job(module, place)).changes.append(change)
        for title, place, change in _extra_changes(base, state, strength):
            _refuse_both(title, place, own)
            jobs.setdefault(title, Job(title, place)).changes.append(change)
    planned: dict[tuple[Path, str], list[Job]] = {}
    for job in jobs.values():
        planned.setdefault((job.place.file.path, job.place.name), []).append(job)
    return planned


def _refuse_texts(state: AdapterState) -> None:
    for name in text_layers(state.layers):
        raise AdapterError(
            f"the adapter changes {name}, a layer of a text encoder",
            "layers of the denoiser alone, which is what a base holds here",
            f"Leave these layers out: {DROP}.",
        )


def _layer_changes(
    base: BaseWeights, state: AdapterState, name: str, strength: float
) -> Iterator[tuple[str, Place, Change]]:
    """The modules that a layer changes, one but for an undivided one: path, place and change."""
    parts = undivided_parts(name, base.family.layers.key_map)
    if not parts:
        place = _place(base, name)
        _check_size(state, name, place.shape)
        yield name, place, partial(_factor_change, state, name, strength)
        return
    places = {module: _place(base, module) for module, _ in parts}
    rows = sum(place.shape[0] for place in places.values())
    columns = next(iter(places.values())).shape[1:]
    _check_size(state, name, (rows, *columns))
    for module, cut in parts:
        if take_rows(torch.empty(rows, 0), cut).shape[0] != places[module].shape[0]:
            raise AdapterError(
                f"{module} of {base.path} has {places[module].shape[0]} of the {rows} rows of "
                f"{name}",
                "parts that share the rows of the fused layer as in the family's other bases",
                "Choose the base that the adapter was trained on.",
            )
        yield module, places[module], partial(_part_change, base, state, name, cut, strength)


def _place(base: BaseWeights, name: str) -> Place:
    place = base.place(f"{name}.weight")
    if place is None:
        raise AdapterError(
            f"the adapter's layer {name!r} is not in {base.path}",
            f"a {base.family.title} base with every adapted layer",
            "Choose the base that the adapter was trained on.",
        )
    return place


def _check_size(state: AdapterState, name: str, shape: tuple[int, ...]) -> None:
    try:
        check_size(state.kind, outline_of(state.layers, name), shape)
    except AdapterError as error:
        raise AdapterError(f"{name}: {error.found}", error.expected, error.remedy) from error


def _refuse_both(title: str, place: Place, layers: Sequence[tuple[str, Place]]) -> None:
    for name, other in layers:
        if (other.file.path, other.name) != (place.file.path, place.name):
            continue
        if other.rows[0] < place.rows[1] and place.rows[0] < other.rows[1]:
            raise AdapterError(
                f"the adapter has factors for {name} and the difference {title} besides",
                "one of them: ComfyUI loads only the difference",
                "Take out of the file what is not meant.",
            )


def _factor_change(state: AdapterState, name: str, strength: float, weight: Tensor) -> Tensor:
    return effective_delta(state.kind, state.layers[name], weight).mul_(strength)


def _part_change(
    base: BaseWeights,
    state: AdapterState,
    name: str,
    cut: RowSlice,
    strength: float,
    weight: Tensor,
) -> Tensor:
    """Rows of what an undivided layer changes."""
    whole = undivided_delta(state, name, base.weight, base.family.layers.key_map)
    return take_rows(whole, cut).to(weight.dtype).mul_(strength)


@dataclass(frozen=True, slots=True)
class Merged:
    """The new value of one tensor.

    Attributes:
        values: As they are stored.
        scale: The scale beside them, as it is stored; None where there is none.
        rescaled: Whether that scale is not the given one.
        losses: Layer to what rounding did to its change.
    """

    values: Tensor
    scale: Tensor | None
    rescaled: bool
    losses: Mapping[str, Loss]


def made_tensors(
    jobs: Mapping[tuple[Path, str], Sequence[Job]],
    file: BaseFile,
    dtype: torch.dtype | None,
    rounding: Rounding,
) -> Iterator[tuple[str, Merged]]:
    """Make the new values of a file's tensors one after another, by name, of `plan_jobs`.

    Rows that nothing changes are the given ones bit by bit, unless the format or the scale is
    another. A dtype of None keeps the given number format, with its scale; an 8-bit result is
    rounded as `rounding` says.

    Raises:
        NonFiniteError: When a value is not finite, in itself or in the format.
    """
    for (path, name), own in jobs.items():
        if path == file.path:
            yield name, _merge_tensor(file, name, own, dtype=dtype, rounding=rounding)


def _merge_tensor(
    file: BaseFile, name: str, jobs: Sequence[Job], dtype: torch.dtype | None, rounding: Rounding
) -> Merged:
    reader = TensorReader(file.weights, file.formats, torch.device("cpu"))
    stored = reader.stored(name)
    precise = torch.float64 if stored.dtype == torch.float64 else torch.float32
    before = reader.read(name, [(0, stored.shape[0])], precise)[0]
    change = torch.zeros_like(before)
    for job in jobs:
        _add_changes(job, before, change)
    scale = new_scale = None
    if name in file.formats.scales and dtype is None:
        scale = reader.stored(file.formats.scales[name])
        new_scale = fitting_scale(_largest(before, change, scale), scale, stored.dtype)
    rescaled = new_scale is not None and not torch.equal(new_scale, scale)  # type: ignore[arg-type]
    wanted = stored.dtype if dtype is None else dtype
    generator = None
    if rounding == "stochastic" and wanted in EIGHT_BIT:
        # Of chances that are the same whenever the same layer is merged.
        generator = torch.Generator().manual_seed(counter_seed(0, "merge", name))
    values = stored if wanted == stored.dtype else torch.empty(stored.shape, dtype=wanted)
    whole = rescaled or values is not stored
    rows = [(0, len(values))] if whole else [job.place.rows for job in jobs]
    for start, end in rows:
        part = slice(start, end)
        if not whole and not bool(change[part].any()):
            continue  # adding zero would turn a negative zero round
        own = None if new_scale is None else _of_rows(new_scale, part)
        values[part] = _rounded_sum(
            before[part], change[part], own, dtype=wanted, generator=generator
        )
    after = _numbers(values, new_scale, before.dtype)
    _refuse_infinite(file.path, name, before, change=change, after=after, dtype=wanted)
    places = {job.title: slice(*job.place.rows) for job in jobs}
    losses = {k: rounding_loss(before[p], change[p], after[p]) for k, p in places.items()}
    return Merged(values, new_scale, rescaled, losses)


def _add_changes(job: Job, before: Tensor, change: Tensor) -> None:
    rows = slice(*job.place.rows)
    shift = (rows.stop - rows.start) // 2 if job.place.swapped else 0
    weight = before[rows].roll(shift, 0) if shift else before[rows]
    for make in job.changes:
        made = make(weight).to(change.dtype)
        change[rows] += made.roll(shift, 0) if shift else made


def _largest(before: Tensor, change: Tensor, scale: Tensor) -> Tensor:
    """Largest absolute value that each scale is for, in the shape of the scales."""
    if scale.numel() == 1:
        parts = slices_of_rows(len(before), before[0].numel())
        return (
            torch.stack([(before[p] + change[p]).abs().max() for p in parts])
            .max()
            .view(scale.shape)
        )
    return (before + change).abs().flatten(1).amax(dim=1).view(scale.shape)


def _of_rows(scale: Tensor, rows: slice) -> Tensor:
    """The scales of some rows, ready to divide them."""
    return scale.double().reshape(()) if scale.numel() == 1 else scale.double()[rows]


def _rounded_sum(
    before: Tensor,
    change: Tensor,
    scale: Tensor | None,
    dtype: torch.dtype,
    generator: torch.Generator | None,
) -> Tensor:
    """The sum, computed exactly and rounded once."""
    result = torch.empty(before.shape, dtype=dtype)
    for part in slices_of_rows(len(before), before[0].numel()):
        total = before[part].double() + change[part].double()
        if scale is not None:
            total /= scale if scale.dim() == 0 else scale[part]
        result[part] = rounded(total, dtype, generator)
    return result


def _numbers(values: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What a reader makes of stored values."""
    numbers = widened(values, dtype)
    if scale is not None:
        numbers *= scale.to(dtype).reshape(()) if scale.numel() == 1 else scale.to(dtype)
    return numbers


def _refuse_infinite(
    path: Path, name: str, before: Tensor, change: Tensor, after: Tensor, dtype: torch.dtype
) -> None:
    if all_finite(after):
        return
    sources = {"the base's own weight": before, "the adapter's change": change}
    blamed = next((k for k, v in sources.items() if not all_finite(v)), None)
    raise NonFiniteError(
        f"{name} of {path} would hold a value that is not finite"
        + (f", which comes from {blamed}" if blamed else f" in {str(dtype).split('.')[-1]}"),
        "finite values; nothing was written",
        "Use a smaller strength, or dtype=bf16." if blamed is None else "Use another file.",
    )


_ORDERS = {"weight": ("set_weight", "diff", "w_norm"), "bias": ("diff_b", "b_norm")}
"""Which tensor of a layer an ending means; the first that is there counts."""


def _extra_changes(
    base: BaseWeights, state: AdapterState, strength: float
) -> Iterator[tuple[str, Place, Change]]:
    """A name for reports, the place, and the change of each of an adapter's differences.

    Raises:
        AdapterError: When a tensor is not in the base or has another shape.
    """
    pieces = _pieces(base) if state.extras and not base.native else {}
    for native in state.extras:
        tensors = patch_outline(state, native)
        for kind, endings in _ORDERS.items():
            ending = next((each for each in endings if each in tensors), None)
            if ending is None:
                continue
            title = f"{native}.{ending}"
            direct = base.place(f"{native}.{kind}")
            found = pieces.get(f"{native}.{kind}") or ([(direct, False)] if direct else [])
            _check(base, title, tuple(tensors[ending].shape), [place for place, _ in found])
            start = 0
            for place, swapped in found:
                rows = slice(start, start + place.shape[0])
                start = rows.stop
                own = title if len(found) == 1 else f"{title} ({place.name})"
                change = partial(_change, state.extras, native, ending, rows, swapped, strength)
                yield own, place, change


def _change(
    extras: Mapping[str, Mapping[str, Tensor]],
    native: str,
    ending: str,
    rows: slice,
    swapped: bool,
    strength: float,
    weight: Tensor,
) -> Tensor:
    value = extras[native][ending][rows].to(weight.dtype)
    if swapped:
        value = value.roll(len(value) // 2, 0)
    if ending != "set_weight":
        return value * strength
    return value - weight if strength else weight * 0.0


def _pieces(base: BaseWeights) -> dict[str, list[tuple[Place, bool]]]:
    """ComfyUI's name of a tensor to where its parts lie in a base of Diffusers' naming."""
    found: dict[str, list[tuple[int, Place, bool]]] = {}
    for name in base.names:
        place, origin = base.place(name), base.family.files.single_file.origin(name, True)
        if place is not None and origin is not None:
            found.setdefault(origin.name, []).append((origin.part, place, origin.swapped))
    return {
        native: [(place, swapped) for _, place, swapped in sorted(parts, key=lambda p: p[0])]
        for native, parts in found.items()
    }


def _check(base: BaseWeights, title: str, shape: tuple[int, ...], places: list[Place]) -> None:
    if not places:
        raise AdapterError(
            f"the adapter's {title} is not in {base.path}",
            f"a {base.family.title} base with every tensor that the adapter changes",
            "Choose the base that the adapter was trained on.",
        )
    wanted = (sum(place.shape[0] for place in places), *places[0].shape[1:])
    if shape != wanted:
        raise AdapterError(
            f"the adapter's {title} is {shape}",
            f"{wanted}, as in {base.path}",
            "Choose the base that the adapter was trained on.",
        )
