"""LoRA: the delta is a product of two low-rank matrices."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import AdapterError
from ...tensors.randomized_svd import closest_of_rank
from ...types import LayerState
from ..dora_magnitude import DORA_SCALE, Axis, low_rank_norm_terms
from ..init.pissa_olora import FIRST_DOWN, FIRST_UP, joined_factors, leading_columns, principal_part
from ..kernels.adapter_kernel import AdapterKernel, Factors, Gradients, LowRankPath, Operands
from ..kernels.convolution import Window
from .file_rules import (
    PLANE,
    SKIPS,
    STOPS,
    FactorPair,
    Fault,
    FileRules,
    Shape,
    Tensors,
    different_ranks,
    scaled_factor,
)
from .kind import Kind, LayerPlan, ratio_scale, scaled, squared_product, uniform_by_inputs


def _shapes(plan: LayerPlan) -> dict[str, tuple[int, ...]]:
    up = {"lora_up": (plan.outputs, plan.rank, *plan.ones)}
    if plan.tucker:
        core = {"lora_mid": (plan.rank, plan.rank, *plan.kernel)}
        return {"lora_down": (plan.rank, plan.inputs, *plan.ones), **core, **up}
    return {"lora_down": (plan.rank, plan.inputs, *plan.kernel), **up}


def _delta(factors: Factors, scale: float) -> Tensor:
    factors = joined_factors(factors)
    return factors["lora_up"] @ factors["lora_down"] * scale


def _apply(x: Tensor, factors: Factors, scale: float) -> Tensor:
    factors = joined_factors(factors)
    hidden = F.linear(x, factors["lora_down"].to(x.dtype))
    return F.linear(hidden, scaled(factors["lora_up"], scale, x.dtype))


def _convolve(window: Window, x: Tensor, factors: Factors, scale: float) -> Tensor:
    # The lower factor is one for all groups; only the upper one has rows for each.
    hidden = window.slide(x, factors["lora_down"].to(x.dtype)).flatten(1, 2)
    return window.combine(hidden, scaled(factors["lora_up"], scale, x.dtype), window.groups)


def _operands(factors: Factors) -> Operands:
    trained = factors["lora_down"], factors["lora_up"]
    return (*trained, factors[FIRST_DOWN], factors[FIRST_UP]) if FIRST_DOWN in factors else trained


def _down(operands: Operands, dtype: torch.dtype, turned: bool = False) -> Tensor:
    """``[dA ; A0]``, or the lower factor where it is trained as it is."""
    down = operands[0]
    down = (down if len(operands) == 2 else torch.cat([down, operands[2]])).to(dtype)
    return down.t() if turned else down


def _upper(operands: Operands, scale: float, dtype: torch.dtype) -> Operands:
    """``[B0 + dB | dB]``, or the upper factor."""
    up = operands[1]
    if len(operands) == 4:
        up = torch.cat([operands[3] + up, up], dim=1)
    return ((up if scale == 1.0 else up * scale).to(dtype),)


def _add_up(hidden: Tensor, y: Tensor, upper: Operands) -> None:
    y.addmm_(hidden, upper[0].t())


def _up_gradients(
    g: Tensor, hidden: Tensor, upper: Operands, operands: Operands, scale: float
) -> tuple[Tensor, list[Tensor | None]]:
    del upper
    (up,) = _upper(operands, scale, g.dtype)
    of_up = (g.t() @ hidden).to(operands[1].dtype)
    if scale != 1.0:
        of_up = of_up * scale
    if len(operands) == 2:
        return g @ up, [None, of_up]
    # [B0 + dB | dB] has what is trained twice.
    rank = operands[0].shape[0]
    return g @ up, [None, of_up[:, :rank] + of_up[:, rank:], None, None]


def _down_gradients(of_down: Tensor, operands: Operands) -> Gradients:
    # Of [dA ; A0] only the first half is trained.
    trained = operands[0]
    if len(operands) == 4:
        of_down = of_down[: trained.shape[0]]
    return (of_down.to(trained.dtype),)


_KERNEL = AdapterKernel(
    operands=_operands,
    path=LowRankPath(
        lower=(0,),
        down=_down,
        upper=_upper,
        add_up=_add_up,
        up_gradients=_up_gradients,
        down_gradients=_down_gradients,
    ),
    takes_path=lambda operands: True,
    columns=lambda operands: operands[0].shape[0] * len(operands) // 2,
    augment=lambda hidden, operands, scale: (hidden, *_upper(operands, scale, hidden.dtype)),
)


def _dora_norm_terms(weight: Tensor, factors: Factors, axis: Axis) -> tuple[Tensor, Tensor]:
    factors = joined_factors(factors)
    return low_rank_norm_terms(weight, factors["lora_down"], factors["lora_up"], axis)


def _normal_by_rank(down: Tensor, generator: torch.Generator) -> Tensor:
    return down.normal_(0.0, 1.0 / down.shape[0], generator=generator)


def _even_rows(down: Tensor, generator: torch.Generator) -> None:
    down.normal_(0.0, _ORTHOGONAL_STD, generator=generator)
    down[1::2] = 0.0


def _odd_columns(up: Tensor, generator: torch.Generator) -> None:
    up.normal_(0.0, _ORTHOGONAL_STD, generator=generator)
    up[:, 0::2] = 0.0


_ORTHOGONAL_STD = 0.1
"""PEFT's, which divides normal numbers by 10."""

