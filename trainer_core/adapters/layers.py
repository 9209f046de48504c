"""PEFT tuner layers whose mathematics is this package's.

They are PEFT's Linear layers by inheritance, so that PEFT and Diffusers recognise them and their
parameters; forward, delta and merge are replaced, because PEFT builds the whole delta weight and
scales LoKr otherwise.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from peft.tuners.loha.layer import Linear as PeftLohaLinear
from peft.tuners.loha.layer import LoHaLayer
from peft.tuners.lokr.layer import Linear as PeftLokrLinear
from peft.tuners.lokr.layer import LoKrLayer
from peft.tuners.lora.layer import Linear as PeftLoraLinear
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.tuners_utils import BaseTunerLayer, check_adapters_to_merge
from torch import Tensor, nn

from ..config import AdapterConfig
from ..errors import AdapterError
from .kind import Factors, Kind, LayerPlan
from .loha import LOHA
from .lokr import LOKR
from .lora import LORA

ADAPTER_NAME = "default"
"""PEFT's name for the adapter; one module carries one of ours."""

DENSE_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class FactorLayer(nn.Module, BaseTunerLayer):
    """A frozen Linear plus the adapter's contribution; the part that all kinds share.

    Attributes:
        kind: The equation.
        strength: Multiplies the adapter's contribution; 0 leaves the base's output untouched.
    """

    kind: ClassVar[Kind]
    strength: float = 1.0
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
        y = self.base_layer(x, *args, **kwargs)
        if self.disable_adapters or self.merged:
            return y
        for adapter in self.active_adapters:
            factors = self.factors(adapter)
            if factors:
                y = self._add(y, x, adapter, factors)
        return y

    def _add(self, y: Tensor, x: Tensor, adapter: str, factors: dict[str, nn.Parameter]) -> Tensor:
        strength = self.strength if adapter == ADAPTER_NAME else 1.0
        scale = self.scaling[adapter] * strength
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
            rows = torch.rand(delta.shape[-1], device=delta.device) < keep
            delta = delta * (rows.to(delta.dtype) / keep)
        return y + delta.to(y.dtype)

    def _contribution(self, x: Tensor, factors: dict[str, nn.Parameter], scale: float) -> Tensor:
        device = x.device.type
        if x.is_meta or not torch.is_autocast_enabled(device):
            return self.kind.apply(x, factors, scale)
        # Autocast would also round the products of factors that are meant to stay in float32.
        x = x.to(torch.get_autocast_dtype(device))
        with torch.autocast(device, enabled=False):
            return self.kind.apply(x, factors, scale)

    def get_delta_weight(self, adapter: str, *args: Any, **kwargs: Any) -> Tensor:
        """The weight difference `[out, in]` at strength 1, in the factors' dtype."""
        del args, kwargs
        with torch.no_grad():
            return self.kind.delta(self.factors(adapter), self.scaling[adapter])

    def check_mergeable(self, name: str) -> None:
        """Refuse weights that a delta cannot be added to.

        Raises:
            AdapterError: For a packed, integer, 8-bit or absent (meta) weight.
        """
        weight = self.base_weight
        shape = (self.out_features, self.in_features)
        if weight.dtype in DENSE_DTYPES and weight.shape == shape and not weight.is_meta:
            return
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


class LoraLinear(FactorLayer, PeftLoraLinear):
    """A Linear with a LoRA."""

    kind = LORA

    def __init__(self, base_layer: nn.Module, plan: LayerPlan, seed: int) -> None:
        # PEFT's own constructor makes other factors, with other first values, and its signature
        # changes between versions; only the containers are wanted.
        nn.Module.__init__(self)
        LoraLayer.__init__(self, base_layer)
        self.fan_in_fan_out = False
        self.is_target_conv_1d_layer = False
        self._active_adapter = ADAPTER_NAME
        self.install(plan, seed)

    def set_size(self, rank: int, alpha: float, scale: float) -> None:
        """Record rank, alpha and scale where PEFT looks for them."""
        self.r[ADAPTER_NAME] = rank
        self.lora_alpha[ADAPTER_NAME] = alpha
        self.scaling[ADAPTER_NAME] = scale
        self.use_rslora[ADAPTER_NAME] = False
        self.use_dora[ADAPTER_NAME] = False
        self.lora_bias[ADAPTER_NAME] = False
        self.lora_dropout[ADAPTER_NAME] = nn.Identity()

    @property
    def adapter_alpha(self) -> float:
        """The recorded alpha."""
        return self.lora_alpha[ADAPTER_NAME]

    def set_factor(self, name: str, parameter: nn.Parameter) -> None:
        """Put one factor into PEFT's pair of Linears."""
        outputs, inputs = parameter.shape
        linear = nn.Linear(inputs, outputs, bias=False, device="meta")
        linear.weight = parameter
        (self.lora_A if name == "lora_down" else self.lora_B)[ADAPTER_NAME] = linear

    def factors(self, adapter: str = ADAPTER_NAME) -> dict[str, nn.Parameter]:
        """The factors of one adapter by name; empty when this layer does not have that adapter."""
        if adapter not in self.lora_A:
            return {}
        pair = {"lora_down": self.lora_A[adapter].weight, "lora_up": self.lora_B[adapter].weight}
        return cast("dict[str, nn.Parameter]", pair)


class _LycorisLinear(FactorLayer):
    """What LoHa and LoKr share: factors are parameters in one dictionary per factor name."""

    alpha: dict[str, float]
    rank_dropout: dict[str, float]
    rank_dropout_scale: dict[str, bool]
    module_dropout: dict[str, float]

    def set_size(self, rank: int, alpha: float, scale: float) -> None:
        """Record rank, alpha and scale where PEFT looks for them."""
        self.r[ADAPTER_NAME] = rank
        self.alpha[ADAPTER_NAME] = alpha
        self.scaling[ADAPTER_NAME] = scale
        self.rank_dropout[ADAPTER_NAME] = 0.0
        self.rank_dropout_scale[ADAPTER_NAME] = False
        self.module_dropout[ADAPTER_NAME] = 0.0

    @property
    def adapter_alpha(self) -> float:
        """The recorded alpha."""
        return self.alpha[ADAPTER_NAME]

    def set_factor(self, name: str, parameter: nn.Parameter) -> None:
        """Put one factor into PEFT's dictionary of that name."""
        getattr(self, name)[ADAPTER_NAME] = parameter

    def factors(self, adapter: str = ADAPTER_NAME) -> dict[str, nn.Parameter]:
        """The factors of one adapter by name; empty when this layer does not have that adapter."""
        present = {name: getattr(self, name) for name in self.kind.factor_names}
        return {name: held[adapter] for name, held in present.items() if adapter in held}


class LohaLinear(_LycorisLinear, PeftLohaLinear):
    """A Linear with a LoHa."""

    kind = LOHA

    def __init__(self, base_layer: nn.Module, plan: LayerPlan, seed: int) -> None:
        LoHaLayer.__init__(self, base_layer)
        self._active_adapter = ADAPTER_NAME
        self.install(plan, seed)


class LokrLinear(_LycorisLinear, PeftLokrLinear):
    """A Linear with a LoKr."""

    kind = LOKR

    def __init__(self, base_layer: nn.Module, plan: LayerPlan, seed: int) -> None:
        LoKrLayer.__init__(self, base_layer)
        self._active_adapter = ADAPTER_NAME
        self.install(plan, seed)
