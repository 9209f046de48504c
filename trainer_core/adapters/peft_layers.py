"""PEFT's layers and tuners: the mathematics is this package's, and a plan says what goes where.

They are PEFT's layers by inheritance, so that PEFT and Diffusers recognise them and their
parameters; forward, delta and merge are replaced, because PEFT builds the whole delta weight and
scales LoKr otherwise. Convolutions inherit from what PEFT's own classes for them share: those exist
for some numbers of axes only, and add nothing but constructor and forward.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from peft import LoHaConfig, LoHaModel, LoKrConfig, LoKrModel, LoraConfig, LoraModel, PeftConfig
from peft.tuners.loha.layer import Linear as PeftLohaLinear
from peft.tuners.loha.layer import LoHaLayer
from peft.tuners.lokr.layer import Linear as PeftLokrLinear
from peft.tuners.lokr.layer import LoKrLayer
from peft.tuners.lora.layer import Linear as PeftLoraLinear
from peft.tuners.lora.layer import LoraLayer
from peft.tuners.lycoris_utils import LycorisConfig, LycorisLayer, LycorisTuner
from torch import Tensor, nn

from ..config import AdapterConfig
from .dora import DORA_SCALE
from .init.decomposed import FIRST_DOWN, FIRST_UP
from .kernels.convolution import CONVOLUTIONS
from .kernels.fused import fuse
from .kinds.kind import Kind, LayerPlan
from .kinds.loha import LOHA
from .kinds.lokr import LOKR
from .kinds.lora import LORA
from .kinds.registry import KINDS
from .layer.conv import ConvFactorLayer
from .layer.factor_layer import ADAPTER_NAME, FactorLayer
from .targets import Layer


def _fused(kind: Kind) -> type[torch.autograd.Function] | None:
    """Base and adapter in one function; None where there is only the plain form."""
    return None if kind.kernel is None else fuse(kind.kernel)


class _LoraFactors(FactorLayer):
    """Where PEFT keeps the factors of a LoRA: pairs of small layers."""

    kind = LORA
    adapter_layer_names = (*LoraLayer.adapter_layer_names, "lora_mid", "lora_magnitude")
    _containers = (("lora_mid", "lora_mid"), (DORA_SCALE, "lora_magnitude"))
    lora_A: nn.ModuleDict  # noqa: N815  # PEFT's name
    lora_B: nn.ModuleDict  # noqa: N815
    lora_dropout: nn.ModuleDict
    lora_alpha: dict[str, float]
    use_rslora: dict[str, bool]
    use_dora: dict[str, bool]
    lora_bias: dict[str, bool]
    first_down: Tensor | None
    first_up: Tensor | None

    def _begin(self, base_layer: nn.Module) -> None:
        # PEFT's own constructor makes other factors, initialized otherwise, and its signature
        # changes between versions; only the containers are wanted.
        nn.Module.__init__(self)
        LoraLayer.__init__(cast("LoraLayer", self), base_layer)
        self.lora_mid = nn.ParameterDict()
        self.lora_magnitude = nn.ParameterDict()
        # Not named lora_: PEFT takes whatever is for trained.
        self.register_buffer(FIRST_DOWN, None)
        self.register_buffer(FIRST_UP, None)
        self._active_adapter = ADAPTER_NAME

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
        own = {DORA_SCALE: self.lora_magnitude, "lora_mid": self.lora_mid}
        if name in own:
            own[name][ADAPTER_NAME] = parameter
            return
        outputs, inputs, *kernel = parameter.shape
        if kernel:
            conv_class = cast("type[nn.Conv2d]", CONVOLUTIONS[len(kernel) - 1])
            size = cast("tuple[int, int]", tuple(kernel))
            pair = conv_class(inputs, outputs, size, bias=False, device="meta")
        else:
            pair = nn.Linear(inputs, outputs, bias=False, device="meta")
        pair.weight = parameter
        (self.lora_A if name == "lora_down" else self.lora_B)[ADAPTER_NAME] = pair

    def factors(self, adapter: str = ADAPTER_NAME) -> dict[str, nn.Parameter]:
        """The factors of one adapter by name; empty when this layer does not have that adapter."""
        modules: dict[str, Any] = self._modules
        lower = modules["lora_A"]._modules.get(adapter)
        upper = modules["lora_B"]._modules.get(adapter)
        if lower is None or upper is None:
            return {}
        # The dictionaries are where torch keeps them; FSDP puts whole tensors beside, for a while.
        down, up = lower._parameters.get("weight"), upper._parameters.get("weight")
        pair: dict[str, Any] = {
            "lora_down": lower.weight if down is None else down,
            "lora_up": upper.weight if up is None else up,
        }
        for name, place in self._containers:
            held = modules[place]
            factor = held._parameters.get(adapter, held.__dict__.get(adapter))
            if factor is not None:
                pair[name] = factor
        return pair

    def freeze_factors(self, down: Tensor, up: Tensor) -> None:
        """Train the difference from these factors, which move with the layer."""
        self.first_down, self.first_up = down, up

    def frozen_factors(self) -> dict[str, Tensor]:
        """The frozen factors that the trained ones are differences from; empty without such."""
        if self.first_down is None or self.first_up is None:
            return {}
        return {FIRST_DOWN: self.first_down, FIRST_UP: self.first_up}


class LoraLinear(_LoraFactors, PeftLoraLinear):
    """A Linear with a LoRA."""

    function = _fused(LORA)

    def __init__(self, base_layer: nn.Module, plan: LayerPlan, seed: int) -> None:
        self._begin(base_layer)
        self.fan_in_fan_out = False
        self.is_target_conv_1d_layer = False
        self.install(plan, seed)


class LoraConv(ConvFactorLayer, _LoraFactors, LoraLayer):
    """A Conv1d, Conv2d or Conv3d with a LoRA."""

    def __init__(self, base_layer: nn.Module, plan: LayerPlan, seed: int) -> None:
        self._begin(base_layer)
        self.install(plan, seed)


class _LycorisFactors(FactorLayer):
    """What LoHa and LoKr share: factors are parameters in one dictionary per factor name."""

    magnitude_name: ClassVar[str]
    _containers: ClassVar[tuple[tuple[str, str], ...]]
    alpha: dict[str, float]
    rank_dropout: dict[str, float]
    rank_dropout_scale: dict[str, bool]
    module_dropout: dict[str, float]

    @property
    def _magnitude(self) -> nn.ParameterDict:
        return cast("nn.ParameterDict", getattr(self, self.magnitude_name))

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
        held = self._magnitude if name == DORA_SCALE else getattr(self, name)
        held[ADAPTER_NAME] = parameter

    def factors(self, adapter: str = ADAPTER_NAME) -> dict[str, nn.Parameter]:
        """The factors of one adapter by name; empty when this layer does not have that adapter."""
        modules: dict[str, Any] = self._modules
        found: dict[str, Any] = {}
        for name, place in self._containers:
            held = modules[place]
            factor = held._parameters.get(adapter, held.__dict__.get(adapter))
            if factor is not None:
                found[name] = factor
        return found

    def _get_delta_activations(
        self, adapter_name: str, input: Tensor, *args: Any, **kwargs: Any
    ) -> Tensor:
        """The contribution alone; PEFT's base class asks for it."""
        del args, kwargs
        return self._contribution(input, self.factors(adapter_name), self.scaling[adapter_name])


