"""Puts the adapters of ``base.adapters`` into a frozen base's weights, or beside them.

What stays for good goes into a weight that is dense: the sum is rounded once, and costs nothing
from then on. What samples are to be made without, and what belongs to a weight in fewer bits or
one that is swapped, stays beside (`adapters.base.amended_linear`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from ...adapters.base.amended_linear import (
    AmendedLinear,
    Amendment,
    DeltaPath,
    KindPath,
    ProductPath,
    WholePath,
    amend,
    is_amendable,
    is_rounded,
)
from ...adapters.base.dense_weight import DENSE_DTYPES, PLAIN_TYPES, dense_weight
from ...adapters.dora_magnitude import DORA_SCALE, axis_of, magnitude_ratio, squared_norms
from ...adapters.kernels.convolution import as_matrices
from ...adapters.kinds.registry import FILE_RULES, KINDS, LOW_RANK, layer_delta, layer_scale
from ...adapters.targets import nearest_layers
from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..names.key_layouts import DROP
from ..names.key_map import KeyMap
from ..names.layer_match import RowSlice
from ..names.text_encoder_names import text_layers
from .effective_delta import check_size, effective_delta
from .fuse_layers import undivided_delta, undivided_parts
from .split_fused import take_rows


@dataclass(frozen=True, slots=True)
class BaseAdapterFile:
    """An adapter of the base, read.

    Attributes:
        place: The setting that names it, for messages.
        name: The file's name.
        state: What it holds; outlines where nothing is computed with it.
        strength: As in a LoRA loader.
        when: ``training``; ``always`` where samples have it too; ``quantized`` where they do, and
            only weights in fewer bits.
    """

    place: str
    name: str
    state: AdapterState
    strength: float
    when: Literal["training", "always", "quantized"]


@dataclass(frozen=True, slots=True)
class BaseAdapters:
    """The adapters that are part of a base.

    Attributes:
        beside: Layers that have some beside their weight.
        merged: How many layers have some in their weight.
        unrepaired: Layers in fewer bits that no ``quantized`` adapter has a part for; none where
            there is no such adapter.
    """

    beside: Sequence[AmendedLinear] = ()
    merged: int = 0
    unrepaired: Sequence[str] = ()

    @contextlib.contextmanager
    def sampling(self) -> Iterator[None]:
        """Leave out what samples are made without. No weight changes, so that all comes back."""
        for layer in self.beside:
            layer.counting = "samples"
        try:
            yield
        finally:
            for layer in self.beside:
                layer.counting = "all"

    def tensors(self) -> list[Tensor]:
        """What lies beside the weights."""
        return [each for layer in self.beside for each in layer.amendments.buffers()]


_Part = tuple[BaseAdapterFile, str, RowSlice | None]
"""What changes a module: the adapter, its layer, and the rows of one that no factors divide."""

_Wholes = dict[tuple[str, str], Tensor]
"""Setting and layer to the difference, at strength 1, of what no factors divide."""


def put_on_base(
    transformer: nn.Module,
    key_map: KeyMap,
    adapters: Sequence[BaseAdapterFile],
    *,
    merge: bool,
    partly: bool = False,
) -> BaseAdapters:
    """Make adapters a part of a frozen base, in place, before it gets one that is trained.

    Args:
        adapters: What is put on; each is computed from the base's own weights.
        merge: Whether the weights may be changed: they are in memory, and nobody else's.
        partly: Whether layers that the transformer lacks are left out, as in one with fewer blocks.

    Raises:
        AdapterError: When a layer is not in the base, has another size, or cannot be changed; the
            base is as it was then.
    """
    adapters = [each for each in adapters if each.strength]
    found = _parts(transformer, key_map, adapters, partly)
    repaired = {path for path, parts in found.items() for each, *_ in parts if _repairs(each)}
    unrepaired = _unrepaired(transformer, adapters, repaired)
    merged = 0
    beside: list[AmendedLinear] = []
    with torch.no_grad():
        wholes = _fused_deltas(transformer, key_map, found)
        for path, parts in found.items():
            layer = transformer.get_submodule(path)
            maker = _Maker(layer, wholes)
            # What is beside a weight is computed from the base's own.
            stays = all(_in_samples(adapter) for adapter, _, _ in parts)
            if merge and stays and _is_dense(layer):
                maker.merge(parts)
                merged += 1
            else:
                beside.append(amend(layer, [maker.amendment(*part) for part in parts]))
    return BaseAdapters(tuple(beside), merged, unrepaired)


def check_on_base(
    transformer: nn.Module, key_map: KeyMap, adapters: Sequence[BaseAdapterFile]
) -> None:
    """Refuse adapters, or their outlines, that do not fit a base; it may be without memory.

    Raises:
        AdapterError: As `put_on_base`.
    """
    _parts(transformer, key_map, adapters, False)


def _parts(
    transformer: nn.Module, key_map: KeyMap, adapters: Sequence[BaseAdapterFile], partly: bool
) -> dict[str, list[_Part]]:
    """Find what changes which layer, and refuse what does not fit before anything is changed."""
    modules = dict(transformer.named_modules())
    found: dict[str, list[_Part]] = {}
    for adapter in adapters:
        _refuse_extras(adapter)
        _refuse_text_encoder(adapter)
        for name, state in adapter.state.layers.items():
            cuts: Sequence[tuple[str, RowSlice | None]] = undivided_parts(name, key_map)
            for path, cut in cuts or ((name, None),):
                layer = modules.get(path)
                if layer is None and partly:
                    continue
                if layer is None or not is_amendable(layer):
                    raise _unfit(adapter, path, layer, modules)
                if cut is None:
                    _check_size(adapter, name, state, cast("nn.Linear", layer))
                # A simulated step has the same adapters whatever its weights are kept in.
                if _repairs(adapter) and not partly and not is_rounded(layer):
                    continue  # a dense weight has no rounding to repair
                found.setdefault(path, []).append((adapter, name, cut))
    return found


def _repairs(adapter: BaseAdapterFile) -> bool:
    return adapter.when == "quantized"


def _in_samples(adapter: BaseAdapterFile) -> bool:
    return adapter.when != "training"


def _unrepaired(
    transformer: nn.Module, adapters: Sequence[BaseAdapterFile], repaired: Collection[str]
) -> tuple[str, ...]:
    """Name the layers in fewer bits that a ``quantized`` adapter leaves as they are.

    Raises:
        AdapterError: When those are all layers in fewer bits.
    """
    repairing = [each for each in adapters if _repairs(each)]
    packed = [n for n, each in transformer.named_modules() if is_rounded(each)]
    if repairing and packed and not repaired:
        only = repairing[0]
        raise AdapterError(
            f"{only.place}: {only.name} changes none of the {len(packed)} layers in fewer bits",
            f"an accuracy-recovery adapter, with layers such as {packed[0]}",
            "Choose the one that was made for this base and memory.base_format.",
        )
    return tuple(name for name in packed if name not in repaired) if repairing else ()


def _refuse_text_encoder(adapter: BaseAdapterFile) -> None:
    for name in text_layers(adapter.state.layers):
        raise AdapterError(
            f"{adapter.place}: {adapter.name} changes {name}, a layer of a text encoder",
            "layers of the denoiser alone: texts are encoded by the base's own text encoder",
            f"Leave these layers out: {DROP}.",
        )


def _refuse_extras(adapter: BaseAdapterFile) -> None:
    for layer, tensors in adapter.state.extras.items():
        raise AdapterError(
            f"{adapter.place}: {adapter.name} changes {layer}.{next(iter(tensors))}, and "
            f"{len(adapter.state.extras)} layer(s) in all, by something that is not a factor",
            "factors alone: whole biases, norms and weights cannot be left out of samples again",
            "Merge this file into the base and train on the result: adapter-trainer merge. Or "
            "convert it with extras=drop to go on without them.",
        )


def _unfit(
    adapter: BaseAdapterFile, path: str, layer: nn.Module | None, modules: Mapping[str, nn.Module]
) -> AdapterError:
    if layer is None:
        linear = [name for name, each in modules.items() if isinstance(each, nn.Linear)]
        return AdapterError(
            f"{adapter.place}: the layer {path!r} of {adapter.name} is not in the base",
            "an adapter of this base",
            "Choose an adapter that was made for it. "
            f"Nearest layers: {nearest_layers(path, linear)}.",
        )
    return AdapterError(
        f"{adapter.place}: {adapter.name} changes {path}, which is a {type(layer).__name__} here",
        "Linear layers of torch, or of a number format that this trainer reads itself",
        "Merge the adapter into the base and train on the result (adapter-trainer merge), or name "
        "the base's bf16 files.",
    )


def _check_size(adapter: BaseAdapterFile, name: str, state: LayerState, layer: nn.Linear) -> None:
    try:
        check_size(adapter.state.kind, state, (layer.out_features, layer.in_features))
    except AdapterError as error:
        found = f"{adapter.place}: {name} of {adapter.name} is {error.found}"
        raise AdapterError(found, error.expected, error.remedy) from error


def _is_dense(layer: nn.Module) -> bool:
    """Whether a layer's weight can be given other numbers."""
    if type(layer) is not nn.Linear:
        return False
    weight = layer.weight
    return type(weight) in PLAIN_TYPES and weight.dtype in DENSE_DTYPES and not weight.is_meta


