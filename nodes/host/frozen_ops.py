"""ComfyUI's ops while a run trains on them: their weights are read anew in each pass.

A module keeps its identity, its tensors and its names, and takes another class for the time
(`frozen_modules`), one made of its own class and the frozen counterpart. Whoever holds the module,
as ComfyUI's loaders and caches do, holds it still. What its forward pass gives is what its own
class gives; autograd keeps nothing of its weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ...trainer_core.quantization.frozen_convolution import (
    FrozenConvolution,
    convolution_input_gradient,
)
from ...trainer_core.quantization.frozen_linear import FrozenLinear
from . import comfy_model_management
from .ordinary_tensors import ordinary_alias

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_TRANSPOSED = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)


class FrozenOp(nn.Module):
    """What every frozen op has: its class from before, and a way to its weight.

    Attributes:
        own: The class that the module has when nobody trains.
        clamps_input: Whether its forward pass changes its input in place.
    """

    own: ClassVar[Any]
    clamps_input: ClassVar[bool] = False

    def run_own(self, x: Tensor, **options: Any) -> Tensor:
        """The op's own forward pass; no gradient."""
        x = x.clone() if self.clamps_input else x.detach()
        y = self.own.forward(self, x, **options)
        # Autograd forbids to change a view that a function of one's own returns.
        return y.data if y._is_view() else y

    def with_weight(
        self, like: Tensor, use: Callable[[Tensor, Tensor | None], Any], *, grad: bool = False
    ) -> Any:
        """Read weight and bias for an input, use them, and give them back.

        Args:
            like: Its dtype and device are asked for.
            use: (weight, bias) to what is wanted, which shares no memory with them.
            grad: Whether `use` records a graph of its own, for which they are ordinary tensors.
        """
        weight: Any = self._parameters.get("weight")
        if weight is not None and self._is_at_hand(weight, like):
            bias, ticket = self._parameters.get("bias"), None
        else:
            with torch.no_grad():
                weight, bias, ticket = comfy_model_management.read_weight(self, like)
                weight = _as_numbers(weight, like.dtype)
        try:
            if grad:
                weight, bias = ordinary_alias(weight), ordinary_alias(bias)
            return use(weight, bias)
        finally:
            comfy_model_management.give_back(self, weight, bias, ticket)

    def _is_at_hand(self, weight: Tensor, like: Tensor) -> bool:
        """Whether the weight is what the op would read; it is asked in each pass."""
        known = self.__dict__
        if type(weight) is not nn.Parameter or weight.dtype != like.dtype:
            return False
        if weight.device != like.device or "_v" in known:
            return False
        bias = self._parameters.get("bias")
        if bias is not None and (bias.dtype != like.dtype or bias.device != like.device):
            return False
        return not (known.get("weight_function") or known.get("bias_function"))

    def parts(self) -> dict[str, Tensor]:
        """The tensors that hold the weight, as they are now."""
        weight = cast("Any", self.weight)
        if not isinstance(weight, comfy_model_management.QuantizedTensor):
            return {"weight": weight}
        scales = vars(weight._params).items()
        held = {name: value for name, value in scales if isinstance(value, Tensor)}
        return {"weight": weight._qdata, **held}

    def dense(self, dtype: torch.dtype | None = None) -> Tensor:
        """The weight that it computes with: an ordinary tensor, which nobody else changes."""
        weight = cast("Tensor", self.weight)
        if dtype is None:
            dtype = weight.dtype if weight.dtype in _FLOATS else torch.bfloat16
        like = torch.empty(0, dtype=dtype, device=weight.device)
        return self.with_weight(like, lambda read, _: self._kept(read))

    def _kept(self, read: Tensor) -> Tensor:
        scale = getattr(self, "pre_quant_scale", None)
        if scale is not None:
            return read * scale.to(read)
        # Another memory may be a buffer that the next op's weight comes into.
        mine = read.data_ptr() == cast("Tensor", self.weight).data_ptr()
        return cast("Tensor", ordinary_alias(read)) if mine else read.clone()

    def added_bias(self, y: Tensor) -> Tensor | None:
        """The bias `[out]` that is in an output y of this op; None without one."""
        if getattr(self, "bias", None) is None:
            return None
        return self.with_weight(y, lambda _, bias: cast("Tensor", bias).clone())


def _as_numbers(weight: Any, dtype: torch.dtype) -> Tensor:
    """A weight as it is read, as numbers of a dtype."""
    if isinstance(weight, comfy_model_management.QuantizedTensor):
        weight = weight.dequantize()
    if type(weight) not in (Tensor, nn.Parameter):
        weight = weight.as_subclass(Tensor)
    return weight.to(dtype)


