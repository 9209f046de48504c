"""Compare what ComfyUI makes of a file with an adapter, one layer after another.

No delta is built: each is multiplied by a few fixed random vectors. Two deltas that differ give
different products, but for a chance of nought.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE, axis_of
from ...adapters.kernels.convolution import as_matrices
from ...adapters.kinds.file_rules import Fault, Outcome
from ...adapters.kinds.registry import FILE_RULES, KINDS, layer_scale, matrix_sizes
from ...tensors.safetensors_reader import TensorFile
from ...types import AdapterState, LayerState
from ..factors.outlines import patch_outline
from ..names.key_map import KeyMap, Shapes, comfyui_table, module_place, patched_tensor
from .comfyui_loader_rules import ComfyuiPatch, comfyui_scale, find_fault, plan_reading

LOADED: Outcome = "loaded"
LARGEST_DIFFERENCE = 1e-5
"""Relative difference of two changes in float32 that is no more than rounding."""

MOST_ROUNDING = 0.1
"""Relative difference that is no longer taken for rounding, whatever the number format."""

_PROBES = 4
_SEED = 20
_ODD = 1.37
"""A number with which nothing that is rounded already stays so."""

_TIMES_ROUNDING = 3.0
"""How much more than our own factors' rounding is still taken for rounding."""

_ROWS = 512
"""Rows of a whole difference that are looked at together."""

_OF_ALPHA = "its alpha is 0, by which ComfyUI multiplies; the trainer takes the rank for it"
_PRECISE = (torch.float32, torch.float64)
_QUICK = torch.float32
"""Number format of the first comparison."""

_FAINT = 1e-20
"""Products that are smaller may have lost something in float32, which ends at 1e-38."""


@dataclass(frozen=True, slots=True)
class TensorProof:
    """What becomes of one tensor of a file.

    Attributes:
        outcome: ``loaded``, ``ignored``, ``wrong shape`` or ``read wrongly``.
        place: What it changes in ComfyUI's model, with the rows of a part; None when nothing.
        reason: Why it is not loaded; empty when it is.
    """

    outcome: Outcome
    place: str | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LayerProof:
    """How ComfyUI's delta of a layer differs from the trainer's.

    Attributes:
        difference: ``||theirs - ours|| / ||ours||``; None when it was not compared.
        allowed: The largest difference that is only rounding.
        reason: Why it was not compared; empty when it was.
        rounding: What rounding the trainer's factors to the file's number format changes.
        still: Whether the trainer's delta is zero.
        cause: Why it differs, where that is known.
    """

    difference: float | None
    allowed: float = LARGEST_DIFFERENCE
    reason: str = ""
    rounding: float = 0.0
    still: bool = False
    cause: str = ""

    @property
    def ok(self) -> bool:
        """Whether nothing was found that is wrong."""
        return self.difference is None or self.difference <= self.allowed


@dataclass(frozen=True, slots=True)
class _Own:
    """A layer of our adapter, and the rows of ComfyUI's weight that it changes."""

    name: str
    start: int
    rows: int
    swapped: bool


