"""How much of a small delta is left in a bf16 output.

A delta far smaller than the output is lost when the output was rounded before the delta is added.
The gain is ``<y - y0, d> / <d, d>``: y is the layer's bf16 output, y0 the base's exact output and
d the exact change, both in float64. 1 is kept, 0 is lost. The noise is ``|y - (y0 + d)| / |d|``;
rounding y once is 1.7e-3 of |y|, so a gain beside a noise of 16 is good to a few hundredths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .recipes import Adapted, Recipe, draw_linear, frozen_linear

WIDTH = 1024
TOKENS = 256
SIZES = (1e-2, 1e-3, 1e-4)


@dataclass(frozen=True)
class FidelityRow:
    """One implementation's gains.

    Attributes:
        name: What was measured.
        source: Who wrote it.
        group: What it computes.
        form: Which form of it.
        gains: By the size of the delta beside the output.
        noises: By the same.
    """

    name: str
    source: str
    group: str
    form: str
    gains: dict[str, float]
    noises: dict[str, float]


def measure_fidelity(recipes: Sequence[Recipe], device: str) -> list[FidelityRow]:
    """Measure the gain of each recipe; it carries no noise.

    Args:
        recipes: What to measure.
        device: ``cpu`` or ``cuda``.

    Returns:
        One row for each recipe.
    """
    weight, bias = draw_linear(WIDTH, WIDTH, torch.bfloat16, device)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(TOKENS, WIDTH, generator=generator).to(device, torch.bfloat16)
    rows = []
    for recipe in recipes:
        found = [_gain_and_noise(recipe, weight, bias, x, size) for size in SIZES]
        sizes = [f"{size:.0e}" for size in SIZES]
        gains = dict(zip(sizes, (gain for gain, _ in found), strict=True))
        noises = dict(zip(sizes, (noise for _, noise in found), strict=True))
        names = (recipe.name, recipe.source, recipe.group, recipe.form)
        rows.append(FidelityRow(*names, gains, noises))
    return rows


@torch.no_grad()
def _gain_and_noise(
    recipe: Recipe, weight: Tensor, bias: Tensor, x: Tensor, size: float
) -> tuple[float, float]:
    truth = recipe.build(frozen_linear(weight.double(), bias.double()))
    base = nn.functional.linear(x.double(), weight.double(), bias.double())
    change = _make_small(truth, x.double(), base, size)
    tried = recipe.build(frozen_linear(weight.clone(), bias))
    for parameter, exact in zip(tried.parameters, truth.parameters, strict=True):
        parameter.copy_(exact)
    seen = tried.forward(x).double() - base
    gain = float((seen * change).sum() / change.square().sum())
    return round(gain, 3), round(float((seen - change).norm() / change.norm()), 2)


def _make_small(truth: Adapted, x: Tensor, base: Tensor, size: float) -> Tensor:
    """Give the factors random values whose change of the output has a size; return the change.

    DoRA's magnitudes keep their initialization, with which no factor means no change.
    """
    generator = torch.Generator().manual_seed(5)
    factors = [each for each in truth.parameters if each.dim() == 2 and min(each.shape) > 1]
    for factor in factors:
        factor.copy_(torch.randn(factor.shape, generator=generator).to(factor.device))
    largest = max(factors, key=lambda factor: factor.numel())
    # The change is linear in one factor, except through DoRA's norm: there it takes some tries.
    for _ in range(8):
        found = float((truth.forward(x) - base).norm() / base.norm())
        largest.mul_(size / found)
    return truth.forward(x) - base