class FrozenLinearOp(FrozenOp, FrozenLinear):
    """A frozen Linear of ComfyUI's, or of a pack's."""

    fetches = True

    def product(self, x: Tensor, *, bias: bool = True) -> Tensor:
        """What `forward` gives, or the same without the bias; no gradient."""
        if bias:
            return self.run_own(x)
        y = self.run_own(x)
        added = self.added_bias(y)
        return y if added is None else y - added

    def input_gradient(self, gradient: Tensor) -> Tensor:
        """The gradient of the input for one of the output: ``gradient @ W``."""
        found = self.with_weight(gradient, lambda weight, _: gradient @ weight)
        scale = getattr(self, "pre_quant_scale", None)
        return found if scale is None else found * scale.to(found)


class FrozenConvolutionOp(FrozenOp, FrozenConvolution):
    """A frozen convolution of ComfyUI's, or of a pack's."""

    def product(self, x: Tensor, **options: Any) -> Tensor:
        """What `forward` gives; no gradient."""
        return self.run_own(x, **options)

    def input_gradient(self, gradient: Tensor, shape: torch.Size, **options: Any) -> Tensor:
        """The gradient of an input of a shape for one of the output."""
        frames = shape[2] if options.get("autopad") == "causal_zero" else None

        def through(weight: Tensor, bias: Tensor | None) -> Tensor:
            del bias
            # A video shorter than the window sees the window's last places.
            used = weight if frames is None else weight[:, :, -frames:]
            return convolution_input_gradient(cast("Any", self), gradient, used, shape)

        return self.with_weight(gradient, through)


class FrozenFormula(FrozenOp):
    """A frozen op whose backward pass computes it again, with the weight read again."""

    def formula(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the op computes."""
        raise NotImplementedError

    def forward(self, input: Tensor, **options: Any) -> Tensor:
        """What the op gives for an input."""
        if options:
            # Such as the size of a transposed convolution's output: no model of ComfyUI's does.
            return self.own.forward(self, input, **options)
        return cast("Tensor", _Recomputed.apply(input, self))


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, op: FrozenFormula) -> Tensor:
        ctx.op = op
        ctx.save_for_backward(x)
        return op.run_own(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:  # type: ignore[override]
        (x,) = ctx.saved_tensors

        def through(weight: Tensor, bias: Tensor | None) -> Tensor:
            with torch.enable_grad():
                again = x.detach().requires_grad_()
                y = ctx.op.formula(again, weight, bias)
            return torch.autograd.grad(y, again, gradient)[0]

        return ctx.op.with_weight(x, through, grad=True), None


class FrozenRMSNorm(FrozenFormula):
    """A frozen RMSNorm."""

    def formula(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the op computes."""
        del bias
        norm = cast("nn.RMSNorm", self)
        return F.rms_norm(x, norm.normalized_shape, weight, norm.eps)


class FrozenBatchNorm(FrozenFormula):
    """A frozen batch normalization, by the statistics that it was trained with."""

    def formula(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the op computes."""
        norm = cast("nn.BatchNorm2d", self)
        mean, variance = (
            cast("Tensor", ordinary_alias(each)).to(x)
            for each in (norm.running_mean, norm.running_var)
        )
        return F.batch_norm(x, mean, variance, weight, bias, False, norm.momentum or 0.0, norm.eps)


class FrozenTransposed(FrozenFormula):
    """A frozen transposed convolution."""

    def formula(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """What the op computes."""
        conv = cast("nn.ConvTranspose2d", self)
        operation = _TRANSPOSED[len(conv.kernel_size) - 1]
        walk = (conv.stride, conv.padding, conv.output_padding, conv.groups, conv.dilation)
        return operation(x, weight, bias, *cast("Any", walk))


class FrozenNorm(FrozenOp):
    """A frozen norm that keeps its input's statistics, as torch's own backward pass does."""

    def normalized(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output, and mean and reciprocal deviation; no gradient."""
        raise NotImplementedError

    def input_gradient(self, gradient: Tensor, x: Tensor, *statistics: Tensor) -> Tensor:
        """The gradient of the input for one of the output."""
        raise NotImplementedError

    def forward(self, input: Tensor) -> Tensor:
        """What the norm gives for an input."""
        return cast("Tensor", _Normalized.apply(input, self))


class _Normalized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: FrozenNorm) -> Tensor:
        ctx.norm = norm
        y, *statistics = norm.normalized(x)
        ctx.save_for_backward(x, *statistics)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None]:  # type: ignore[override]
        return ctx.norm.input_gradient(gradient, *ctx.saved_tensors), None


