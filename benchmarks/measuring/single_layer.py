"""One Linear: time, bytes kept and written, FLOPs, operations and peak of every recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .counters import Operations, Peak, count, saved_bytes
from .recipes import Adapted, Recipe, disturb, draw_linear, frozen_linear
from .timing import MODES, Batch, Ratio, eager_ratios, frozen_step, mode_ratio

TOKENS = {"cpu": 1024, "cuda": 4096}


@dataclass(frozen=True)
class Layer:
    """A Linear to measure on.

    Attributes:
        inputs: Its input features.
        outputs: Its output features.
        dtype: Of weights and batch.
        device: ``cpu`` or ``cuda``.
    """

    inputs: int
    outputs: int
    dtype: torch.dtype
    device: str

    @property
    def name(self) -> str:
        """As the tables and `--only` call it."""
        dtype = "bf16" if self.dtype == torch.bfloat16 else "fp32"
        return f"layer {self.inputs}->{self.outputs} {dtype} {self.device}"


@dataclass(frozen=True)
class LayerRow:
    """One implementation's figures.

    Attributes:
        name: What was measured.
        source: Who wrote it.
        group: What it computes.
        form: Which form of it.
        times: Ratio to the frozen layer by mode.
        saved: Bytes kept for the backward pass, over the size of the input.
        written: Bytes that operations wrote, over the frozen layer's.
        flops: Of matrix products, over the frozen layer's.
        operations: How many wrote something.
        peak_mib: The most bytes of results that live at once, in MiB.
        parameters: Trainable ones.
    """

    name: str
    source: str
    group: str
    form: str
    times: dict[str, Ratio]
    saved: float
    written: float
    flops: float
    operations: int
    peak_mib: float
    parameters: int


FROZEN = Recipe("frozen", "frozen", frozen_step)


def measure_layer(
    layer: Layer, recipes: Sequence[Recipe], rounds: int, modes: Sequence[str] = ()
) -> list[LayerRow]:
    """Measure recipes on one layer, on the same weight and batch.

    Args:
        layer: The layer.
        recipes: What to measure beside the frozen layer.
        rounds: Timed rounds; 0 counts only.
        modes: How they are run; all that the device has, if left out.

    Returns:
        The frozen layer's row, then one for each recipe.
    """
    weight, bias = draw_linear(layer.inputs, layer.outputs, layer.dtype, layer.device)
    batch = Batch.draw(TOKENS[layer.device], layer.inputs, layer.outputs, layer.dtype, layer.device)
    everything = [FROZEN, *recipes]
    adapted = []
    for recipe in everything:
        own = weight.clone() if recipe.own_weight else weight
        built = recipe.build(frozen_linear(own, bias))
        disturb(built.parameters)
        adapted.append(built)
    steps = [batch.through(each) for each in adapted]
    for step in steps:
        step()
    times = [{} for _ in adapted]
    if rounds:
        ratios = eager_ratios(steps, steps[0], rounds, layer.device)
        times = [{"eager": ratio} for ratio in ratios]
        for mode in (modes or MODES[layer.device])[1:]:
            for each, found in zip(adapted, times, strict=True):
                found[mode] = mode_ratio(mode, each, adapted[0], batch, rounds)
    limit = count(steps[0])
    size = batch.x.numel() * batch.x.element_size()
    rows = []
    for recipe, each, step, found in zip(everything, adapted, steps, times, strict=True):
        with Operations() as done, Peak() as peak:
            step()
        rows.append(
            LayerRow(
                name=recipe.name if recipe is not FROZEN else "frozen",
                source=recipe.source,
                group=recipe.group,
                form=recipe.form,
                times=found,
                saved=round(_kept(each, batch) / size, 4),
                written=round(done.written / limit.written, 4),
                flops=round(done.flops / limit.flops, 4),
                operations=done.calls,
                peak_mib=round(peak.bytes / 2**20, 1),
                parameters=sum(parameter.numel() for parameter in each.parameters),
            )
        )
    return rows


def _kept(adapted: Adapted, batch: Batch) -> int:
    """Bytes kept for the backward pass, without parameters and the frozen weight."""
    ignored = [*adapted.parameters, *adapted.linear.parameters()]
    with saved_bytes(ignored) as saved:
        adapted.forward(batch.x)
    return saved.bytes
