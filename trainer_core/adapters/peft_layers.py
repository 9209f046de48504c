"""PEFT's layers and tuners: the mathematics is this package's, and a plan says what goes where.

They are PEFT's layers by inheritance, so that PEFT and Diffusers recognise them and their
parameters; forward, delta and merge are replaced, because PEFT builds the whole delta weight and
scales LoKr otherwise. Convolutions inherit from what PEFT's own classes for them share: those exist
for some numbers of axes only, and add nothing but constructor and forward.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
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
from .dora_magnitude import DORA_SCALE
from .init.pissa_olora import FIRST_DOWN, FIRST_UP
from .kernels.convolution import CONVOLUTIONS
from .kernels.fused_linear import make_fused_function
from .kinds.kind import Kind, LayerPlan
from .kinds.loha import LOHA
from .kinds.lokr import LOKR
from .kinds.lora import LORA
from .kinds.registry import KINDS
from .layer.factor_layer import ADAPTER_NAME, ConvFactorLayer, FactorLayer
from .targets import Layer


def _fused(kind: Kind) -> type[torch.autograd.Function] | None:
    """Base and adapter in one function; None where there is only the plain form."""
    return None if kind.kernel is None else make_fused_function(kind.kernel)


class _LoraFactors(FactorLayer):
    """Where PEFT keeps the factors of a LoRA: pairs of small layers."""

    kind = LORA
    adapter_layer_names = (*LoraLayer.adapter_layer_names, "lora_mid", "lora_magnitude")
    alpha_name = "lora_alpha"
    off: ClassVar = dict.fromkeys(("use_rslora", "use_dora", "lora_bias"), False)
    _containers = (("lora_mid", "lora_mid"), (DORA_SCALE, "lora_magnitude"))
    lora_A: nn.ModuleDict  # noqa: N815  # PEFT's name
    lora_B: nn.ModuleDict  # noqa: N815
    lora_dropout: nn.ModuleDict
    first_down: Tensor | None
    first_up: Tensor | None

    def _begin(self, base_layer: nn.Module) -> None:
        # PEFT's own constructor makes other factors, initialized otherwise, and its signature
        # changes between versions; only the containers are wanted.
        nn.Module.__init__(self)
        LoraLayer.__init__(cast("LoraLayer", self), base_layer)
        self.lora_mid = nn.ParameterDict()
        self.lora_magnitude = nn.ParameterDict()
        self.lora_dropout[ADAPTER_NAME] = nn.Identity()
        # Not named lora_: PEFT takes whatever is for trained.
        self.register_buffer(FIRST_DOWN, None)
        self.register_buffer(FIRST_UP, None)
        self._active_adapter = ADAPTER_NAME

    def set_factor(self, name: str, parameter: nn.Parameter) -> None:
        """Put one factor into PEFT's pair of Linears."""
        if name in dict(self._containers):
            super().set_factor(name, parameter)
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

    off: ClassVar = {"rank_dropout": 0.0, "rank_dropout_scale": False, "module_dropout": 0.0}
    peft_layer: ClassVar[type[Any]]

    def __init__(self, base_layer: nn.Module, plan: LayerPlan, seed: int) -> None:
        begin: Any = self.peft_layer.__init__
        begin(self, base_layer)
        setattr(self, dict(self._containers)[DORA_SCALE], nn.ParameterDict())
        self._active_adapter = ADAPTER_NAME
        self.install(plan, seed)

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
        """PEFT's way to reset an adapter, which such a layer does not take."""
        raise NotImplementedError

    def update_layer(self, adapter_name: str, r: int, alpha: float, **kwargs: Any) -> None:
        """PEFT's way to add another adapter, which such a layer does not take."""
        raise NotImplementedError


@functools.cache
def layer_classes(name: str) -> tuple[type[FactorLayer], type[FactorLayer]]:
    """The layers of a kind for which there are none below: of a Linear, and of a convolution."""
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
    kind, peft_layer = LOHA, LoHaLayer
    _containers = (*((name, name) for name in LOHA.factor_names), (DORA_SCALE, "hada_magnitude"))
    adapter_layer_names = (*LoHaLayer.adapter_layer_names, "hada_magnitude")


class LohaLinear(_LohaFactors, PeftLohaLinear):
    """A Linear with a LoHa."""

    function = _fused(LOHA)


class LohaConv(ConvFactorLayer, _LohaFactors, LoHaLayer):
    """A Conv1d, Conv2d or Conv3d with a LoHa."""


class _LokrFactors(_LycorisFactors):
    kind, peft_layer = LOKR, LoKrLayer
    _containers = (*((name, name) for name in LOKR.factor_names), (DORA_SCALE, "lokr_magnitude"))
    adapter_layer_names = (*LoKrLayer.adapter_layer_names, "lokr_magnitude")


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

    Attributes:
        linear_class: What is put around a Linear.
        conv_class: What is put around a convolution.
        config_class: PEFT's description of such an adapter.
        settings: PEFT's name of a setting to ours, where it has the setting.
    """

    linear_class: ClassVar[type[Any]]
    conv_class: ClassVar[type[Any]]
    config_class: ClassVar[type[Any]]
    settings: ClassVar[Mapping[str, str]]
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

    linear_class, conv_class, config_class = LoraLinear, LoraConv, LoraConfig
    settings: ClassVar = {"lora_dropout": "dropout"}


class LohaTuner(PlannedTuner, LoHaModel):
    """LoHa."""

    linear_class, conv_class, config_class = LohaLinear, LohaConv, LoHaConfig
    settings: ClassVar = {name: name for name in ("rank_dropout", "module_dropout")}


class LokrTuner(PlannedTuner, LoKrModel):
    """LoKr."""

    linear_class, conv_class, config_class = LokrLinear, LokrConv, LoKrConfig
    settings: ClassVar = {
        **LohaTuner.settings,
        "decompose_both": "decompose_both",
        "decompose_factor": "factor",
    }


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


_TUNERS: dict[str, type[Any]] = {
    each.linear_class.kind.name: each for each in (LoraTuner, LohaTuner, LokrTuner)
}


def inject(module: nn.Module, config: AdapterConfig, jobs: list[Job]) -> dict[str, FactorLayer]:
    """Put an adapter into a module, in place; gives the new layers by name."""
    by_path = {job.plan.path: job for job in jobs}
    # PEFT takes a list's entries as endings of names, but a string as one whole expression.
    targets = "|".join(re.escape(path) for path in by_path)
    if config.kind not in _TUNERS:
        own = OwnConfig(target_modules=targets)
        return _own_tuner(config.kind)(module, own, by_path).__dict__["layers"]
    tuner = _TUNERS[config.kind]
    peft_config = tuner.config_class(
        r=config.rank,
        target_modules=targets,
        **{tuner.linear_class.alpha_name: config.rank if config.alpha is None else config.alpha},
        **{theirs: getattr(config, ours) for theirs, ours in tuner.settings.items()},
    )
    return tuner(module, peft_config, by_path).__dict__["layers"]
