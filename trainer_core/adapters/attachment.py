"""`attach`: puts a new adapter on a module; `AttachedAdapter`: its factors, state and strength."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor, nn

from ..config import AdapterConfig
from ..config.patterns import compile_pattern
from ..errors import AdapterError
from ..types import AdapterState, LayerState
from .base.quantized_weight import repacking_layers, set_repacking
from .kernels.convolution import reshaped_factors
from .kinds.kind import LayerPlan
from .kinds.registry import KINDS
from .layer.factor_layer import ADAPTER_NAME, FactorLayer
from .layer.shared_input import share_inputs
from .layer.whole_layer import WholeLayer, join_parts
from .peft_layers import Job, inject
from .planning import check_bases, plan_layers
from .targets import FALLBACK_PRESETS, LayerIndex, Selection, nearest_layers, select, select_modules

_PEFT_MARKS = ("peft_config", "_hf_peft_config_loaded")
"""Attributes of a module that PEFT and Diffusers use."""


class Restoration:
    """What `detach` has to give back besides the layers; it freezes the module's own parameters.

    Args:
        module: Before an adapter is put on it. What PEFT would add to is cleared.

    Raises:
        AdapterError: When a layer's weight was packed so that no gradient passes through it.
    """

    def __init__(self, module: nn.Module) -> None:
        self._repacking = repacking_layers(module)
        held = module.__dict__
        self._marks = {name: held[name] for name in _PEFT_MARKS if name in held}
        held.pop("peft_config", None)
        # By name: a move between devices may put others in their places.
        self._trainable = {name: each.requires_grad for name, each in module.named_parameters()}
        module.requires_grad_(False)
        set_repacking(self._repacking, False)

    def restore(self, module: nn.Module) -> None:
        """Give everything back as it was."""
        for name, parameter in module.named_parameters():
            if name in self._trainable:
                parameter.requires_grad_(self._trainable[name])
        set_repacking(self._repacking, True)
        for name in _PEFT_MARKS:
            module.__dict__.pop(name, None)
        module.__dict__.update(self._marks)


class AttachedAdapter:
    """An adapter on a module; made by `attach`.

    Attributes:
        kind: ``lora``, ``loha`` or ``lokr``.
        config: The settings it was made with.
        names: The adapted layers, sorted.
        matched_again: The layer of each match that pointed at one which was already chosen.
        excluded_unused: Layers that a preset left out because their output is unused.
        plans: Sizes, rank and alpha of each layer.
        notes: What the settings came to and may not be expected, in sentences.
        shared_inputs: Names of layers that share what they compute on their input, by input.
        wholes: Layers that are trained as one, which has a name of its own.
    """

    shared_inputs: tuple[tuple[str, ...], ...] = ()
    plans: tuple[LayerPlan, ...] = ()
    notes: tuple[str, ...] = ()
    wholes: tuple[WholeLayer, ...] = ()

    def __init__(
        self,
        module: nn.Module,
        config: AdapterConfig,
        layers: Mapping[str, FactorLayer],
        restoration: Restoration,
        selection: Selection,
    ) -> None:
        self.kind = config.kind
        self.config = config
        self.names = tuple(sorted(layers))
        self.matched_again = selection.matched_again
        self.excluded_unused = selection.excluded_unused
        self._module = module
        self._layers = {name: layers[name] for name in self.names}
        self._places = {name: layer.places for name, layer in selection.layers.items()}
        self._restoration = restoration
        self._attached = True
        if hasattr(module, "_hf_peft_config_loaded"):
            # Diffusers' adapter methods refuse to work on a model without this mark.
            module.__dict__["_hf_peft_config_loaded"] = True

    def named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """The trainable factors as ``<layer>.<factor>``, sorted by layer and factor."""
        return [
            (f"{name}.{factor}", parameter)
            for name, layer in self._layers.items()
            for factor, parameter in sorted(layer.factors().items())
        ]

    def parameters(self) -> list[nn.Parameter]:
        """The trainable factors in the order of `named_parameters`."""
        return [parameter for _, parameter in self.named_parameters()]

    @property
    def layers(self) -> Mapping[str, FactorLayer]:
        """The adapted layers by name."""
        return self._layers

    def frozen_tensors(self) -> dict[str, Tensor]:
        """The frozen factors that the trained ones are differences from, as ``<layer>.<factor>``.

        There are none but with an ``init`` that is a part of the base's weight.
        """
        return {
            f"{name}.{factor}": tensor
            for name, layer in self._layers.items()
            for factor, tensor in layer.frozen_factors().items()
        }

    def named_tensors(self) -> dict[str, Tensor]:
        """All that makes the adapter what it is: trainable and frozen factors."""
        return {**dict(self.named_parameters()), **self.frozen_tensors()}

    def state(self) -> AdapterState:
        """A copy of the adapter on the CPU, independent of further training.

        With an ``init`` that is a part of the base's weight it is the LoRA of twice the rank that
        equals it.
        """
        layers = {name: layer.layer_state() for name, layer in self._layers.items()}
        return AdapterState(self.kind, layers, self.config.model_dump(mode="json"))

    def load_state(self, state: AdapterState) -> None:
        """Take over the factors and scales of a state of the same layers and shapes.

        A window may be written as in files (`reshaped_factors`).

        Raises:
            AdapterError: When kind, layers or shapes differ, or this adapter is merged or trains
                differences from frozen factors of its own; nothing is changed then.
        """
        self.refuse_frozen_factors("a state to take over")
        self._require(not self._merged, "the adapter is merged", "Call unmerge() first.")
        self._check_layers(state)
        ready = {name: self._fitting(name, saved) for name, saved in state.layers.items()}
        with torch.no_grad():
            for name, saved in state.layers.items():
                layer = self._layers[name]
                for factor, parameter in layer.factors().items():
                    parameter.copy_(ready[name][factor])
                layer.set_scale_of(ready[name], saved.alpha, saved.rank)
                layer.note_zero_magnitude()

    def refuse_frozen_factors(self, found: str) -> None:
        """Refuse to give this adapter other factors where its own are differences.

        Raises:
            AdapterError: When ``init`` is a part of the base's weight.
        """
        if any(layer.frozen_factors() for layer in self._layers.values()):
            raise AdapterError(
                f"{found}, and adapter.init is {self.config.init}",
                "an adapter whose factors are those of a file: this one trains differences from a "
                "part of the base's weight, and its file has twice the rank",
                "Set adapter.init to default; to go on from such a file, also adapter.rank to that "
                "of the file.",
            )

    def delta_weight(self, name: str) -> Tensor:
        """The weight difference of one layer at strength 1, in the factors' dtype.

        It has the weight's shape: `[out, in]`, or `[out, in / groups, *kernel]`.

        Raises:
            AdapterError: When the layer is not adapted.
        """
        if name not in self._layers:
            raise AdapterError(
                f"{name!r} carries no adapter",
                "the name of an adapted layer",
                f"Nearest: {nearest_layers(name, self.names)}.",
            )
        return self._layers[name].get_delta_weight(ADAPTER_NAME)

    @property
    def strength(self) -> float:
        """Multiplies the adapter's contribution; at 0 the module computes exactly the base."""
        return next(iter(self._layers.values())).strength

    @strength.setter
    def strength(self, value: float) -> None:
        self._require(not self._merged, "the adapter is merged", "Call unmerge() first.")
        for layer in self._layers.values():
            # Past torch's own way to set an attribute, which takes 60 times as long: some runs ask
            # the base in each step.
            vars(layer)["strength"] = float(value)

    def train(self, mode: bool = True) -> AttachedAdapter:
        """Switch the adapter's dropouts on; the base's own mode stays as it is."""
        for layer in self._layers.values():
            layer.training = mode
        return self

    def eval(self) -> AttachedAdapter:
        """Switch the adapter's dropouts off."""
        return self.train(False)

    def merge(self) -> None:
        """Add the deltas, at the current strength, to the base's weights.

        Raises:
            AdapterError: When the adapter is detached, or a weight cannot take a delta (packed,
                8-bit or meta); no weight is changed then.
        """
        self._require(self._attached, "the adapter is detached", "Attach an adapter first.")
        if self._merged:
            return
        for name, layer in self._layers.items():
            layer.check_mergeable(name)
        for layer in self._layers.values():
            layer.merge(adapter_names=[ADAPTER_NAME])

    def unmerge(self) -> None:
        """Put the base's weights back, bit for bit."""
        for layer in self._layers.values():
            layer.unmerge()

    def detach(self) -> None:
        """Give the module its own layers, weights and gradient settings back.

        The adapter keeps its factors, so that `state` and `delta_weight` still work.
        """
        if not self._attached:
            return
        self.unmerge()
        for name, layer in self._layers.items():
            layer.release()
            if layer.shared is not None:
                layer.shared.release()
            for owner, attribute in self._places[name]:
                setattr(owner, attribute, layer.get_base_layer())
        for whole in self.wholes:
            whole.put_back()
        self._restoration.restore(self._module)
        self._attached = False

    @property
    def _merged(self) -> bool:
        return any(layer.merged for layer in self._layers.values())

    @staticmethod
    def _require(condition: bool, found: str, remedy: str) -> None:
        if not condition:
            raise AdapterError(found, "an adapter in place, beside the base's weights", remedy)

    def _check_layers(self, state: AdapterState) -> None:
        if state.kind != self.kind:
            raise AdapterError(
                f"an adapter of kind {state.kind}",
                f"kind {self.kind}, as the attached adapter",
                "Set adapter.kind to the kind of the file, or choose another file.",
            )
        differing = sorted(set(state.layers) ^ set(self._layers))
        if differing:
            where = "state" if differing[0] in state.layers else "attached adapter"
            raise AdapterError(
                f"{len(differing)} layers are only in one of the two; {differing[0]} is only in "
                f"the {where}",
                "the same layers in both",
                "Attach with the same adapter.targets, include and exclude as the state's.",
            )

    def _fitting(self, name: str, saved: LayerState) -> dict[str, Tensor]:
        """A state's factors of one layer, in the shapes that they have here."""
        own = {k: tuple(v.shape) for k, v in self._layers[name].factors().items()}
        tensors = reshaped_factors(saved.tensors, own)
        shapes = {k: tuple(v.shape) for k, v in tensors.items()}
        if own != shapes:
            raise AdapterError(
                f"{name} has factors {shapes}",
                f"{own}",
                "Attach with the same rank, factor and options as the state's.",
            )
        return tensors