class FrozenLayerNorm(FrozenNorm):
    """A frozen LayerNorm with a weight."""

    def normalized(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output, and mean and reciprocal deviation; no gradient."""
        norm = cast("nn.LayerNorm", self)
        shape, eps = norm.normalized_shape, norm.eps
        return self.with_weight(x, lambda w, b: torch.native_layer_norm(x, shape, w, b, eps))

    def input_gradient(self, gradient: Tensor, x: Tensor, *statistics: Tensor) -> Tensor:
        """The gradient of the input for one of the output."""
        shape = cast("nn.LayerNorm", self).normalized_shape
        backward = torch.ops.aten.native_layer_norm_backward

        def through(w: Tensor, b: Tensor | None) -> Tensor:
            return backward(gradient, x, shape, *statistics, w, b, [True, False, False])[0]

        return self.with_weight(x, through)


class FrozenGroupNorm(FrozenNorm):
    """A frozen GroupNorm with a weight."""

    def _sizes(self, x: Tensor) -> tuple[int, int, int, int]:
        count, channels = x.shape[0], x.shape[1]
        places = x.numel() // (count * channels)
        return count, channels, places, cast("nn.GroupNorm", self).num_groups

    def normalized(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The output, and mean and reciprocal deviation; no gradient."""
        sizes, eps = self._sizes(x), cast("nn.GroupNorm", self).eps
        lying = x.contiguous(memory_format=_group_norm_layout(x))
        return self.with_weight(x, lambda w, b: torch.native_group_norm(lying, w, b, *sizes, eps))

    def input_gradient(self, gradient: Tensor, x: Tensor, *statistics: Tensor) -> Tensor:
        """The gradient of the input for one of the output."""
        sizes, layout = self._sizes(x), _group_norm_layout(x)
        # The kernel takes both to lie in the same way, and does not look.
        pair = (gradient.contiguous(memory_format=layout), x.contiguous(memory_format=layout))
        backward = torch.ops.aten.native_group_norm_backward

        def through(w: Tensor, b: Tensor | None) -> Tensor:
            del b
            return backward(*pair, *statistics, w, *sizes, [True, False, False])[0]

        return self.with_weight(x, through)


def _group_norm_layout(x: Tensor) -> torch.memory_format:
    """How torch.group_norm lays its input before it calls what is called here."""
    layouts = {4: torch.channels_last, 5: torch.channels_last_3d}
    layout = layouts.get(x.dim(), torch.contiguous_format)
    if x.device.type != "cpu" or x.is_contiguous() or not x.is_contiguous(memory_format=layout):
        return torch.contiguous_format
    return layout


class FrozenEmbedding(FrozenOp):
    """A frozen table: nothing is before it that a gradient could reach."""

    def forward(self, *args: Any, **options: Any) -> Tensor:
        """The rows of the table."""
        with torch.no_grad():
            return self.own.forward(self, *args, **options)


_COUNTERPARTS: tuple[tuple[type[nn.Module], type[FrozenOp]], ...] = (
    (nn.Linear, FrozenLinearOp),
    (nn.Conv1d, FrozenConvolutionOp),
    (nn.Conv2d, FrozenConvolutionOp),
    (nn.Conv3d, FrozenConvolutionOp),
    (nn.LayerNorm, FrozenLayerNorm),
    (nn.GroupNorm, FrozenGroupNorm),
    (nn.RMSNorm, FrozenRMSNorm),
    (nn.BatchNorm1d, FrozenBatchNorm),
    (nn.BatchNorm2d, FrozenBatchNorm),
    (nn.BatchNorm3d, FrozenBatchNorm),
    (nn.ConvTranspose1d, FrozenTransposed),
    (nn.ConvTranspose2d, FrozenTransposed),
    (nn.ConvTranspose3d, FrozenTransposed),
    (nn.Embedding, FrozenEmbedding),
)


def counterpart(module: nn.Module) -> type[FrozenOp] | None:
    """The frozen class for a module; None where it has no weight, or is not an op."""
    if isinstance(module, FrozenOp) or getattr(module, "weight", None) is None:
        return None
    for known, frozen in _COUNTERPARTS:
        if isinstance(module, known):
            return frozen
    # Where weights of several precisions are mixed, a Linear is not torch's.
    mixed = isinstance(module, comfy_model_management.CastOp) and hasattr(module, "in_features")
    return FrozenLinearOp if mixed and not hasattr(module, "num_experts") else None


def frozen_class(own: type[nn.Module], frozen: type[FrozenOp]) -> type[nn.Module]:
    """A class that computes as `own` does and keeps nothing as `frozen` does."""
    known = {"own": own, "clamps_input": issubclass(own, comfy_model_management.Fp8Linear)}
    return type(f"Frozen{own.__name__}", (frozen, own), known)
