"""`attach`: put an adapter on any module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from peft.tuners.tuners_utils import BaseTunerLayer
from torch import nn

from ..config import AdapterConfig
from ..config.patterns import compile_pattern
from ..errors import AdapterError
from ..types import LayerState
from .attached import AttachedAdapter, Restoration
from .base.checks import check_bases
from .kinds.registry import KINDS
from .layer.factor_layer import FactorLayer
from .layer.shared_input import share_inputs
from .peft_tuner import Job, inject
from .planning import plan_layers
from .targets import (
    FALLBACK_PRESETS,
    LayerIndex,
    Selection,
    select,
    select_modules,
)


def attach(
    module: nn.Module,
    config: AdapterConfig,
    targets: str | Sequence[str] | Mapping[str, nn.Module] | None = None,
    *,
    presets: Mapping[str, Sequence[str]] | None = None,
    unused: Sequence[str] = (),
    shared: Sequence[str] = (),
    seed: int = 0,
    given: Mapping[str, LayerState] | None = None,
) -> AttachedAdapter:
    """Put an adapter on a module's layers, in place, and freeze the module's own weights.

    The adapter changes nothing yet: its delta is zero until it is trained.

    Args:
        module: Any module with Linear layers or convolutions below it.
        config: Kind, size and options.
        targets: A preset's name, a list of regular expressions that match whole dotted layer
            names, or the layers themselves by name (then `include` and `exclude` do not apply).
            None takes the configuration's.
        presets: The presets that `targets` may name. None offers ``default`` and
            ``all_linear``, both every Linear.
        unused: Regular expressions of layers whose output the module never uses; a preset leaves
            them out unless `include` names them.
        shared: Regular expressions of layers that the module calls one after the other with the
            same tensor: those that one expression matches with the same groups (`share_inputs`).
            It costs nothing but speed where that is not so.
        seed: Decides the initialization of the factors.
        given: Layers whose factors are taken over afterwards (`attach_state`): their ranks, alphas
            and shapes stand for the configuration's.

    Returns:
        The adapter.

    Raises:
        AdapterError: When targets, patterns or sizes do not fit the module; it is unchanged then.
    """
    if any(isinstance(part, BaseTunerLayer) for part in module.modules()):
        raise AdapterError(
            "the module already carries an adapter",
            "a module without one",
            "Call detach() on the first adapter before you attach another; one of PEFT's goes with "
            "its own unload().",
        )
    chosen = config.targets if targets is None else targets
    selection = _select(module, config, chosen, presets or FALLBACK_PRESETS, unused)
    check_bases(module, selection.layers)
    plans = plan_layers(selection.layers, config, given)
    expressions = [compile_pattern(each, "the family's shared inputs") for each in shared]
    restoration = Restoration.of(module)
    jobs = [Job(selection.layers[plan.name], plan, seed) for plan in plans]
    layers = _inject(module, config, jobs, restoration)
    places = {name: layer.places for name, layer in selection.layers.items()}
    adapter = AttachedAdapter(module, config, layers, places, restoration, selection)
    adapter.notes = () if given else KINDS[config.kind].notes(plans)
    adapter.plans = plans
    adapter.shared_inputs = share_inputs(layers, expressions)
    return adapter


def _inject(
    module: nn.Module, config: AdapterConfig, jobs: list[Job], restoration: Restoration
) -> dict[str, FactorLayer]:
    restoration.freeze(module)
    try:
        return inject(module, config, jobs)
    except BaseException:
        # A weight that cannot be read is met when others have their adapter already.
        for job in jobs:
            for owner, attribute in job.layer.places:
                setattr(owner, attribute, job.layer.module)
        restoration.restore(module)
        raise


def _select(
    module: nn.Module,
    config: AdapterConfig,
    targets: str | Sequence[str] | Mapping[str, nn.Module],
    presets: Mapping[str, Sequence[str]],
    unused: Sequence[str],
) -> Selection:
    index = LayerIndex(module)
    if isinstance(targets, Mapping):
        return select_modules(index, targets)
    return select(index, targets, presets, unused, include=config.include, exclude=config.exclude)