def attach(
    module: nn.Module,
    config: AdapterConfig,
    targets: str | Sequence[str] | Mapping[str, nn.Module] | None = None,
    *,
    presets: Mapping[str, Sequence[str]] | None = None,
    convolutional: Collection[str] = (),
    unused: Sequence[str] = (),
    shared: Sequence[str] = (),
    whole: Mapping[str, Sequence[str]] = MappingProxyType({}),
    seed: int = 0,
    outlines: Mapping[str, LayerState] | None = None,
) -> AttachedAdapter:
    """Put an adapter on a module's layers, in place, and freeze the module's own weights.

    The adapter changes nothing yet: its delta is zero until it is trained.

    Args:
        module: Any module with Linear layers or convolutions below it.
        targets: A preset's name, a list of regular expressions that match whole dotted layer
            names, or the layers themselves by name (then `include` and `exclude` do not apply).
            None takes the configuration's.
        presets: The presets that `targets` may name. None offers ``default`` and
            ``all_linear``, both every Linear.
        convolutional: Those of them that mean convolutions too.
        unused: Regular expressions of layers whose output the module never uses; a preset leaves
            them out unless `include` names them.
        shared: Regular expressions of layers that the module calls one after the other with the
            same tensor: those that one expression matches with the same groups (`share_inputs`).
            It costs nothing but speed where that is not so.
        whole: Name of a layer to the paths of those that it consists of in files, in the order of
            their rows: they read one input, and get one adapter over all their outputs.
        seed: Decides the initialization of the factors.
        outlines: Layers whose factors are taken over afterwards (`attach_state`): their ranks,
            alphas and shapes stand for the configuration's.

    Returns:
        The adapter.

    Raises:
        AdapterError: When targets, patterns or sizes do not fit the module; it is unchanged then.
    """
    _refuse_adapted(module)
    chosen = config.targets if targets is None else targets
    known = presets or FALLBACK_PRESETS
    selection = _select(
        module, config, chosen, presets=known, unused=unused, convolutional=convolutional
    )
    check_bases(module, selection.layers)
    selection, wholes = join_parts(selection, whole)
    plans = plan_layers(selection.layers, config, outlines)
    expressions = [compile_pattern(each, "the family's shared inputs") for each in shared]
    restoration = Restoration(module)
    jobs = [Job(selection.layers[plan.name], plan, seed) for plan in plans]
    layers = _inject(module, config, jobs, restoration=restoration, wholes=wholes)
    adapter = AttachedAdapter(module, config, layers, restoration=restoration, selection=selection)
    adapter.wholes = wholes
    adapter.notes = () if outlines else KINDS[config.kind].notes(plans)
    adapter.plans = plans
    adapter.shared_inputs = share_inputs(layers, expressions)
    return adapter