class DeltaComparison:
    """One file against one base and one adapter.

    Args:
        shapes: The base's tensors by ComfyUI's names.
        own: What the file should hold; None where the trainer cannot tell.
        given: Whether the file was written from ``own``, and not ``own`` read from it; then the
            rounding of the file's number format is allowed.
    """

    def __init__(
        self,
        file: TensorFile,
        key_map: KeyMap,
        shapes: Shapes,
        own: AdapterState | None,
        with_base: bool,
    ) -> None:
        self._file = file
        self._key_map = key_map
        self._shapes = shapes
        self._own = own
        self._given = with_base
        self._sizes = {key: info.shape for key, info in file.tensors.items()}
        self._table = comfyui_table(key_map, shapes)
        plan = plan_reading(file.tensors, self._table)
        self._ignored = plan.ignored
        self._patches = plan.patches
        self._faults = {patch.place: self._fault(patch) for patch in plan.patches}

    def tensors(self) -> dict[str, TensorProof]:
        """The fate of every tensor, in the file's order."""
        found = {key: TensorProof("ignored", None, why) for key, why in self._ignored.items()}
        for patch in self._patches:
            fault = self._faults[patch.place]
            for key in patch.keys.values():
                found[key] = (
                    TensorProof("loaded", str(patch.place))
                    if fault is None
                    else TensorProof(fault.outcome, str(patch.place), fault.reason)
                )
        return {key: found[key] for key in self._file.tensors}

    def layers(self) -> Iterator[tuple[str, LayerProof]]:
        """Every layer of the adapter, and what ComfyUI changes besides, with the difference."""
        if self._own is None:
            return
        modules = self._modules()
        by_tensor: dict[str, list[ComfyuiPatch]] = {tensor: [] for tensor in modules}
        by_tensor |= {tensor: [] for tensor in self._extras}
        for patch in self._patches:
            by_tensor.setdefault(patch.place.tensor, []).append(patch)
        for tensor, patches in by_tensor.items():
            if tensor in self._extras:
                yield tensor, self._compare_patch(tensor, patches)
            elif tensor in modules:
                yield from self._compare(tensor, patches, modules[tensor])
            elif tensor in self._shapes:
                # ComfyUI changes a layer that our adapter leaves as it is.
                yield tensor, LayerProof(math.inf)
        placed = {module.name for found in modules.values() for module in found}
        for name in self._own.layers:
            if name not in placed:
                yield name, LayerProof(1.0)

    def _fault(self, patch: ComfyuiPatch) -> Fault | None:
        target = patch.place.shape(self._shapes)
        if target is None:
            return Fault("ignored", f"the base has no {patch.place.tensor}")
        return find_fault(patch, self._sizes, target)

    def _modules(self) -> dict[str, list[_Own]]:
        """ComfyUI's weight to the layers of our adapter that lie in it."""
        modules: dict[str, list[_Own]] = {}
        for name in self._own.layers if self._own else ():
            place = module_place(self._key_map, self._table, name)
            if place is not None and place.tensor in self._shapes:
                rows = place.rows or (0, self._shapes[place.tensor][0])
                modules.setdefault(place.tensor, []).append(_Own(name, *rows, place.swapped))
        return modules

    @property
    def _multiplies(self) -> bool:
        """Whether our layers multiply a weight: x then stands for what the weight computes."""
        return self._own is not None and KINDS[self._own.kind].multiplies

    @functools.cached_property
    def _extras(self) -> dict[str, tuple[str, str]]:
        """ComfyUI's tensor to our difference of it, without factors: its layer and its ending."""
        if self._own is None:
            return {}
        return {
            patched_tensor(native, ending): (native, ending)
            for native in self._own.extras
            for ending in patch_outline(self._own, native)
        }

    def _compare_patch(self, tensor: str, patches: list[ComfyuiPatch]) -> LayerProof:
        assert self._own is not None
        native, ending = self._extras[tensor]
        kind = "set" if ending == "set_weight" else "diff"
        if not patches or any(each.kind != kind or self._faults[each.place] for each in patches):
            return LayerProof(1.0)
        ours = self._own.extras[native][ending]
        ours = ours.double()
        theirs = self._their_difference(patches, ours)
        rounding = 0.0
        if self._given and theirs.dtype not in _PRECISE:
            rounding = torch.finfo(theirs.dtype).eps
            rounding += relative_difference(ours.to(theirs.dtype).double(), ours)
        still = kind == "diff" and not bool(ours.any())
        return _layer_proof(
            relative_difference(theirs.double(), ours), theirs.dtype, rounding, still
        )

    def _their_difference(self, patches: list[ComfyuiPatch], like: Tensor) -> Tensor:
        """What ComfyUI takes as one difference: a whole one, or those of parts."""
        if len(patches) == 1 and patches[0].place.rows is None and not patches[0].place.swapped:
            return self._file.read(patches[0].keys["diff"])
        whole = torch.zeros_like(like)
        for patch in patches:
            start, count = patch.place.rows or (0, len(like))
            value = self._file.read(patch.keys["diff"])
            if patch.place.swapped:
                value = value.roll(len(value) // 2, 0)
            whole[start : start + count] = value.to(whole.dtype)
        return whole

    def _compare(
        self, tensor: str, patches: list[ComfyuiPatch], modules: list[_Own]
    ) -> Iterator[tuple[str, LayerProof]]:
        rows, *others = self._shapes[tensor]
        columns = rows if self._multiplies else math.prod(others)
        # Float32 shows of most layers that they are right, in a fraction of the time; float64 has
        # the word on all others.
        quick = dict(self._compare_with(probe_vectors(columns, _QUICK), tensor, patches, modules))
        if all(map(_is_certain, quick.values())):
            yield from quick.items()
        else:
            yield from self._compare_with(probe_vectors(columns), tensor, patches, modules)

    def _compare_with(
        self, x: Tensor, tensor: str, patches: list[ComfyuiPatch], modules: list[_Own]
    ) -> Iterator[tuple[str, LayerProof]]:
        """Compare the layers of one weight by what they make of x."""
        theirs, unknown = self._their_products(x, self._shapes[tensor][0], patches)
        for module in modules:
            yield (
                module.name,
                self._compare_module(x, module, theirs, unknown=unknown, patches=patches),
            )
            theirs[:, module.start : module.start + module.rows] = 0.0
        if bool(theirs.any()):
            # The rows that our adapter leaves as they are.
            yield tensor, LayerProof(math.inf)

    def _their_products(
        self, x: Tensor, rows: int, patches: list[ComfyuiPatch]
    ) -> tuple[Tensor, str]:
        """What ComfyUI adds to a weight, times x; and what of it is not known here."""
        products, unknown = x.new_zeros(x.shape[0], rows), ""
        for patch in patches:
            if self._faults[patch.place] is not None:
                continue
            start, count = patch.place.rows or (0, rows)
            if self._multiplies != (patch.kind in KINDS and KINDS[patch.kind].multiplies):
                unknown = f"ComfyUI's {patch.kind} cannot be compared with the adapter"
                continue
            if patch.kind == "diff":
                whole = self._file.read(patch.keys["diff"]).flatten(1)
                parts = [x @ rows.to(x.dtype).T for rows in whole.split(_ROWS)]
                product = torch.cat(parts, dim=1)
            elif patch.kind in FILE_RULES and "reshape_weight" not in patch.keys:
                own = x[:, start : start + count] if self._multiplies else x
                product = self._their_product(own, patch)
            else:
                unknown = f"ComfyUI's {patch.kind} of a layer is not known here"
                continue
            products[:, start : start + count] += (
                swap_halves(product) if patch.place.swapped else product
            )
        return products, unknown

    def _their_product(self, x: Tensor, patch: ComfyuiPatch) -> Tensor:
        tensors = {
            slot: self._file.read(key)
            for slot, key in patch.keys.items()
            if slot not in ("alpha", DORA_SCALE)
        }
        tensors = FILE_RULES[patch.kind].own_form(tensors)
        alpha = patch.keys.get("alpha")
        value = None if alpha is None else float(self._file.read(alpha).item())
        return delta_product(x, patch.kind, tensors, comfyui_scale(patch, self._sizes, value))

    def _compare_module(
        self, x: Tensor, module: _Own, theirs: Tensor, unknown: str, patches: list[ComfyuiPatch]
    ) -> LayerProof:
        own = cast("AdapterState", self._own)
        layer, kind = own.layers[module.name], own.kind
        here = [patch for patch in patches if _touches(patch, module)]
        reason = self._incomparable(layer, here) or unknown
        if reason:
            return LayerProof(None, reason=reason)
        rows, columns = matrix_sizes(kind, layer)
        if rows != module.rows or (columns != x.shape[1] and not self._multiplies):
            return LayerProof(math.inf)
        if self._multiplies:
            x = x[:, module.start : module.start + module.rows]
            x = swap_halves(x) if module.swapped else x
        scale = layer_scale(kind, layer)
        ours = delta_product(x, kind, layer.tensors, scale)
        if module.swapped:
            ours = swap_halves(ours)
        difference = relative_difference(theirs[:, module.start : module.start + module.rows], ours)
        dtype, rounding = self._shortest(here), 0.0
        if x.dtype == _QUICK and float(torch.linalg.vector_norm(ours)) < _FAINT:
            return LayerProof(math.nan)
        if self._given and dtype not in (None, *_PRECISE):
            rounding = torch.finfo(dtype).eps
            if x.dtype != _QUICK:
                rounding += rounding_of(x, kind, layer.tensors, dtype=dtype, scale=scale)
        magnitude = self._compare_magnitude(layer, module, here)
        still = magnitude is None and not bool(ours.any())
        cause = _OF_ALPHA if any(map(self._has_no_alpha, here)) else ""
        proof = _layer_proof(difference, dtype, rounding, still=still, cause=cause)
        if magnitude is None:
            return proof
        return replace(
            proof,
            difference=max(difference, magnitude.difference or 0.0),
            allowed=proof.allowed + magnitude.allowed,
        )

    def _has_no_alpha(self, patch: ComfyuiPatch) -> bool:
        """Whether a patch's alpha is 0, and ComfyUI multiplies by it."""
        alpha = patch.keys.get("alpha")
        if alpha is None or patch.kind not in FILE_RULES or self._faults[patch.place] is not None:
            return False
        return comfyui_scale(patch, self._sizes, float(self._file.read(alpha).item())) == 0.0

    def _incomparable(self, layer: LayerState, patches: list[ComfyuiPatch]) -> str:
        """Why ComfyUI's delta cannot be told from the file alone; empty where it can."""
        faults = [fault for patch in patches if (fault := self._faults[patch.place])]
        if faults:
            return faults[0].reason
        if DORA_SCALE in layer.tensors and any(patch.kind == "diff" for patch in patches):
            return "a DoRA as a difference depends on the base's weight"
        return ""

    def _compare_magnitude(
        self, layer: LayerState, module: _Own, patches: list[ComfyuiPatch]
    ) -> LayerProof | None:
        """DoRA's magnitude against ComfyUI's; None where neither has any."""
        ours = layer.tensors.get(DORA_SCALE)
        keys = [patch.keys[DORA_SCALE] for patch in patches if DORA_SCALE in patch.keys]
        if ours is None and not keys:
            return None
        if ours is None or len(patches) != 1 or not keys or axis_of(ours) != "input":
            return LayerProof(1.0)
        fault = self._faults[patches[0].place]
        if fault is not None or patches[0].place.rows not in (None, (module.start, module.rows)):
            return LayerProof(1.0)
        theirs = self._file.read(keys[0])
        short = self._given and theirs.dtype not in _PRECISE
        difference = relative_difference(theirs.double().flatten(), ours.double().flatten())
        return LayerProof(difference, torch.finfo(theirs.dtype).eps if short else 0.0)

    def _shortest(self, patches: list[ComfyuiPatch]) -> torch.dtype | None:
        """The shortest number format of the factors."""
        dtypes = [
            self._file.tensors[key].dtype
            for patch in patches
            for slot, key in patch.keys.items()
            if slot != "alpha" and self._file.tensors[key].dtype.is_floating_point
        ]
        return max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=None)


