"""`FactorLayer`: a frozen layer and its adapter, the part that all kinds share."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from torch import Tensor, nn

from ..config import AdapterConfig
from ..errors import AdapterError
from .base_weight import DENSE_DTYPES, dense_weight, is_dense
from .convolution import as_matrices
from .fused import Factors, FusedApply, make_room
from .kind import Kind, LayerPlan
from .magnitude import (
    DORA_SCALE,
    Axis,
    axis_of,
    ratio,
    squared_lengths,
    stretch_input,
    stretch_output,
)

ADAPTER_NAME = "default"
"""PEFT's name for the adapter; one module carries one of ours."""


def _is_watched(module: nn.Module) -> bool:
    """Whether somebody's hook or replaced forward wants this module to be called."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
    return any(hooks) or bool(module._backward_pre_hooks) or "forward" in vars(module)


class FactorLayer(nn.Module, BaseTunerLayer):
    """A frozen layer plus the adapter's contribution; the part that all kinds share.

    As it stands it is for a Linear; `ConvFactorLayer` says what is otherwise with a convolution.

    Attributes:
        kind: The equation.
        fused: Base and adapter in one function (`fuse`).
        strength: Multiplies the adapter's contribution; 0 leaves the base's output untouched.
    """

    kind: ClassVar[Kind]
    fused: ClassVar[FusedApply]
    strength: float = 1.0
    _own_lengths: Tensor | None = None
    _norm: tuple[Any, Tensor] | None = None
    _room: Tensor | None = None
    scaling: dict[str, float]
    r: dict[str, int]
    config: AdapterConfig
    base_layer: nn.Module
    in_features: int
    out_features: int

    @property
    def base_weight(self) -> Tensor:
        """The frozen weight; not always of shape `[out, in]` (packed quantised weights)."""
        return cast("Tensor", self.get_base_layer().weight)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight as the layer computes with it."""
        return self.out_features, self.in_features

    def _apply_kind(self, x: Tensor, factors: Factors, scale: float) -> Tensor:
        """The contribution alone, in the dtype of x."""
        return self.kind.apply(x, factors, scale)

    def _per_input(self, values: Tensor) -> Tensor:
        """Values of the weight's inputs `[in]`, so that they multiply an input."""
        return values

    def _per_output(self, values: Tensor) -> Tensor:
        """Values of the weight's outputs `[out]`, so that they multiply an output."""
        return values

    def _frozen_weight(self) -> Tensor:
        """The base's own weight, also while a delta is merged into it."""
        return self._original_weight if self.merged else dense_weight(self.get_base_layer())

    def install(self, plan: LayerPlan, seed: int) -> None:
        """Create this layer's factors with their first values.

        They are float32 whatever the base is (float64 on a float64 base), because the small
        updates of training would be lost in fewer bits.
        """
        weight = self.base_weight
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        self.config = plan.config
        self.set_scale_of(self._blank(plan), plan.alpha, plan.rank)
        for name, factor in self.kind.initial_factors(plan, seed).items():
            self.set_factor(name, nn.Parameter(factor.to(weight.device, dtype)))
        if plan.config.dora:
            own = self._squared_lengths(plan.config.dora_axis)
            shape = self.kind.layer_shapes(plan)[DORA_SCALE]
            self.set_factor(DORA_SCALE, nn.Parameter(own.sqrt().to(dtype).view(shape)))
            self._own_lengths = own
        self.set_adapter([ADAPTER_NAME])
        # A new module starts in training mode, also inside a base that is in evaluation mode.
        self.train(self.get_base_layer().training)

    def set_scale_of(self, factors: Factors, alpha: float, rank: int) -> None:
        """Record rank and alpha, and the scale that the kind makes of them for these factors."""
        scale = self.kind.scale(factors, alpha, rank)
        # Where the kind ignores alpha, the recorded one says the same by PEFT's rule alpha / rank.
        self.set_size(rank, alpha if alpha / rank == scale else scale * rank, scale)

    def _blank(self, plan: LayerPlan) -> dict[str, Tensor]:
        return {name: torch.empty(0) for name in self.kind.shapes(plan)}

    def set_size(self, rank: int, alpha: float, scale: float) -> None:
        """Record rank, alpha and scale where PEFT looks for them."""
        raise NotImplementedError

    @property
    def adapter_alpha(self) -> float:
        """The recorded alpha."""
        raise NotImplementedError

    def set_factor(self, name: str, parameter: nn.Parameter) -> None:
        """Put one factor where PEFT looks for it."""
        raise NotImplementedError

    def factors(self, adapter: str = ADAPTER_NAME) -> dict[str, nn.Parameter]:
        """The factors of one adapter by name; empty when this layer does not have that adapter."""
        raise NotImplementedError

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The base's output plus the contribution of every active adapter."""
        if self.disable_adapters and self.merged:
            self.unmerge()
        if self.disable_adapters or self.merged:
            return self.base_layer(x, *args, **kwargs)
        lengths = self.factors().get(DORA_SCALE)
        if lengths is None or ADAPTER_NAME not in self.active_adapters:
            return self._sum(x, self.strength, *args, **kwargs)
        if self.strength == 0.0:
            return self.base_layer(x, *args, **kwargs)
        y = self._stretched(x, lengths, *args, **kwargs)
        if self.strength == 1.0:
            return y
        plain = self.base_layer(x, *args, **kwargs)
        return plain + (y - plain) * self.strength

    def _stretched(self, x: Tensor, lengths: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The output at strength 1 where rows or columns have lengths of their own."""
        axis = axis_of(lengths)
        lengths, norm = lengths.to(x.device).flatten(), self.norm().to(x.device)
        if axis == "input":
            stretched = stretch_input(x, self._per_input(lengths), self._per_input(norm))
            return self._sum(stretched, 1.0, *args, **kwargs)
        y = self._sum(x, 1.0, *args, **kwargs)
        bias = cast("Tensor | None", getattr(self.get_base_layer(), "bias", None))
        bias = None if bias is None else self._per_output(bias)
        return stretch_output(y, bias, self._per_output(lengths), self._per_output(norm))

    def norm(self) -> Tensor:
        """``|W + D|`` of each row or column that has a length, at strength 1, without gradient.

        It is computed once for the factors' present values: not again for another micro-batch or
        when a checkpointed block runs a second time.
        """
        factors = self.factors()
        values = tuple((id(each), each._version, each.device) for each in factors.values())
        stamp = (self.scaling[ADAPTER_NAME], values)
        if torch.compiler.is_compiling() or self._norm is None or self._norm[0] != stamp:
            # A norm made while inference mode is on could not be used by a later training.
            with torch.inference_mode(False), torch.no_grad():
                self._norm = (stamp, self._compute_norm(factors))
        return self._norm[1]

    def _compute_norm(self, factors: Factors) -> Tensor:
        weight, lengths = self._frozen_weight(), factors[DORA_SCALE]
        axis, scale = axis_of(lengths), self.scaling[ADAPTER_NAME]
        own = self._own_lengths
        if own is None or own.is_meta:
            own = self._own_lengths = self._squared_lengths(axis)
        matrix = weight.to(lengths.device).flatten(1)
        inner, squared = self.kind.overlap(matrix, as_matrices(factors), axis)
        added = self._per_row_or_column(2.0 * scale * inner + scale * scale * squared, axis)
        return (own.to(lengths.device) + added).clamp_(min=0.0).sqrt_().to(lengths.dtype)

    def _squared_lengths(self, axis: Axis) -> Tensor:
        """Squared norm of each row or column of the base's weight."""
        return self._per_row_or_column(
            squared_lengths(self._frozen_weight().flatten(1), axis), axis
        )

    def _per_row_or_column(self, sums: Tensor, axis: Axis) -> Tensor:
        """A convolution's column is all places of its window."""
        return sums if axis == "output" else sums.view(self.weight_shape[1], -1).sum(dim=1)

    def _sum(self, x: Tensor, strength: float, *args: Any, **kwargs: Any) -> Tensor:
        """The base's output plus the contributions, without lengths."""
        linear = self._fusable(x) if strength else None
        if linear is not None:
            scale = self.scaling[ADAPTER_NAME] * strength
            operands = self.kind.branch.operands(self.factors())
            room = self._room_for(linear, self.kind.branch.columns(operands))
            return self.fused(x, linear.weight, linear.bias, scale, room, *operands)
        y = self.base_layer(x, *args, **kwargs)
        for adapter in self.active_adapters:
            factors = self.factors(adapter)
            if factors:
                own = strength if adapter == ADAPTER_NAME else 1.0
                y = self._add(y, x, adapter, factors, self.scaling[adapter] * own)
        return y

    def _room_for(self, linear: nn.Linear, columns: int) -> Tensor | None:
        """The base's weight with free columns beside it, where the delta is to be kept exactly."""
        if not (self.config.exact_delta and columns):
            return None
        if torch.compiler.is_compiling():
            return make_room(linear.weight, columns)
        weight = linear.weight
        if self._room is None or self._room.data_ptr() != weight.data_ptr():
            with torch.inference_mode(False), torch.no_grad():
                self._room = make_room(weight, columns)
                # The weight moves into it, so that it is held once.
                weight.data = self._room[:, : weight.shape[1]]
        return self._room

    def release(self) -> None:
        """Give the base's weight a place of its own again."""
        if self._room is not None:
            weight = self.base_weight
            weight.data = weight.data.contiguous()
            self._room = None

    def _fusable(self, x: Tensor) -> nn.Linear | None:
        """The base, where it and the adapter can be computed by one function.

        That asks for an ordinary Linear with nothing hung on it, a weight that can be read as a
        matrix in the input's precision, and an adapter without dropout.
        """
        base, config = self.base_layer, self.config
        if type(base) is not nn.Linear or self.active_adapters != [ADAPTER_NAME]:
            return None
        weight = base.weight
        drops = config.dropout or config.rank_dropout or config.module_dropout
        readable = weight.dtype == x.dtype and x.dtype in DENSE_DTYPES and not x.is_meta
        if not readable or weight.requires_grad or (self.training and drops):
            return None
        if _is_watched(base) or torch.is_autocast_enabled(x.device.type):
            return None
        return base

    def _add(
        self, y: Tensor, x: Tensor, adapter: str, factors: dict[str, nn.Parameter], scale: float
    ) -> Tensor:
        if scale == 0.0:
            return y
        config = self.config
        dropping = self.training and adapter == ADAPTER_NAME
        if dropping and config.module_dropout and torch.rand(()).item() < config.module_dropout:
            # Zero times each factor adds nothing, but gives every parameter a gradient: DDP waits
            # for all of them, and a step that skips every layer still has a backward pass.
            return y + sum((factor.sum() * 0.0).to(y.dtype) for factor in factors.values())
        if dropping and config.dropout:
            x = nn.functional.dropout(x, config.dropout)
        delta = self._contribution(x, factors, scale)
        if dropping and config.rank_dropout:
            keep = 1.0 - config.rank_dropout
            rows = torch.rand(self.weight_shape[0], device=delta.device) < keep
            share = rows.to(delta.dtype) / (keep if config.rank_dropout_scale else 1.0)
            delta = delta * self._per_output(share)
        return y + delta.to(y.dtype)

    def _contribution(self, x: Tensor, factors: dict[str, nn.Parameter], scale: float) -> Tensor:
        device = x.device.type
        if x.is_meta or not torch.is_autocast_enabled(device):
            return self._apply_kind(x, factors, scale)
        # Autocast would also round the products of factors that are meant to stay in float32.
        x = x.to(torch.get_autocast_dtype(device))
        with torch.autocast(device, enabled=False):
            return self._apply_kind(x, factors, scale)

    def get_delta_weight(self, adapter: str, *args: Any, **kwargs: Any) -> Tensor:
        """The weight difference at strength 1 in the weight's shape and the factors' dtype."""
        del args, kwargs
        factors = self.factors(adapter)
        with torch.no_grad():
            matrix = self.kind.delta(as_matrices(factors), self.scaling[adapter])
            delta = matrix.reshape(self.weight_shape)
            if DORA_SCALE not in factors:
                return delta
            lengths = factors[DORA_SCALE]
            weight = self._frozen_weight().to(lengths.device, lengths.dtype)
            stretch = ratio(lengths, self.norm().view(lengths.shape).to(lengths.device))
            return (weight + delta) * stretch - weight

    def check_mergeable(self, name: str) -> None:
        """Refuse weights that a delta cannot be added to.

        Raises:
            AdapterError: For a packed, integer, 8-bit or absent (meta) weight.
        """
        shape, weight = self.weight_shape, self.base_weight
        if not is_dense(weight, shape):
            raise AdapterError(
                f"{name} has a weight of {weight.dtype} {tuple(weight.shape)} on {weight.device}",
                f"a floating-point weight of shape {shape} to merge into",
                "Load the base in bf16 or fp32 to merge; adapters also work without merging.",
            )

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Add the deltas of the named (or active) adapters to the base's weight.

        The sum is rounded once, and the weight from before is kept for `unmerge`.
        """
        del safe_merge
        names = [n for n in check_adapters_to_merge(self, adapter_names) if self.factors(n)]
        if not names:
            return
        weight = self.base_weight
        with torch.no_grad():
            if not self.merged:
                self._original_weight = weight.detach().clone()
            total = weight.to(torch.promote_types(weight.dtype, torch.float32))
            for name in names:
                strength = self.strength if name == ADAPTER_NAME else 1.0
                total = total + self.get_delta_weight(name) * strength
            weight.copy_(total)
        self.merged_adapters.extend(names)

    def unmerge(self) -> None:
        """Put the weight back that was there before `merge`, bit for bit."""
        if not self.merged:
            return
        with torch.no_grad():
            self.base_weight.copy_(self._original_weight)
        del self._original_weight
        self.merged_adapters.clear()
