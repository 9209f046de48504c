"""Check an adapter on a model of the graph: ComfyUI's own reading of it against the trainer's."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ...trainer_core.adapter_files.names.key_map import (
    ComfyuiPlace,
    bias_of,
    module_place,
    patched_tensor,
)
from ...trainer_core.adapter_files.verify.delta_comparison import (
    LARGEST_DIFFERENCE,
    LayerProof,
    TensorProof,
)
from ...trainer_core.adapter_files.verify.load_proof import Proof
from ...trainer_core.errors import AdapterError, AdapterFileError, RunError
from ..host import comfy_host
from ..host.adapter_patches import HostAdapter
from .loras_folder import as_source

if TYPE_CHECKING:
    from typing import Any

    import torch
    from torch import Tensor

    from ...trainer_core.families.family import Family
    from ...trainer_core.tensors.rounding import Loss
    from ...trainer_core.tensors.safetensors_reader import Source
    from ...trainer_core.types import AdapterState

_SAME = 1e-3
"""Relative difference below which a bypass computes the same: its products are of another order."""

_ROUNDING = 2.0
"""How many units of rounding of the base's weight its change may be off."""


def check_adapter(
    node_id: str, model: Any, source: Path | Mapping[str, Tensor], on_problem: str
) -> Proof:
    """See whether ComfyUI loads a file, or tensors by key, for a model as the trainer means it.

    The node shows progress and the result. ``stop`` ends the graph where something is wrong.

    Raises:
        AdapterFileError: When it is not a safetensors file.
        RunError: When something is wrong and the graph is to stop then.
    """
    from ...trainer_core.adapter_files.names.key_layouts import is_text_key
    from ...trainer_core.tensors.safetensors_reader import open_tensors

    source_file = as_source(source)
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(comfy_host.cleared_device())
        with open_tensors(source_file) as file:
            every = file.read_all()
        tensors = {key: each for key, each in every.items() if not is_text_key(key)}
        host = HostAdapter(model, tensors, device)
        own, family, unread = _reading(stack, source_file, host.weights)
        proof = _Check(host, own, family).run(node_id, source_file, tensors, unread)
    if len(tensors) < len(every):
        verdict = (
            f"{len(every) - len(tensors)} tensors are of text encoders and were not checked: only "
            "a loader with a CLIP input, such as Load LoRA, loads them."
        )
        proof = dataclasses.replace(proof, warnings=(*proof.warnings, verdict))
    if on_problem == "stop" and not proof.ok:
        raise RunError(
            proof.text(most=3).replace("\n", " "),
            "an adapter of which ComfyUI loads every tensor as it is meant",
            "Convert it with Convert Adapter, or set on_problem to report.",
        )
    return proof


def _reading(
    stack: contextlib.ExitStack, source: Source, host: Iterable[str]
) -> tuple[AdapterState | None, Family | None, str]:
    """What the trainer reads from a file; nothing where it does not know kind or family."""
    from ...trainer_core.adapter_files.names.key_map import WEIGHT
    from ...trainer_core.adapter_files.names.layer_match import matching_families
    from ...trainer_core.adapter_files.read.read_adapter import of_denoiser, open_adapter, open_file
    from ...trainer_core.bases.adapter_family import other_models
    from ...trainer_core.families.graph_model_family import named_family
    from ...trainer_core.families.registry import FAMILIES

    try:
        with open_file(source) as file:
            names, extras = list(file.layers), list(file.extras)
        # The model's own names tell two families apart that call some layers alike.
        own = [f for f in FAMILIES.values() if f.files.detect(host)] or list(FAMILIES.values())
        # A model of no family has its own names, and a file may have those of any model.
        layers = [name.removesuffix(WEIGHT) for name in host if name.endswith(WEIGHT)]
        own.append(named_family("this model", layers))
        found = matching_families(
            names, {family.name: family.layers.key_map for family in own}, extras
        )
        if not found:
            models = other_models(source)
            reading = (
                f"the adapter is for {models}" if models else "what the adapter is for is unknown"
            )
            return None, None, f"{reading}, which the trainer does not read for this model"
        family = next(each for each in own if each.name == found[0])
        opened = stack.enter_context(open_adapter(source, family.layers.key_map))
        return of_denoiser(opened.state), family, ""
    except AdapterFileError as error:
        return None, None, f"the trainer does not read this file ({error.found})"


