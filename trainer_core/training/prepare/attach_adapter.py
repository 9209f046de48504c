"""Attaches a run's adapter, as its run file plans it, to its denoiser, with weights or without."""

from __future__ import annotations

from torch import nn

from ...adapter_files.write.write_adapter import check_layouts
from ...adapters import AttachedAdapter, attach
from ...adapters.warm_start import require_start
from ...config import RunConfig
from ...families.family import Family
from ...families.trainable_text import with_text
from ...offload.empty_base import EmptyBase
from ...types import AdapterState


def attach_empty(config: RunConfig, base: EmptyBase, start: AdapterState | None) -> AttachedAdapter:
    """Attach a run's adapter to a base without numbers.

    Raises:
        InputError: When base, adapter, its start and its files do not fit each other.
    """
    adapter = attach_adapter(base.transformer, base.family, with_text(config))
    check_layouts(adapter.state(), config.output.layouts, base.family.layers.key_map)
    if start is not None:
        require_start(adapter, start)
    return adapter


def attach_adapter(module: nn.Module, family: Family, config: RunConfig) -> AttachedAdapter:
    """Attach a run's adapter to a denoiser of a family.

    Raises:
        ConfigError: When the settings select no layer, or layers that cannot be adapted so.
    """
    return attach(
        module,
        config.adapter,
        presets=family.layers.presets,
        convolutional=family.layers.convolutional_presets,
        unused=family.layers.unused(module),
        shared=family.layers.shared_inputs,
        whole=family.layers.key_map.whole_layers(dict(module.named_modules())),
        seed=config.seed,
    )