class _OwnFactors(_LycorisFactors, LycorisLayer):
    """A kind for whose layers PEFT has no class, or one that computes something else."""

    magnitude_name = "adapter_magnitude"

    def __init__(self, base_layer: nn.Module, plan: LayerPlan, seed: int) -> None:
        nn.Module.__init__(self)
        LycorisLayer.__init__(self, base_layer)
        for _, place in self._containers:
            setattr(self, place, nn.ParameterDict())
        self._active_adapter = ADAPTER_NAME
        self.install(plan, seed)

    @property
    def _available_adapters(self) -> set[str]:
        return {ADAPTER_NAME}

    def create_adapter_parameters(self, adapter_name: str, r: int, **kwargs: Any) -> None:
        """PEFT's way to add another adapter, which such a layer does not take."""
        raise NotImplementedError

    def reset_adapter_parameters(self, adapter_name: str) -> None:
        """PEFT's way to start anew, which such a layer does not take."""
        raise NotImplementedError

    def update_layer(self, adapter_name: str, r: int, alpha: float, **kwargs: Any) -> None:
        """PEFT's way to add another adapter, which such a layer does not take."""
        raise NotImplementedError


@functools.cache
def layer_classes(name: str) -> tuple[type[FactorLayer], type[FactorLayer]]:
    """The layers of a kind for which there are none below: of a Linear, and of a convolution.

    Args:
        name: The kind's.
    """
    kind = KINDS[name]
    own = {
        "kind": kind,
        "function": _fused(kind),
        "adapter_layer_names": (*kind.factor_names, _OwnFactors.magnitude_name),
        "_containers": (
            *((each, each) for each in kind.factor_names),
            (DORA_SCALE, _OwnFactors.magnitude_name),
        ),
    }
    title = name.title()
    linear = type(f"{title}Linear", (_OwnFactors,), {**own, "__doc__": f"A Linear of kind {name}."})
    of_conv = {**own, "__doc__": f"A convolution of kind {name}.", "function": None}
    return linear, type(f"{title}Conv", (ConvFactorLayer, _OwnFactors), of_conv)


