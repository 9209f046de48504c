"""How many bytes a base's weights take in each format, to the byte, from a model without memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..quantization.quantized_linear import QuantizedLinear
from ..quantization.stored_format import StoredFormat

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class BaseBytes:
    """What the weights of a base take in one format.

    Attributes:
        blocks: Of each block, in the order in which they are called.
        groups: For each block, which of those of equal layout it belongs to.
        outside: Of everything that is in no block.
    """

    blocks: tuple[int, ...]
    groups: tuple[int, ...]
    outside: int

    @property
    def total(self) -> int:
        """Of the whole base."""
        return self.outside + sum(self.blocks)


def base_bytes(
    transformer: nn.Module,
    lists: Sequence[str],
    dtype: torch.dtype,
    stored: StoredFormat | None = None,
    known: Mapping[str, int] | None = None,
) -> BaseBytes:
    """Count the bytes of a base's weights.

    Args:
        transformer: The denoiser, on any device, without an adapter.
        lists: Its lists of repeated blocks (`LayerSpec.repeated_blocks`).
        dtype: What it is loaded in; what Diffusers keeps in float32 stays so.
        stored: How matrices of blocks are kept, where it fits them; None as numbers of ``dtype``.
        known: Bytes of weights by name, where a file decides.
    """
    precise, known = _precise(transformer), known or {}
    blocks: list[int] = []
    layouts: list[object] = []
    inside: set[int] = set()
    for name in lists:
        for number, block in transformer.get_submodule(name).named_children():
            sizes: list[int] = []
            for path, tensor in _weights(block):
                inside.add(id(tensor))
                owner, _, leaf = path.rpartition(".")
                kept = stored if leaf == "weight" else None
                full = f"{name}.{number}.{path}"
                if full in known:
                    sizes.append(known[full])
                elif kept is not None and packs(block.get_submodule(owner), kept):
                    rows, columns = tensor.shape
                    sizes.append(kept.stored_bytes((rows, columns)))
                else:
                    sizes.append(_size(tensor, full, dtype, precise))
            blocks.append(sum(sizes))
            places = [(path, tensor.shape) for path, tensor in _weights(block)]
            layouts.append([*zip(places, sizes, strict=True)])
    groups = tuple(layouts.index(each) for each in layouts)
    outside = sum(
        known.get(path, _size(tensor, path, dtype, precise))
        for path, tensor in _weights(transformer)
        if id(tensor) not in inside
    )
    return BaseBytes(tuple(blocks), groups, outside)


def packs(layer: nn.Module, stored: StoredFormat) -> bool:
    """Whether a layer of a block is one of those that are kept in a format."""
    return type(layer) is nn.Linear and stored.fits((layer.out_features, layer.in_features))


def pack_blocks(transformer: nn.Module, lists: Sequence[str], stored: StoredFormat) -> None:
    """Keep the matrices of a model's blocks in a format, in place."""
    for name in lists:
        found = dict(transformer.get_submodule(name).named_modules())
        for path, layer in found.items():
            if packs(layer, stored) and isinstance(layer, nn.Linear):
                parent, _, leaf = path.rpartition(".")
                shape = layer.out_features, layer.in_features
                packed = QuantizedLinear(stored, shape, stored.pack(layer.weight), layer.bias)
                found[parent]._modules[leaf] = packed


def cast_base(transformer: Model, dtype: torch.dtype) -> Model:
    """Give a model's weights a number format, as loading does; in place."""
    precise = _precise(transformer)
    for path, module in transformer.named_modules():
        wanted = torch.float32 if _is_precise(f"{path}.", precise) else dtype
        for held in (module._parameters, module._buffers):
            places: dict[str, Any] = held
            for name, tensor in held.items():
                if tensor is not None and tensor.is_floating_point():
                    cast = tensor.detach().to(wanted)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    places[name] = nn.Parameter(cast, requires_grad=False) if is_parameter else cast
    return transformer


def _weights(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(), *module.named_buffers()]


def _size(tensor: Tensor, path: str, dtype: torch.dtype, precise: frozenset[str]) -> int:
    if not tensor.is_floating_point():
        return tensor.numel() * tensor.element_size()
    return tensor.numel() * (torch.float32 if _is_precise(path, precise) else dtype).itemsize


def _precise(transformer: nn.Module) -> frozenset[str]:
    """Names of the modules that Diffusers keeps in float32."""
    return frozenset(getattr(transformer, "_keep_in_fp32_modules", None) or ())


def _is_precise(path: str, precise: frozenset[str]) -> bool:
    return not precise.isdisjoint(path.split("."))