def _fused_deltas(
    transformer: nn.Module, key_map: KeyMap, found: Mapping[str, Sequence[_Part]]
) -> _Wholes:
    """Compute what undivided layers change, before the weight of any of their parts is another."""

    def weight_of(path: str) -> Tensor:
        return _weight(transformer.get_submodule(path))

    wholes: _Wholes = {}
    for path, parts in found.items():
        device = cast("Tensor", transformer.get_submodule(path).weight).device
        for adapter, name, cut in parts:
            key = adapter.place, name
            if cut is not None and key not in wholes:
                state = adapter.state
                here = AdapterState(state.kind, {name: _on(state.layers[name], device)})
                wholes[key] = undivided_delta(here, name, weight_of, key_map)
    return wholes


class _Maker:
    """Makes what one layer gets, all of it from the weight that it has at the beginning."""

    def __init__(self, layer: nn.Module, wholes: _Wholes) -> None:
        self._layer, self._wholes = cast("nn.Linear", layer), wholes
        self._weight: Tensor | None = None

    def amendment(self, adapter: BaseAdapterFile, name: str, cut: RowSlice | None) -> Amendment:
        """What an adapter's layer becomes beside the weight."""
        kind, strength = adapter.state.kind, adapter.strength
        layer = _on(adapter.state.layers[name], self._layer.weight.device)
        in_samples = _in_samples(adapter)
        if cut is not None:
            whole = take_rows(self._wholes[adapter.place, name], cut) * strength
            return Amendment(WholePath(whole.to(self._dtype())), in_samples)
        magnitude = layer.tensors.get(DORA_SCALE)
        tensors = {key: each for key, each in layer.tensors.items() if key != DORA_SCALE}
        scale = layer_scale(kind, layer) * strength
        path: DeltaPath
        if kind == LOW_RANK:
            up, down = FILE_RULES[kind].product(as_matrices(tensors), scale)
            path = ProductPath(up.to(self._dtype()), down.to(self._dtype()))
        else:
            path = KindPath(KINDS[kind], as_matrices(tensors), scale, self._layer.in_features)
        if magnitude is None:
            return Amendment(path, in_samples)
        axis = axis_of(magnitude)
        weight = self._own()
        total = weight + layer_delta(kind, layer, weight).to(weight)
        norm = squared_norms(total, axis).sqrt()
        stretch = magnitude_ratio(magnitude.to(norm).flatten(), norm)
        return Amendment(path, in_samples, stretch, axis=axis, strength=strength)

    def merge(self, parts: Sequence[_Part]) -> None:
        """Put adapters into the weight; the sum is computed exactly and rounded once."""
        own = self._own()
        total = own.double()
        for adapter, name, cut in parts:
            state = _on(adapter.state.layers[name], own.device)
            if cut is None:
                delta = effective_delta(adapter.state.kind, state, own)
            else:
                delta = take_rows(self._wholes[adapter.place, name], cut)
            total += delta.double() * adapter.strength
        merged = total.to(self._layer.weight.dtype)
        self._layer.weight = nn.Parameter(merged, requires_grad=False)

    def _own(self) -> Tensor:
        if self._weight is None:
            self._weight = _weight(self._layer)
        return self._weight

    def _dtype(self) -> torch.dtype:
        """The number format that the layer computes in."""
        return getattr(self._layer, "precision", self._layer.weight.dtype)


def _weight(layer: nn.Module) -> Tensor:
    """A layer's own weight, at least in float32."""
    weight = dense_weight(layer, torch.float32).detach()
    return weight.to(torch.promote_types(weight.dtype, torch.float32))


def _on(layer: LayerState, device: torch.device) -> LayerState:
    tensors = {name: each.to(device) for name, each in layer.tensors.items()}
    return LayerState(tensors, layer.alpha, layer.rank, layer.kernel)