class _Check:
    """One adapter on one model."""

    def __init__(self, host: HostAdapter, own: AdapterState | None, family: Family | None) -> None:
        self._host, self._own, self._family = host, own, family
        self._complaints: dict[ComfyuiPlace, str] = {}
        self._layers: dict[str, LayerProof] = {}
        self._dropped: list[str] = []
        self._otherwise: list[str] = []
        self._stretches: dict[str, float] = {}
        self._losses: dict[torch.dtype, dict[str, Loss]] = {}

    def run(self, node_id: str, source: Source, keys: Iterable[str], unread: str) -> Proof:
        """Apply every patch to the model's own weight, one weight after another."""
        modules, extras = self._own_changes()
        by_tensor: dict[str, list[ComfyuiPlace]] = {name: [] for name in (*modules, *extras)}
        for place in self._host.patches:
            by_tensor.setdefault(place.tensor, []).append(place)
        bar = comfy_host.ProgressBar(node_id, len(by_tensor))
        for done, (tensor, places) in enumerate(by_tensor.items()):
            if bar.show(done):
                comfy_host.raise_interrupted()
            self._check(tensor, places, modules.get(tensor, {}), extras.get(tensor))
        bar.show(len(by_tensor))
        tensors = {key: self._fate(key) for key in keys}
        notes = tuple(self._bypassed()), tuple(self._warnings(source))
        return Proof(Path(str(source)), self._host.base, tensors, self._layers, unread, *notes)

    def _own_changes(
        self,
    ) -> tuple[dict[str, dict[str, ComfyuiPlace]], dict[str, tuple[str, str]]]:
        """By ComfyUI's tensor: our layers with their places, and our differences."""
        from ...trainer_core.adapter_files.factors.outlines import patch_outline

        modules: dict[str, dict[str, ComfyuiPlace]] = {}
        extras: dict[str, tuple[str, str]] = {}
        if self._own is None or self._family is None:
            return modules, extras
        for name in self._own.layers:
            place = module_place(self._family.layers.key_map, self._host.names, name)
            if place is None:
                self._layers[name] = LayerProof(1.0)
            else:
                modules.setdefault(place.tensor, {})[name] = place
        for native in self._own.extras:
            for ending in patch_outline(self._own, native):
                extras[patched_tensor(native, ending)] = (native, ending)
        return modules, extras

    def _check(
        self,
        tensor: str,
        places: list[ComfyuiPlace],
        modules: Mapping[str, ComfyuiPlace],
        extra: tuple[str, str] | None,
    ) -> None:
        before = self._host.weight(tensor)
        if before is None:
            self._complaints |= dict.fromkeys(places, f"the base has no {tensor}")
            self._layers |= dict.fromkeys(modules, LayerProof(1.0))
            return
        after = before.clone()
        for place in places:
            after, complaint = self._host.apply(place, after)
            if complaint:
                self._complaints[place] = complaint
        if after.shape != before.shape:
            return  # an adapter that makes the layer larger; none of ours does
        change = after - before
        self._measure(tensor, before, change)
        for name, place in modules.items():
            self._layers[name] = self._compare_layer(name, place, before, change)
        if extra is not None and self._own is not None:
            native, ending = extra
            ours = self._own.extras[native][ending].to(before)
            if ending == "set_weight":
                ours = ours - before
            self._layers[tensor] = _difference(change, ours, before)
        for place in places:
            self._try_bypass(place, change)

    def _compare_layer(
        self, name: str, place: ComfyuiPlace, before: Tensor, change: Tensor
    ) -> LayerProof:
        """ComfyUI's change of a layer against ours, both in full."""
        from ...trainer_core.adapter_files.factors.effective_delta import (
            effective_delta,
            stretch_of,
        )
        from ...trainer_core.types import AdapterState

        assert isinstance(self._own, AdapterState)
        layer, kind = self._own.layers[name], self._own.kind
        tensors = {factor: each.to(before.device) for factor, each in layer.tensors.items()}
        layer = dataclasses.replace(layer, tensors=tensors)
        if place.rows is not None:
            before, change = (each.narrow(0, *place.rows) for each in (before, change))
        if place.swapped:
            before, change = (_swapped(each) for each in (before, change))
        stretch = stretch_of(layer, before)
        if stretch is not None:
            self._stretches[name] = stretch
        try:
            return _difference(change, effective_delta(kind, layer, before), before)
        except AdapterError as error:
            return LayerProof(None, reason=error.found)

    def _measure(self, tensor: str, before: Tensor, change: Tensor) -> None:
        """What rounding to the model's number format does to a change, as ComfyUI rounds."""
        import torch

        from ...trainer_core.tensors.rounding import rounded, rounding_loss

        dtype = self._host.stored(tensor)
        if dtype in (None, torch.float32, torch.float64) or not bool(change.any()):
            return
        before, change = before.cpu(), change.cpu()
        generator = torch.Generator().manual_seed(0)  # which only 8-bit formats use
        after = rounded(before + change, dtype, generator).float()
        self._losses.setdefault(dtype, {})[tensor] = rounding_loss(before, change, after)

    def _warnings(self, source: Source) -> Iterable[str]:
        from ...trainer_core.adapter_files.verify.load_proof import format_warning
        from ...trainer_core.bases.adapter_warnings import loss_warning, stretch_warning
        from ...trainer_core.tensors.rounding import EIGHT_BIT
        from ...trainer_core.tensors.safetensors_reader import open_tensors

        with open_tensors(source) as file:
            lines = [format_warning(file), stretch_warning(self._stretches)]
        for dtype, losses in self._losses.items():
            stored = str(dtype).removeprefix("torch.")
            lines.append(loss_warning(losses, stored, by_chance=dtype in EIGHT_BIT))
        return (line for line in lines if line)

    def _try_bypass(self, place: ComfyuiPlace, change: Tensor) -> None:
        """Note what the bypass loaders leave out, and what they compute otherwise."""
        if not self._host.is_adapter(place):
            return
        if place.rows is not None or place.swapped:
            self._dropped.append(str(place))
            return
        if change.dim() != 2 or place in self._complaints:
            return
        from ...trainer_core.adapter_files.verify.delta_comparison import (
            probe_vectors,
            relative_difference,
        )

        rows = probe_vectors(change.shape[1]).to(change)
        output = self._host.bypass(place, rows)
        if output is None or not relative_difference(output, rows @ change.T) <= _SAME:
            self._otherwise.append(str(place))

    def _bypassed(self) -> Iterable[str]:
        if self._dropped:
            yield (
                f"{len(self._dropped)} parts of fused layers are dropped, such as "
                f"{self._dropped[0]}. Load it without bypass, or save it with fused layers."
            )
        if self._otherwise:
            yield (
                f"{len(self._otherwise)} layers are computed otherwise, such as "
                f"{self._otherwise[0]}: they know no DoRA. Load it without bypass."
            )

    def _fate(self, key: str) -> TensorProof:
        """What ComfyUI made of one tensor."""
        if self._host.stopped:
            return TensorProof("read wrongly", None, self._host.stopped)
        if key in self._host.unread:
            return TensorProof("ignored", None, "ComfyUI knows no such tensor for this model")
        place = self._place_of(key)
        if place is None:
            return TensorProof("loaded")  # ComfyUI has given it another name
        complaint = self._complaints.get(place)
        if complaint is None and place in self._host.patches:
            return TensorProof("loaded", str(place))
        if complaint is None or complaint.startswith("the base has no"):
            why = complaint or "nothing is beside it that it could belong to"
            return TensorProof("ignored", None, why)
        shape = "SHAPE" in complaint or "shape" in complaint or "size" in complaint
        return TensorProof("wrong shape" if shape else "read wrongly", str(place), complaint)

    def _place_of(self, key: str) -> ComfyuiPlace | None:
        """The place that the longest name that a key begins with stands for."""
        names = self._host.names
        ends = [end for end in range(len(key)) if key[end] in "._" and key[:end] in names]
        if not ends:
            return None
        place = names[key[: ends[-1]]]
        if not key.endswith((".diff_b", ".b_norm")):
            return place
        # ComfyUI's own slip: for a part of a layer it looks for this.
        whole = place.rows is None and not place.swapped
        return ComfyuiPlace(bias_of(place.tensor) if whole else "().bias")


def _difference(theirs: Tensor, ours: Tensor, before: Tensor) -> LayerProof:
    """Two changes of a weight, the first of which was added to it and taken off again."""
    import torch

    from ...trainer_core.adapter_files.verify.delta_comparison import relative_difference

    size, base = (float(torch.linalg.vector_norm(each)) for each in (ours, before))
    rounding = _ROUNDING * torch.finfo(before.dtype).eps * base / size if size else 0.0
    return LayerProof(relative_difference(theirs, ours), LARGEST_DIFFERENCE + rounding)


def _swapped(weight: Tensor) -> Tensor:
    import torch

    return torch.cat(list(reversed(weight.chunk(2, dim=0))), dim=0)