_OTHER_INITIALIZERS = {
    "gaussian": {"lora_down": _normal_by_rank},
    "orthogonal": {"lora_down": _even_rows, "lora_up": _odd_columns},
    "pissa": {},
    "olora": {},
    "eva": {"lora_down": uniform_by_inputs},
}
"""PEFT's ``gaussian``, and its ``orthogonal`` in turned coordinates; what comes from W or the data.

Those that are a part of W are trained as differences, which start at zero. Those from the layers'
inputs take the place of the usual ones once these inputs were seen (`init.eva`).

PEFT draws up = G2 Q2 and down = (G1 Q1)^T with the rows of one orthogonal matrix in Q1 and Q2:
their product is zero but for rounding. Turned by that matrix, up and down use different coordinates
of the rank: the same spans, and a product that is zero in every number format.
"""

LORA = Kind(
    name="lora",
    factor_names=("lora_down", "lora_mid", "lora_up"),
    shapes=_shapes,
    initializers={"lora_down": uniform_by_inputs, "lora_mid": uniform_by_inputs},
    scale=ratio_scale,
    delta=_delta,
    apply=_apply,
    convolve=_convolve,
    kernel=_KERNEL,
    dora_norm_terms=_dora_norm_terms,
    squared_norm=lambda factors: squared_product(factors["lora_up"], factors["lora_down"]),
    other_initializers=_OTHER_INITIALIZERS,
    decompositions={"pissa": principal_part, "olora": leading_columns},
)
"""delta = up @ down * alpha / rank. Source: Hu et al. 2021, arXiv:2106.09685."""


_COMFYUI = (
    (".lora_up.weight", ".lora_down.weight"),
    ("_lora.up.weight", "_lora.down.weight"),
    (".lora_B.weight", ".lora_A.weight"),
    (".lora.up.weight", ".lora.down.weight"),
    (".lora_B", ".lora_A"),
    (".lora_linear_layer.up.weight", ".lora_linear_layer.down.weight"),
    (".lora_B.default.weight", ".lora_A.default.weight"),
)
"""Endings of the upper and the lower factor in ComfyUI's order, which takes the first one."""

_SETS = {
    ".lora_up.weight": "lora_up",
    "_lora.up.weight": "_lora.up",
    ".lora_B.weight": "lora_A",
    ".lora.up.weight": "lora.up",
    ".lora_B": "lora_A without .weight",
    ".lora_linear_layer.up.weight": "lora_linear_layer",
    ".lora_B.default.weight": "lora_A.default",
}
_MID, _RESHAPE = ".lora_mid.weight", ".reshape_weight"