def _refuse_adapted(module: nn.Module) -> None:
    if any(isinstance(part, BaseTunerLayer) for part in module.modules()):
        raise AdapterError(
            "the module already carries an adapter",
            "a module without one",
            "Call detach() on the first adapter before you attach another; one of PEFT's goes with "
            "its own unload().",
        )


def _inject(
    module: nn.Module,
    config: AdapterConfig,
    jobs: list[Job],
    restoration: Restoration,
    wholes: Sequence[WholeLayer],
) -> dict[str, FactorLayer]:
    for whole in wholes:
        whole.put_in()
    try:
        return inject(module, config, jobs)
    except BaseException:
        # A weight that cannot be read is met when others have their adapter already.
        for job in jobs:
            for owner, attribute in job.layer.places:
                setattr(owner, attribute, job.layer.module)
        for whole in wholes:
            whole.put_back()
        restoration.restore(module)
        raise


def _select(
    module: nn.Module,
    config: AdapterConfig,
    targets: str | Sequence[str] | Mapping[str, nn.Module],
    presets: Mapping[str, Sequence[str]],
    unused: Sequence[str],
    convolutional: Collection[str],
) -> Selection:
    index = LayerIndex(module)
    if isinstance(targets, Mapping):
        return select_modules(index, targets)
    return select(
        index,
        targets,
        presets,
        unused=unused,
        include=config.include,
        exclude=config.exclude,
        convolutional=convolutional,
    )
