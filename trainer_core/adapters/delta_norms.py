"""How large an adapter is beside the weights that it changes, layer by layer, for metrics.

Nothing of a layer's size is built: the norm of a product follows from its factors' inner products,
which are rank x rank.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .base.dense_weight import is_part
from .init.pissa_olora import joined_factors
from .kernels.convolution import as_matrices
from .kinds.registry import FILE_RULES
from .layer.dispatch import ADAPTER_NAME

if TYPE_CHECKING:
    from .attachment import AttachedAdapter
    from .layer.factor_layer import FactorLayer


@torch.no_grad()
def delta_norms(adapter: AttachedAdapter) -> dict[str, Tensor]:
    """The Frobenius norm of what each layer's weight is changed by, without a wait for a device.

    With DoRA it is that of ``m (W + D) / |W + D| - W``, for which the weight is read. Of a kind
    that multiplies the weight by a rotation R it is that of ``R - I``. Each is a float32 scalar
    where the layer's factors are, or with DoRA its weight.
    """
    return {name: _delta_norm(layer) for name, layer in adapter.layers.items()}


def _delta_norm(layer: FactorLayer) -> Tensor:
    if layer.config.dora:
        return layer.magnitude_change()
    factors = {
        name: each.detach().to(torch.promote_types(each.dtype, torch.float32))
        for name, each in layer.equation_factors().items()
    }
    norm = FILE_RULES[layer.kind.name].norm_on_device(as_matrices(joined_factors(factors)))
    return norm * abs(layer.scaling[ADAPTER_NAME])


@torch.no_grad()
def weight_norms(adapter: AttachedAdapter) -> dict[str, float]:
    """The Frobenius norm of each adapted layer's frozen weight; of a rotation's, that of I.

    Each weight is read once, in whatever format and wherever it is kept, and one that is packed is
    unpacked for that moment. One in RAM is sent to the adapter's device for it: with FLUX's 24 GB
    swapped the step that takes them was 8 s longer. It waits once for each device. Layers whose
    weight has no values here, or is a part of one, are left out.
    """
    known: dict[str, float] = {}
    pending: dict[torch.device, dict[str, Tensor]] = {}
    for name, layer in adapter.layers.items():
        if layer.kind.multiplies:
            known[name] = math.sqrt(layer.weight_shape[0])
            continue
        if layer.base_weight.is_meta or is_part(layer.base_weight):
            continue
        here = next(iter(layer.factors().values())).device
        weight = layer.frozen_weight().detach().to(here, non_blocking=True)
        norm = torch.linalg.vector_norm(weight, dtype=torch.float32)
        pending.setdefault(norm.device, {})[name] = norm
    for norms in pending.values():
        known |= read_together(norms)
    return {name: known[name] for name in adapter.names if name in known}


def read_together(scalars: dict[str, Tensor]) -> dict[str, float]:
    """Read scalars of one device and dtype with one wait."""
    if not scalars:
        return {}
    return dict(zip(scalars, torch.stack(list(scalars.values())).tolist(), strict=True))


class RelativeNorms:
    """The norm of each layer's change over that of its frozen weight.

    The weights are read when it is asked for the first time, as they stay what they are.

    Args:
        adapter: Attached; it may go on training.
    """

    def __init__(self, adapter: AttachedAdapter) -> None:
        self._adapter = adapter
        self._weights: dict[str, float] | None = None

    @property
    def weights(self) -> dict[str, float]:
        """`weight_norms`, without layers of zeros."""
        if self._weights is None:
            found = weight_norms(self._adapter)
            self._weights = {name: norm for name, norm in found.items() if norm > 0.0}
        return self._weights

    def tensors(self) -> dict[str, Tensor]:
        """The ratios as float32 scalars on the device; nothing waits for it.

        Nothing but the first call, which reads the weights.
        """
        norms, weights = delta_norms(self._adapter), self.weights
        return {name: norms[name] / weight for name, weight in weights.items()}

    def deltas(self) -> dict[str, float]:
        """The norms of the changes, of the layers in `weights`; it waits once for the device."""
        norms = delta_norms(self._adapter)
        by_device: dict[torch.device, dict[str, Tensor]] = {}
        for name in self.weights:
            by_device.setdefault(norms[name].device, {})[name] = norms[name]
        read: dict[str, float] = {}
        for each in by_device.values():
            read |= read_together(each)
        return read