class LoraFiles(FileRules):
    """Source: the writers and readers of ComfyUI 0.33, Diffusers 0.42, PEFT 0.21 and kohya."""

    name, title, mark = "lora", "LoRA", "lora"
    pairs = (FactorPair("lora_up", "lora_down", "lora_mid", lies=False),)
    spellings = (
        *((up, "lora_up", _SETS[up]) for up, _ in _COMFYUI),
        *((down, "lora_down", _SETS[up]) for up, down in _COMFYUI),
        (_MID, "lora_mid", "lora_up"),
    )
    beside = (
        (r"\.lora_(B|up)\.(default\.)?bias$|\.lora_bias$", "a bias that was trained with a LoRA"),
        (r"\.lora_embedding_[AB]", "an embedding's LoRA"),
    )
    rank_factors = ("lora_down",)
    window_factors = ("lora_mid", "lora_down")
    filed_planes = ("lora_mid",)
    scaled_factors = ("lora_up",)
    comfyui_endings = (*(ending for pair in _COMFYUI for ending in pair), _MID, _RESHAPE)
    peft_alpha = "lora_alpha"
    peft_dora = True
    diffusers_kind = "lora"
    network_module = "networks.lora"

    def ending(self, factor: str) -> str:
        return f".{factor}.weight"

    def peft_ending(self, factor: str) -> str:
        return {"lora_down": ".lora_A.weight", "lora_up": ".lora_B.weight"}.get(
            factor, f".{factor}"
        )

    def product(self, matrices: Tensors, scale: float) -> tuple[Tensor, Tensor]:
        return matrices["lora_up"] * scale, matrices["lora_down"]

    def resized_shapes(
        self, layer: LayerState, rank: int, factor: int | None
    ) -> tuple[int, dict[str, Shape]]:
        up, down = layer.tensors["lora_up"], layer.tensors["lora_down"]
        window = tuple(layer.tensors.get("lora_mid", down).shape[2:])
        rank = min(rank, up.shape[0], down.shape[1] * math.prod(window))
        ones = (1,) * (up.dim() - 2)
        return rank, {
            "lora_down": (rank, down.shape[1], *window),
            "lora_up": (up.shape[0], rank, *ones),
        }

    def extract(self, plan: LayerPlan, matrix: Tensor) -> LayerState:
        u, s, vh = closest_of_rank(matrix, min(plan.rank, *matrix.shape))
        return balanced_factors(u, s, vh, plan.kernel)

    def diffusers(self, tensors: Tensors, scale: float) -> dict[str, Tensor]:
        return diffusers_product(scaled_factor(tensors["lora_up"], scale), tensors["lora_down"])

    def peft_options(self, layers: Mapping[str, LayerState]) -> dict[str, Any]:
        dora = [name for name, layer in layers.items() if DORA_SCALE in layer.tensors]
        if dora and len(dora) < len(layers):
            without = next(name for name in layers if name not in dora)
            raise AdapterError(
                f"{dora[0]} has a DoRA magnitude and {without} has none",
                "a magnitude in every layer or in none, because PEFT has one switch for all",
                f"Choose layout 'diffusers'. {APPROXIMATE} --base PATH.",
            )
        return {
            "bias": "none",
            "use_dora": bool(dora),
            "lora_dropout": 0.0,
            "fan_in_fan_out": False,
        }

    def comfyui_slots(self, found: Mapping[str, str]) -> dict[str, str]:
        pair = next((pair for pair in _COMFYUI if pair[0] in found), None)
        if pair is None:
            return {}
        slots = {"lora_up": pair[0], "lora_down": pair[1], "reshape_weight": _RESHAPE}
        return {**slots, "lora_mid": _MID} if pair is _COMFYUI[0] else slots

    def comfyui_fault(self, shapes: Mapping[str, Shape]) -> Fault | None:
        if "lora_down" not in shapes:
            return Fault("read wrongly", f"{STOPS}: there is no lora_down beside lora_up")
        up, down, core = shapes["lora_up"], shapes["lora_down"], shapes.get("lora_mid")
        if min(len(up), len(down)) < 2:
            return Fault("wrong shape", f"a factor has one axis: {SKIPS}")
        if core is not None:
            if len(core) < PLANE or math.prod(core[PLANE:]) != 1:
                return Fault("read wrongly", f"{STOPS}: it knows cores with two axes only")
            if not core[0] == core[1] == down[0] * math.prod(down[2:]):
                reason = f"core {list(core)} and lora_down differ in rank: {STOPS}"
                return Fault("wrong shape", reason)
        return different_ranks(up, down) if math.prod(up[1:]) != down[0] else None

    def comfyui_sizes(self, shapes: Mapping[str, Shape]) -> Shape:
        window = math.prod(shapes.get("lora_mid", ())[2:])
        return shapes["lora_up"][0], math.prod(shapes["lora_down"][1:]) * window


APPROXIMATE = "Or convert it as a lora on request: --approximate lora --rank N"


def diffusers_product(up: Tensor, down: Tensor) -> dict[str, Tensor]:
    """A product by the endings that Diffusers reads."""
    return {"lora_A.weight": down, "lora_B.weight": up}


def low_rank_layer(up: Tensor, down: Tensor, kernel: tuple[int, ...] = ()) -> LayerState:
    """`up` `[out, r]` and `down` `[r, in * window]` as a layer of scale 1, in float32.

    The kernel is a convolution's window; empty for a Linear.
    """
    rank = down.shape[0]
    tensors = {
        "lora_down": down.reshape(rank, -1, *kernel) if kernel else down,
        "lora_up": up.reshape(*up.shape, *(1,) * len(kernel)),
    }
    same = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
    return LayerState(same, float(rank), rank, kernel)


def balanced_factors(u: Tensor, s: Tensor, vh: Tensor, kernel: tuple[int, ...]) -> LayerState:
    """Singular values and vectors as a layer whose factors have one norm."""
    root = s.sqrt()
    return low_rank_layer((u * root).float(), (root[:, None] * vh).float(), kernel)


def empty_low_rank(sizes: Shape, rank: int, dtype: torch.dtype) -> LayerState:
    """The outline of a Linear's product."""
    shapes = {"lora_down": (rank, sizes[1]), "lora_up": (sizes[0], rank)}
    empty = {n: torch.empty(shape, dtype=dtype, device="meta") for n, shape in shapes.items()}
    return LayerState(empty, float(rank), rank)
