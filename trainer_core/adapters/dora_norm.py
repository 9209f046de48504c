"""`CachedNorm`: the norms that DoRA divides by, kept for as long as the weights are the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..errors import AdapterError
from .base.dense_weight import StorageMark, weight_stamp
from .dora_magnitude import DORA_SCALE, Axis, squared_norms
from .kernels.convolution import as_matrices
from .layer.dispatch import ADAPTER_NAME, AdaptedLayer, without_autocast

Kept = tuple[Any, Tensor]
"""A value and what it was computed from."""


class CachedNorm:
    """``|W + D|`` of each row or column that has a magnitude, and ``|W|^2``, of one layer.

    Args:
        layer: The layer, which has or will have a magnitude.
    """

    def __init__(self, layer: AdaptedLayer, axis: Axis) -> None:
        self._layer = layer
        self._axis: Axis = axis
        self._norm: Kept | None = None
        self._own: Kept | None = None

    def present(self) -> Tensor:
        """The norm at strength 1 for the present values of factors and weight, without gradient.

        Raises:
            AdapterError: When the weight has no values, or cannot be read.
        """
        if torch.compiler.is_compiling():
            with self._exactly():
                return self._compute()
        stamp = self._stamp()
        if self._norm is None or self._norm[0] != stamp:
            with self._exactly():
                self._norm = (stamp, self._compute())
        return self._norm[1]

    def of_base(self) -> Tensor:
        """The norm of the base's weight alone, in which training begins."""
        with self._exactly():
            return self._own_squares(self._weight()).sqrt()

    def change(self) -> Tensor:
        """The norm of what the layer's weight is changed by, a float32 scalar where the weight is.

        With s the magnitude over ``|W + D|``, a row or column changes by ``(s - 1) W + s D``. Its
        square is summed of terms that are small themselves, so that none cancels another.
        """
        norm = self.present()
        with self._exactly():
            layer, weight = self._layer, self._weight()
            factors, scale = layer.factors_on(weight.device), layer.scaling[ADAPTER_NAME]
            terms = layer.kind.dora_norm_terms
            assert terms is not None
            inner, squared = terms(weight.flatten(1), as_matrices(factors), self._axis)
            inner, squared = self._per_magnitude(inner), self._per_magnitude(squared)
            magnitude = factors[DORA_SCALE].flatten()
            # A row of zeros has a magnitude of 0, and nothing to be divided by.
            norm = norm.to(magnitude)
            share = torch.where(norm > 0.0, magnitude / norm, 1.0)
            off, own = share - 1.0, self._own_squares(weight).to(magnitude)
            moved = off.square() * own + (share * scale).square() * squared
            moved += 2.0 * share * off * scale * inner
            return moved.sum().clamp(min=0.0).sqrt().to(torch.float32)

    def forget(self, gradient: Tensor) -> None:
        """Recompute the norm next time; a hook on what a gradient passes.

        After a backward pass the factors change, by some optimizers in a way that torch does not
        count.
        """
        del gradient
        self._norm = None

    @contextmanager
    def _exactly(self) -> Iterator[None]:
        # A norm made while inference mode is on could not be used by a later training.
        device = self._layer.base_weight.device
        with torch.inference_mode(False), torch.no_grad(), without_autocast(device):
            yield

    def _stamp(self) -> tuple[Any, ...]:
        layer = self._layer
        factors = layer.equation_factors().values()
        values = tuple((id(each), each._version, StorageMark.of(each)) for each in factors)
        return layer.scaling[ADAPTER_NAME], values, weight_stamp(layer.get_base_layer())

    def _compute(self) -> Tensor:
        """Where the weight is: the factors are smaller."""
        layer, axis = self._layer, self._axis
        scale = layer.scaling[ADAPTER_NAME]
        weight = self._weight()
        if weight.is_meta and not layer.equation_factors()[DORA_SCALE].is_meta:
            raise AdapterError(
                f"{layer.layer_name} has a weight without values (meta device)",
                "the base's weights in memory whenever a layer with DoRA is called",
                "Bring them back before the forward pass, or set adapter.dora to false.",
            )
        factors = layer.factors_on(weight.device)
        own = self._own_squares(weight).to(weight.device)
        terms = layer.kind.dora_norm_terms
        assert terms is not None
        inner, squared = terms(weight.flatten(1), as_matrices(factors), axis)
        added = self._per_magnitude(2.0 * scale * inner + scale * scale * squared)
        return (own + added).clamp_(min=0.0).sqrt_().to(factors[DORA_SCALE].dtype)

    def _weight(self) -> Tensor:
        try:
            return self._layer.frozen_weight()
        except AdapterError as error:
            found = f"{self._layer.layer_name} is {error.found}"
            raise AdapterError(found, error.expected, error.remedy) from error

    def _own_squares(self, weight: Tensor) -> Tensor:
        """``|W|^2``, kept for as long as the weight has the same numbers."""
        own = self._own
        if torch.compiler.is_compiling():
            return self._squares(weight) if own is None or own[1].is_meta else own[1]
        stamp = weight_stamp(self._layer.get_base_layer())
        if own is None or own[0] != stamp:
            own = self._own = (stamp, self._squares(weight))
        elif own[1].device != weight.device:
            # Once: a copy at each step would wait for the device.
            own = self._own = (stamp, own[1].to(weight.device))
        return own[1]

    def _squares(self, weight: Tensor) -> Tensor:
        return self._per_magnitude(squared_norms(weight.flatten(1), self._axis))

    def _per_magnitude(self, sums: Tensor) -> Tensor:
        """A convolution's column is all places of its window."""
        if self._axis == "output":
            return sums
        return sums.view(self._layer.weight_shape[1], -1).sum(dim=1)
