"""The frozen weight of an adapted layer as a plain matrix, dequantized or gathered; or why not."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor
from torch.multiprocessing.reductions import StorageWeakRef

from ...errors import AdapterError
from ...quantization.frozen_linear import FrozenWeight
from ..kernels.convolution import layer_sizes
from .joined_linear import JoinedLinear, frozen_parts
from .quantized_weight import STORED_DTYPES, read_quantized, tensors_behind

DENSE_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
"""Number formats that torch computes with directly."""

PLAIN_TYPES = (Tensor, nn.Parameter, FakeTensor)
"""Not those of a library that packs numbers, or keeps them in parts; a fake one has no numbers, and
stands for a plain one where a step is simulated."""


class StorageMark(StorageWeakRef):
    """Says whether two tensors have the same memory, without keeping it.

    As long as a mark lives, the address that it compares is not given to another storage.
    """

    __slots__ = ()

    @classmethod
    def of(cls, tensor: Tensor) -> StorageMark:
        """The mark of a tensor's memory."""
        return cls(tensor.untyped_storage())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StorageMark) and self.cdata == other.cdata

    def __hash__(self) -> int:
        return hash(self.cdata)

    # Another mark with the same address would give it free twice.
    def __copy__(self) -> StorageMark:
        return self

    def __deepcopy__(self, memo: object) -> StorageMark:
        return self

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        return object, ()


def is_plain(weight: Tensor) -> bool:
    """Whether a weight is what its dtype and shape say, and not a library's packed form of it."""
    return type(weight) in PLAIN_TYPES and weight.dtype in DENSE_DTYPES


def is_dense(weight: Tensor, shape: tuple[int, ...]) -> bool:
    """Whether a weight can be read, and written, as a tensor of a shape."""
    return is_plain(weight) and weight.shape == shape and not weight.is_meta


def dense_weight(layer: nn.Module, dtype: torch.dtype | None = None) -> Tensor:
    """The layer's weight, `[out, in]` or `[out, in, *kernel]`, as one that can be computed with.

    The weight itself where it is dense, else a new tensor, which nothing keeps: of an 8-bit
    floating-point format without a scale of its own, or of a library that `quantized_weight` or
    PEFT knows. The dtype counts where a quantized format leaves a choice.

    Raises:
        AdapterError: When nobody knows how to read it.
    """
    if isinstance(layer, FrozenWeight):
        return layer.dense(dtype)
    if isinstance(layer, JoinedLinear):
        return torch.cat([dense_weight(part, dtype).detach() for part in layer.parts])
    weight = cast("Tensor", layer.weight)
    if is_plain(weight) and weight.dim() >= 2:
        return weight
    if weight.dtype in STORED_DTYPES and type(weight) in PLAIN_TYPES:
        return weight.to(torch.bfloat16)
    return _dequantized(layer, weight, dtype)


def absent_weight_error(name: str) -> AdapterError:
    """The error of a layer that is called while its weight is on the meta device."""
    return AdapterError(
        f"{name} is called while its weight has no values (meta device)",
        "the base's weights in memory when a layer is called, and when an adapter is attached",
        "Bring them back before the forward pass.",
    )


def weight_stamp(layer: nn.Module) -> tuple[Any, ...]:
    """A value that differs whenever the layer's weight may have other numbers than before.

    It sees another tensor or storage, device, dtype and every change that torch counts. A change
    through ``weight.data``, in place and in the same memory, is counted by nobody. Of a tensor with
    a ``weight_identity``, which somebody keeps elsewhere and never changes, it sees that alone. Of
    a layer with amendments it sees which of them count now.
    """
    return tuple(
        (getattr(each, "counting", None), *_parts_stamp(each, cast("Tensor", each.weight)))
        for each in frozen_parts(layer)
    )


def _parts_stamp(layer: nn.Module, weight: Tensor) -> tuple[Any, ...]:
    return tuple(
        getattr(part, "weight_identity", None)
        or (
            StorageMark.of(part),
            part.storage_offset(),
            -1 if part.is_inference() else part._version,
            part.dtype,
            part.device,
            part.shape,
        )
        for part in tensors_behind(layer, weight)
    )


def _dequantized(layer: nn.Module, weight: Tensor, dtype: torch.dtype | None) -> Tensor:
    try:
        with torch.no_grad():
            dense = read_quantized(layer, weight, dtype).detach()
        inputs, outputs, kernel = layer_sizes(layer)
        if type(dense) not in PLAIN_TYPES or dense.dtype not in DENSE_DTYPES:
            raise TypeError(f"it reads as {type(dense).__name__} of {dense.dtype}")
        if dense.shape != (outputs, inputs, *kernel):
            raise TypeError(f"it reads as {tuple(dense.shape)}")
    except (TypeError, AttributeError, NotImplementedError, ValueError) as error:
        raise AdapterError(
            f"a {type(layer).__name__} with a weight of {weight.dtype} {tuple(weight.shape)}, "
            f"which cannot be read ({error})",
            "a weight that can be read as a matrix, for the magnitude that DoRA trains",
            "Set adapter.dora to false, or load the base in bf16.",
        ) from error
    return dense


def is_part(tensor: Tensor) -> bool:
    """Whether this process holds only a part of a factor or weight, which has two axes or more.

    A part of FSDP2 (`fully_shard`) knows how to get the rest, one of `FullyShardedDataParallel` is
    a piece of a vector.
    """
    return hasattr(tensor, "full_tensor") or (tensor.dim() < 2 and tensor.is_floating_point())


def gathered(tensor: Tensor, name: str) -> Tensor:
    """A factor as a whole, wherever its parts are.

    Parts of FSDP2 are gathered, for which every process has to ask at once.

    Raises:
        AdapterError: When it is a part that cannot be gathered from here.
    """
    if hasattr(tensor, "full_tensor"):
        return tensor.full_tensor()  # type: ignore[operator]
    if is_part(tensor):
        raise AdapterError(
            f"{name} has a factor of shape {tuple(tensor.shape)}: FSDP keeps the rest elsewhere",
            "whole factors",
            "Ask inside of `with FullyShardedDataParallel.summon_full_params(module):`.",
        )
    return tensor


def refuse_part(weight: Tensor, name: str, purpose: str) -> None:
    """Refuse a frozen weight whose other parts are in other processes, for what needs it whole.

    Raises:
        AdapterError: When it is a part.
    """
    if is_part(weight):
        raise AdapterError(
            f"{name} has a weight that FSDP keeps in parts",
            f"the whole weight, for {purpose}",
            "Wrap a block around the layer, or the adapted layer, instead of the Linear in it; "
            "merge before anything is wrapped.",
        )