class _LohaFactors(_LycorisFactors):
    kind = LOHA
    magnitude_name = "hada_magnitude"
    _containers = (*((name, name) for name in LOHA.factor_names), (DORA_SCALE, magnitude_name))
    adapter_layer_names = (*LoHaLayer.adapter_layer_names, "hada_magnitude")

    def __init__(self, base_layer: nn.Module, plan: LayerPlan, seed: int) -> None:
        LoHaLayer.__init__(cast("LoHaLayer", self), base_layer)
        self.hada_magnitude = nn.ParameterDict()
        self._active_adapter = ADAPTER_NAME
        self.install(plan, seed)


class LohaLinear(_LohaFactors, PeftLohaLinear):
    """A Linear with a LoHa."""

    function = _fused(LOHA)


class LohaConv(ConvFactorLayer, _LohaFactors, LoHaLayer):
    """A Conv1d, Conv2d or Conv3d with a LoHa."""


class _LokrFactors(_LycorisFactors):
    kind = LOKR
    magnitude_name = "lokr_magnitude"
    _containers = (*((name, name) for name in LOKR.factor_names), (DORA_SCALE, magnitude_name))
    adapter_layer_names = (*LoKrLayer.adapter_layer_names, "lokr_magnitude")

    def __init__(self, base_layer: nn.Module, plan: LayerPlan, seed: int) -> None:
        LoKrLayer.__init__(cast("LoKrLayer", self), base_layer)
        self.lokr_magnitude = nn.ParameterDict()
        self._active_adapter = ADAPTER_NAME
        self.install(plan, seed)


class LokrLinear(_LokrFactors, PeftLokrLinear):
    """A Linear with a LoKr."""

    function = _fused(LOKR)


class LokrConv(ConvFactorLayer, _LokrFactors, LoKrLayer):
    """A Conv1d, Conv2d or Conv3d with a LoKr."""


@dataclass(frozen=True)
class Job:
    """A layer to adapt and how."""

    layer: Layer
    plan: LayerPlan
    seed: int


class PlannedTuner:
    """Replaces PEFT's choice of layer and size by a plan's; mixed into PEFT's tuners.

    Args:
        model: The module that is adapted in place.
        config: PEFT's description of the adapter, whose targets are the plan's paths.
        jobs: Path to job.
    """

    linear_class: ClassVar[type[Any]]
    conv_class: ClassVar[type[Any]]
    layers: dict[str, FactorLayer]

    def __init__(self, model: nn.Module, config: PeftConfig, jobs: Mapping[str, Job]) -> None:
        # PEFT's constructor already puts the layers in, so the plan has to be there before it.
        self.__dict__["jobs"] = dict(jobs)
        self.__dict__["layers"] = {}
        super().__init__(model, config, ADAPTER_NAME)  # type: ignore[call-arg]

    def _create_and_replace(
        self,
        config: Any,
        adapter_name: str,
        target: Any,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        **kwargs: Any,
    ) -> None:
        del config, adapter_name, target_name, parent, kwargs
        job = self.__dict__["jobs"][current_key]
        layer_class = self.conv_class if job.plan.kernel else self.linear_class
        replacement = layer_class(target, job.plan, job.seed)
        for owner, attribute in job.layer.places:
            setattr(owner, attribute, replacement)
        self.__dict__["layers"][job.plan.name] = replacement