def _layer_proof(
    difference: float, dtype: torch.dtype | None, rounding: float, still: bool, cause: str = ""
) -> LayerProof:
    if rounding > MOST_ROUNDING:
        cause = f"numbers as small as the adapter's are lost in {dtype}".replace("torch.", "")
    allowed = LARGEST_DIFFERENCE + min(rounding, MOST_ROUNDING)
    return LayerProof(difference, allowed, rounding=rounding, still=still, cause=cause)


def _is_certain(proof: LayerProof) -> bool:
    """Whether float32's own rounding has no say in that a layer is right."""
    return proof.difference is None or proof.difference <= proof.allowed / 2


def _touches(patch: ComfyuiPatch, module: _Own) -> bool:
    if patch.place.rows is None:
        return True
    start, rows = patch.place.rows
    return start < module.start + module.rows and module.start < start + rows


@functools.lru_cache(maxsize=16)
def probe_vectors(columns: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The vectors `[4, columns]` for layers with so many inputs."""
    generator = torch.Generator().manual_seed(_SEED)
    drawn = torch.randn(_PROBES, columns, generator=generator, dtype=torch.float64)
    return drawn.to(dtype)


def delta_product(x: Tensor, kind: str, tensors: Mapping[str, Tensor], scale: float) -> Tensor:
    """Multiply vectors `[n, in]` by the delta that factors make, without DoRA's magnitude.

    Of a convolution they are `[n, in * window]`. Gives `[n, out]` in the number format of x.
    """
    wide = {name: each.to(x.dtype) for name, each in tensors.items() if name != DORA_SCALE}
    factors = as_matrices(wide)
    rule = FILE_RULES[kind].probe or KINDS[kind].apply
    return rule(x, factors, scale)


def swap_halves(products: Tensor) -> Tensor:
    """Exchange the halves of a layer's outputs `[n, out]`."""
    return torch.cat(list(reversed(products.chunk(2, dim=1))), dim=1)


def relative_difference(value: Tensor, reference: Tensor) -> float:
    """``||value - reference|| / ||reference||``; 0 when both are zero."""
    distance = float(torch.linalg.vector_norm(value - reference))
    size = float(torch.linalg.vector_norm(reference))
    if size:
        return distance / size
    return 0.0 if distance == 0.0 else float("inf")


def rounding_of(
    x: Tensor, kind: str, tensors: Mapping[str, Tensor], dtype: torch.dtype, scale: float
) -> float:
    """How far a delta may be off because factors are rounded to a number format.

    A few times what rounding changes, relative: of a small layer the few factors may all be rounded
    luckily. Above `MOST_ROUNDING` the format does not hold the factors.
    """
    # Multiplied, because a layout may multiply a factor before it is stored: what was read from a
    # file of the same format is rounded already, and would not be rounded again as it is.
    rounded = {
        name: (tensor.to(x.dtype) * _ODD).to(dtype).to(x.dtype) / _ODD
        for name, tensor in tensors.items()
    }
    exact = delta_product(x, kind, tensors, scale)
    return _TIMES_ROUNDING * relative_difference(delta_product(x, kind, rounded, scale), exact)
