"""`FactorLayer`: the forward of a frozen layer with its adapter of any kind, and with DoRA."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from torch import Tensor, nn

from ...config import AdapterConfig
from ...errors import AdapterError
from ...quantization.frozen_linear import FrozenWeight
from ...types import LayerState
from ..base.dense_weight import (
    DENSE_DTYPES,
    absent_weight_error,
    dense_weight,
    gathered,
    is_dense,
    refuse_part,
)
from ..base.joined_linear import JoinedLinear, frozen_parts
from ..base.quantized_weight import is_cast_around, is_read_back
from ..dora_magnitude import DORA_SCALE, axis_of, magnitude_ratio, stretch_input, stretch_output
from ..dora_norm import CachedNorm
from ..init.pissa_olora import initial_pair, joined_factors
from ..kernels.adapter_kernel import AdapterKernel, Factors, Operands
from ..kernels.convolution import Window, as_matrices
from ..kernels.fused_linear import AugmentedWeight, augment
from ..kinds.kind import Kind, LayerPlan
from .dispatch import (
    ADAPTER_NAME,
    computes_alone,
    fusable_base,
    is_watched,
    keeping_precision,
    without_autocast,
)
from .shared_input import SharedInput


class FactorLayer(nn.Module, BaseTunerLayer):
    """A frozen layer plus the adapter's contribution; the part that all kinds share.

    As it stands it is for a Linear; `ConvFactorLayer` says what is otherwise with a convolution.

    What a call computes is the first that holds of:

    | when | the output is |
    | --- | --- |
    | adapters are disabled, or merged | the base's |
    | DoRA, at strength 0 | the base's |
    | DoRA, over the inputs | the rest of the table, on the stretched input |
    | DoRA, over the outputs | the rest of the table, stretched |
    | strength 0 | the base's |
    | another adapter, a dropout, autocast, meta | plain: base, then each contribution, in turn |
    | a plain frozen Linear, others on its input | fused, with the shared-input pass |
    | a plain frozen Linear, `exact_delta` | fused, in one product with the augmented weight |
    | a plain frozen Linear | fused, with its weight |
    | a quantized Linear that can be read | fused, with its own forward |
    | anything else, as a convolution | plain |

    Attributes:
        kind: The equation.
        function: As `make_fused_function` makes it; None where there is only the plain form.
        drops: Whether a dropout is set, which works in training mode.
        strength: Multiplies the adapter's contribution; 0 leaves the base's output untouched.
        shared: The layers that are called with the same input as this one.
        alpha_name: PEFT's name of the dictionary of alphas.
        off: Dictionaries of PEFT's that say what is not used, and how they say so.
    """

    kind: ClassVar[Kind]
    function: ClassVar[type[torch.autograd.Function] | None] = None
    strength: float = 1.0
    drops: bool = False
    layer_name: str = ""
    shared: SharedInput | None = None
    alpha_name: ClassVar[str] = "alpha"
    off: ClassVar[Mapping[str, object]] = {}
    _containers: ClassVar[tuple[tuple[str, str], ...]]
    _has_zero_magnitude: bool = False
    scaling: dict[str, float]
    r: dict[str, int]
    config: AdapterConfig
    base_layer: nn.Module
    in_features: int
    out_features: int
    _kernel: AdapterKernel

    @property
    def base_weight(self) -> Tensor:
        """The frozen weight; not always of shape `[out, in]` (packed quantized weights)."""
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

    def frozen_weight(self) -> Tensor:
        """The base's own weight, also while a delta is merged into it."""
        return self._original_weight if self.merged else dense_weight(self.get_base_layer())

    def install(self, plan: LayerPlan, seed: int) -> None:
        """Create and initialize this layer's factors.

        They are float32 whatever the base is (float64 on a float64 base), because the small
        updates of training would be lost in fewer bits.
        """
        weight = self.base_weight
        dtype = torch.float64 if weight.dtype == torch.float64 else torch.float32
        config = self.config = plan.config
        self.layer_name = plan.name
        self.drops = bool(config.dropout or config.rank_dropout or config.module_dropout)
        if isinstance(self.get_base_layer(), JoinedLinear):
            # It has no weight of its own that one product could be made with.
            object.__setattr__(self, "function", None)
        # The fused forms compute with it; where there is none, they are not taken.
        self._kernel = cast("AdapterKernel", self.kind.kernel)
        self._augmented, self._norms = AugmentedWeight(), CachedNorm(self, plan.config.dora_axis)
        factors = self.kind.initial_factors(plan, seed)
        self.set_scale_of(factors, plan.alpha, plan.rank)
        for name, factor in factors.items():
            self.set_factor(name, nn.Parameter(factor.to(weight.device, dtype)))
        decompose = self.kind.decompositions.get(plan.config.init)
        if decompose is not None:
            pair = initial_pair(self.get_base_layer(), plan, seed, decompose)
            self.freeze_factors(*(each.to(dtype) for each in pair))
        if plan.config.dora:
            shape = self.kind.layer_shapes(plan)[DORA_SCALE]
            magnitude = self._norms.of_base().to(dtype).view(shape)
            self.set_factor(DORA_SCALE, nn.Parameter(magnitude))
            self.note_zero_magnitude()
        self.set_adapter([ADAPTER_NAME])
        # A new module starts in training mode, also inside a base that is in evaluation mode.
        self.train(self.get_base_layer().training)

    def set_scale_of(self, factors: Factors, alpha: float, rank: int) -> None:
        """Record rank and alpha, and the scale that the kind makes of them for these factors."""
        scale = self.kind.scale(factors, alpha, rank)
        # Where the kind ignores alpha, the recorded one says the same by PEFT's rule alpha / rank.
        alpha = alpha if alpha / rank == scale else scale * rank
        sizes = {"r": rank, self.alpha_name: alpha, "scaling": scale, **self.off}
        for name, value in sizes.items():
            getattr(self, name)[ADAPTER_NAME] = value

    def note_zero_magnitude(self) -> None:
        """Look whether some of DoRA's magnitude is 0, as that of rows of zeros is."""
        magnitude = self.factors().get(DORA_SCALE)
        known = magnitude is not None and not magnitude.is_meta
        self._has_zero_magnitude = known and not bool(cast("Tensor", magnitude).all())

    @property
    def adapter_alpha(self) -> float:
        """The recorded alpha."""
        return getattr(self, self.alpha_name)[ADAPTER_NAME]

    def set_factor(self, name: str, parameter: nn.Parameter) -> None:
        """Put one factor where PEFT looks for it."""
        getattr(self, dict(self._containers)[name])[ADAPTER_NAME] = parameter

    def factors(self, adapter: str = ADAPTER_NAME) -> dict[str, nn.Parameter]:
        """The factors of one adapter by name; empty when this layer does not have that adapter."""
        modules: dict[str, Any] = self._modules
        found: dict[str, Any] = {}
        for name, place in self._containers:
            # The dictionaries are where torch keeps them; FSDP puts whole tensors beside them.
            held = modules[place]
            factor = held._parameters.get(adapter, held.__dict__.get(adapter))
            if factor is not None:
                found[name] = factor
        return found

    def freeze_factors(self, down: Tensor, up: Tensor) -> None:
        """Train the difference from these factors, which stay as they are."""
        raise NotImplementedError

    def frozen_factors(self) -> dict[str, Tensor]:
        """The frozen factors that the trained ones are differences from; empty without such."""
        return {}

    def equation_factors(self, adapter: str = ADAPTER_NAME) -> dict[str, Tensor]:
        """What the kind's equation takes: the trained factors and, beside them, the frozen ones."""
        trained: dict[str, Tensor] = dict(self.factors(adapter))
        return trained | self.frozen_factors() if adapter == ADAPTER_NAME else trained

    def factors_on(self, device: torch.device, adapter: str = ADAPTER_NAME) -> dict[str, Tensor]:
        """The same on a device; gradients reach the factors wherever they are."""
        held = self.equation_factors(adapter)
        return {name: factor.to(device) for name, factor in held.items()}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> FactorLayer:
        """Move or convert the layer as ``module.to`` does; no factor loses bits by it."""
        held = [*self.factors().values(), *self.frozen_factors().values()]
        held += [each.grad for each in held if each.grad is not None]
        return super()._apply(keeping_precision(fn, held), recurse)

    def layer_state(self) -> LayerState:
        """A copy on the CPU; a difference from frozen factors is written as twice the rank.

        Of factors without numbers, on the meta device, it has the shapes.
        """
        tensors = {
            name: gathered(factor.detach(), self.layer_name).to(
                factor.device if factor.is_meta else "cpu", copy=True
            )
            for name, factor in self.equation_factors().items()
        }
        parts = 2 if self.frozen_factors() else 1
        rank, alpha = self.r[ADAPTER_NAME] * parts, self.adapter_alpha * parts
        return LayerState(joined_factors(tensors), alpha, rank, self.weight_shape[2:])

    def operands_for(self, x: Tensor, factors: Mapping[str, Tensor]) -> Operands:
        """What the kernel takes of this layer's factors, where x is."""
        device = x.device
        moves = self.config.init in self.kind.decompositions
        for factor in factors.values():
            moves = moves or factor.device != device
        return self._kernel.operands(self.factors_on(device) if moves else factors)

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The base's output plus the contribution of every active adapter."""
        if self._disable_adapters or self.merged_adapters:
            if self._disable_adapters and self.merged_adapters:
                self.unmerge()
            return self.base_layer(x, *args, **kwargs)
        if self.config.dora and ADAPTER_NAME in self.active_adapters:
            return self._dora_forward(x, *args, **kwargs)
        return self._sum(x, self.strength, *args, **kwargs)

    def _dora_forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The output of a layer with DoRA."""
        if self.strength == 0.0:
            return self.base_layer(x, *args, **kwargs)
        if self._is_skipped():
            return self._nothing(self._sum(x, 0.0, *args, **kwargs), self.factors_on(x.device))
        y = self._dora_output(x, self.factors()[DORA_SCALE], *args, **kwargs)
        if self.strength == 1.0:
            return y
        plain = self.base_layer(x, *args, **kwargs)
        return plain + (y - plain) * self.strength

    def _dora_output(self, x: Tensor, magnitude: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The output at strength 1 where rows or columns have a magnitude of their own."""
        axis = axis_of(magnitude)
        if magnitude.is_meta and not x.is_meta:
            raise absent_weight_error(self.layer_name)
        magnitude, norm = magnitude.to(x.device).flatten(), self.norm().to(x.device)
        if magnitude.requires_grad and not torch.compiler.is_compiling():
            magnitude.register_hook(self._norms.forget)
        if axis == "input":
            stretched = stretch_input(x, self._per_input(magnitude), self._per_input(norm))
            return self._sum(stretched, 1.0, *args, **kwargs)
        y = self._sum(x, 1.0, *args, **kwargs)
        bias = self._bias(y)
        sizes = self._per_output(magnitude), self._per_output(norm)
        return stretch_output(y, bias, *sizes, zeros=self._has_zero_magnitude)

    def _bias(self, y: Tensor) -> Tensor | None:
        """The base's bias as it is in its output y."""
        base = self.get_base_layer()
        if isinstance(base, FrozenWeight):
            bias = base.added_bias(y)
        else:
            bias = cast("Tensor | None", getattr(base, "bias", None))
        if bias is None:
            return None
        # One that is stored in 8 bits was computed with as y is. Backward has a copy: the layer's
        # own may be away by then, or its memory be another layer's.
        dtype = bias.dtype if bias.dtype in DENSE_DTYPES else y.dtype
        return self._per_output(bias.detach().to(y.device, dtype, copy=True))

    def norm(self) -> Tensor:
        """``|W + D|`` of each row or column that has a magnitude, at strength 1, without gradient.

        It is computed once for the present values of factors and weight: not again for another
        image, or when a checkpointed block runs a second time.
        """
        for part in frozen_parts(self.get_base_layer()):
            weight = cast("Tensor", part.weight)
            refuse_part(weight, self.layer_name, "the magnitude that DoRA divides by")
        return self._norms.present()

    def magnitude_change(self) -> Tensor:
        """The norm of what DoRA makes of the weight at strength 1, less the weight."""
        return self._norms.change()

    def _sum(self, x: Tensor, strength: float, *args: Any, **kwargs: Any) -> Tensor:
        """The base's output plus the contributions, without a magnitude."""
        if strength and self.function is not None and computes_alone(self, x):
            y = self._fused_sum(x, self.scaling[ADAPTER_NAME] * strength)
            if y is not None:
                return y
        parts = frozen_parts(self.get_base_layer())
        absent_part = any(cast("Tensor", part.weight).is_meta for part in parts)
        if absent_part and not (x.is_meta or is_watched(self.base_layer)):
            # torch would multiply with it all the same, into memory that nothing was written to.
            raise absent_weight_error(self.layer_name)
        y = self.base_layer(x, *args, **kwargs)
        if self.kind.multiplies and strength:
            bias = self._bias(y)
            x = y if bias is None else (y - bias).to(y.dtype)
        for adapter in self.active_adapters:
            factors = self.factors_on(x.device, adapter)
            if factors:
                own = strength if adapter == ADAPTER_NAME else 1.0
                y = self._add(y, x, adapter, factors=factors, scale=self.scaling[adapter] * own)
        return y

    def _fused_sum(self, x: Tensor, scale: float) -> Tensor | None:
        """The same by one function, or None where there is none for this base."""
        compiling = torch.compiler.is_compiling()
        function: Any = self.function
        apply = function.apply if compiling else function.direct
        found = fusable_base(self, x)
        if found is None:
            base = self.base_layer
            readable = is_cast_around(base) if is_watched(base) else is_read_back(base)
            if compiling or not readable:
                return None
            operands = self.operands_for(x, self.factors())
            return apply(x, None, None, None, scale, base, None, None, None, *operands)
        weight, bias = found
        if self.shared is not None and not compiling:
            share = self.shared.take(self, x)
            if share is not None:
                link, part, hidden, operands = share
                return apply(x, link, weight, bias, scale, None, None, part, hidden, *operands)
        operands = self.operands_for(x, self.factors())
        augmented = self._augment(weight, operands) if self.config.exact_delta else None
        return apply(x, None, weight, bias, scale, None, augmented, None, None, *operands)

    def _augment(self, weight: Tensor, operands: Operands) -> Tensor | None:
        """The base's weight with free columns beside it, which keep the delta exactly."""
        columns = self._kernel.columns(operands)
        if not columns:
            return None
        if torch.compiler.is_compiling():
            return augment(weight, columns)
        return self._augmented.around(weight, columns)

    def release(self) -> None:
        """Give the base's weight a place of its own again."""
        if self.config.exact_delta:
            self._augmented.release(self.base_weight)

    def _add(self, y: Tensor, x: Tensor, adapter: str, factors: Factors, scale: float) -> Tensor:
        if scale == 0.0:
            return y
        config = self.config
        dropping = self.training and adapter == ADAPTER_NAME
        # With a magnitude it was drawn before: that belongs to what is skipped.
        if dropping and DORA_SCALE not in factors and self._is_skipped():
            return self._nothing(y, factors)
        if dropping and config.dropout:
            x = nn.functional.dropout(x, config.dropout)
        delta = self._contribution(x, factors, scale)
        if dropping and config.rank_dropout:
            keep = 1.0 - config.rank_dropout
            rows = torch.rand(self.weight_shape[0], device=delta.device) < keep
            share = rows.to(delta.dtype) / (keep if config.rank_dropout_scale else 1.0)
            delta = delta * self._per_output(share)
        return y + delta.to(y.dtype)

    def _is_skipped(self) -> bool:
        """Draw whether this call is without the adapter."""
        chance = self.config.module_dropout
        return bool(self.training and chance) and torch.rand(()).item() < chance

    @staticmethod
    def _nothing(y: Tensor, factors: Factors) -> Tensor:
        # Zero times each factor adds nothing, but gives every parameter a gradient: DDP waits
        # for all of them, and a step that skips every layer still has a backward pass.
        return y + sum((factor.sum() * 0.0).to(y.dtype) for factor in factors.values())

    def _contribution(self, x: Tensor, factors: Factors, scale: float) -> Tensor:
        if not x.is_meta and torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        with without_autocast(x.device):
            return self._apply_kind(x, factors, scale)

    def get_delta_weight(self, adapter: str, *args: Any, **kwargs: Any) -> Tensor:
        """The weight difference at strength 1 in the weight's shape and the factors' dtype."""
        del args, kwargs
        with torch.no_grad(), without_autocast(self.base_weight.device):
            factors = self.equation_factors(adapter)
            matrix = self.kind.difference(
                as_matrices(factors), self.scaling[adapter], self.frozen_weight
            )
            delta = matrix.reshape(self.weight_shape)
            if DORA_SCALE not in factors:
                return delta
            magnitude = factors[DORA_SCALE]
            weight = self.frozen_weight().to(magnitude.device, magnitude.dtype)
            stretch = magnitude_ratio(
                magnitude, self.norm().view(magnitude.shape).to(magnitude.device)
            )
            return (weight + delta) * stretch - weight

    def check_mergeable(self, name: str) -> None:
        """Refuse weights that a delta cannot be added to.

        Raises:
            AdapterError: For a packed, integer, 8-bit or absent (meta) weight, or a part of one.
        """
        shape, weight = self.weight_shape, self.base_weight
        refuse_part(weight, name, "a delta to be merged into")
        if not is_dense(weight, shape):
            raise AdapterError(
                f"{name} has a weight of {weight.dtype} {tuple(weight.shape)} on {weight.device} "
                f"({type(weight).__name__})",
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
        self.check_mergeable(self.layer_name)
        with torch.no_grad(), without_autocast(weight.device):
            if not self.merged:
                self._original_weight = weight.detach().clone()
            total = weight.to(torch.promote_types(weight.dtype, torch.float32))
            for name in names:
                strength = self.strength if name == ADAPTER_NAME else 1.0
                total = total + self.get_delta_weight(name) * strength
            self._write(total)
        self.merged_adapters.extend(names)

    def _write(self, weight: Tensor) -> None:
        """Give the base other numbers."""
        base = self.get_base_layer()
        if isinstance(base, JoinedLinear):
            base.write(weight)
        else:
            self.base_weight.copy_(weight)

    def unmerge(self) -> None:
        """Put the weight back that was there before `merge`, bit for bit.

        Raises:
            AdapterError: When the layer's weight has no memory now (meta device).
        """
        if not self.merged:
            return
        self.check_mergeable(self.layer_name)
        with torch.no_grad():
            self._write(self._original_weight)
        del self._original_weight
        self.merged_adapters.clear()


class ConvFactorLayer(FactorLayer):
    """A frozen convolution plus the adapter's contribution.

    It is always computed in the plain form: no factor has the size of the weight, and none of the
    fused function's savings reach a convolution, whose own backward pass keeps its input anyway.
    """

    window: Window

    def install(self, plan: LayerPlan, seed: int) -> None:
        """Create and initialize this layer's factors."""
        self.window = Window.of(self.get_base_layer())
        super().install(plan, seed)

    @property
    def weight_shape(self) -> tuple[int, ...]:
        """Shape of the weight: ``(out, in / groups, *kernel)``."""
        conv = cast("nn.Conv2d", self.get_base_layer())
        return conv.out_channels, conv.in_channels // conv.groups, *conv.kernel_size

    def _apply_kind(self, x: Tensor, factors: Factors, scale: float) -> Tensor:
        if x.dim() == len(self.window.kernel) + 1:
            return self._apply_kind(x.unsqueeze(0), factors, scale).squeeze(0)
        return self.kind.convolve(self.window, x, as_matrices(factors), scale)

    def _per_input(self, values: Tensor) -> Tensor:
        """Every group has the weight's inputs once."""
        return self._per_output(values.repeat(self.window.groups))

    def _per_output(self, values: Tensor) -> Tensor:
        """Channels stand before the axes that the window walks over."""
        return values.view(-1, *[1] * len(self.window.kernel))