class LoraTuner(PlannedTuner, LoraModel):  # type: ignore[misc]  # PEFT names a parameter otherwise
    """LoRA."""

    linear_class = LoraLinear
    conv_class = LoraConv


class LohaTuner(PlannedTuner, LoHaModel):
    """LoHa."""

    linear_class = LohaLinear
    conv_class = LohaConv


class LokrTuner(PlannedTuner, LoKrModel):
    """LoKr."""

    linear_class = LokrLinear
    conv_class = LokrConv


@dataclass
class OwnConfig(LycorisConfig):
    """PEFT's description of a kind that it has none for; `OwnTuner` plans by the jobs instead."""

    target_modules: str = ""
    exclude_modules: str | None = None


class OwnTuner(PlannedTuner, LycorisTuner):  # type: ignore[misc]  # as above
    """A kind for which PEFT has no tuner, or one that computes something else."""

    def _mark_only_adapters_as_trainable(self, model: nn.Module) -> None:
        """Leave it to `attach`, which freezes the base: PEFT tells parameters by one prefix."""


@functools.cache
def _own_tuner(name: str) -> type[OwnTuner]:
    linear, conv = layer_classes(name)
    members = {
        "prefix": KINDS[name].factor_names[0],
        "linear_class": linear,
        "conv_class": conv,
        "__doc__": f"Kind {name}.",
    }
    return type(f"{name.title()}Tuner", (OwnTuner,), members)


def _target_expression(paths: list[str]) -> str:
    # PEFT takes a list's entries as endings of names, but a string as one whole expression.
    return "|".join(re.escape(path) for path in paths)


def _lora_config(config: AdapterConfig, targets: str) -> PeftConfig:
    return LoraConfig(
        r=config.rank,
        lora_alpha=config.rank if config.alpha is None else config.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        lora_dropout=config.dropout,
    )


def _loha_config(config: AdapterConfig, targets: str) -> PeftConfig:
    return LoHaConfig(
        r=config.rank,
        alpha=config.rank if config.alpha is None else config.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        rank_dropout=config.rank_dropout,
        module_dropout=config.module_dropout,
    )


def _lokr_config(config: AdapterConfig, targets: str) -> PeftConfig:
    return LoKrConfig(
        r=config.rank,
        alpha=config.rank if config.alpha is None else config.alpha,  # type: ignore[arg-type]
        target_modules=targets,
        rank_dropout=config.rank_dropout,
        module_dropout=config.module_dropout,
        decompose_both=config.decompose_both,
        decompose_factor=config.factor,
    )


_TUNERS: dict[str, tuple[type[Any], Callable[[AdapterConfig, str], PeftConfig]]] = {
    "lora": (LoraTuner, _lora_config),
    "loha": (LohaTuner, _loha_config),
    "lokr": (LokrTuner, _lokr_config),
}


def inject(module: nn.Module, config: AdapterConfig, jobs: list[Job]) -> dict[str, FactorLayer]:
    """Put an adapter into a module, in place.

    Args:
        module: The module.
        config: The adapter's settings.
        jobs: What to adapt.

    Returns:
        Layer name to the new layer.
    """
    by_path = {job.plan.path: job for job in jobs}
    targets = _target_expression(list(by_path))
    if config.kind in _TUNERS:
        tuner_class, make_config = _TUNERS[config.kind]
        peft_config = make_config(config, targets)
    else:
        tuner_class, peft_config = _own_tuner(config.kind), OwnConfig(target_modules=targets)
    return tuner_class(module, peft_config, by_path).__dict__["layers"]
