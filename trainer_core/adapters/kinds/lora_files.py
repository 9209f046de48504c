"""LoRA in files: one product of two factors, which every reader knows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import AdapterError
from ...tensors.randomized_svd import closest_of_rank
from ...types import LayerState
from ..dora import DORA_SCALE
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
    times,
)
from .kind import LayerPlan

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
        return balanced(u, s, vh, plan.kernel)

    def diffusers(self, tensors: Tensors, scale: float) -> dict[str, Tensor]:
        return diffusers_product(times(tensors["lora_up"], scale), tensors["lora_down"])

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

    def comfyui_fault(self, given: Mapping[str, Shape]) -> Fault | None:
        if "lora_down" not in given:
            return Fault("read wrongly", f"{STOPS}: there is no lora_down beside lora_up")
        up, down, core = given["lora_up"], given["lora_down"], given.get("lora_mid")
        if min(len(up), len(down)) < 2:
            return Fault("wrong shape", f"a factor has one axis: {SKIPS}")
        if core is not None:
            if len(core) < PLANE or math.prod(core[PLANE:]) != 1:
                return Fault("read wrongly", f"{STOPS}: it knows cores with two axes only")
            if not core[0] == core[1] == down[0] * math.prod(down[2:]):
                reason = f"core {list(core)} and lora_down differ in rank: {STOPS}"
                return Fault("wrong shape", reason)
        return different_ranks(up, down) if math.prod(up[1:]) != down[0] else None

    def comfyui_sizes(self, given: Mapping[str, Shape]) -> Shape:
        window = math.prod(given.get("lora_mid", ())[2:])
        return given["lora_up"][0], math.prod(given["lora_down"][1:]) * window


APPROXIMATE = "Or convert it as a lora on request: --approximate lora --rank N"


def diffusers_product(up: Tensor, down: Tensor) -> dict[str, Tensor]:
    """A product by the endings that Diffusers reads."""
    return {"lora_A.weight": down, "lora_B.weight": up}


def low_rank_layer(up: Tensor, down: Tensor, kernel: tuple[int, ...] = ()) -> LayerState:
    """A product as a layer of scale 1, in float32.

    Args:
        up: `[out, r]`.
        down: `[r, in * window]`.
        kernel: A convolution's window; empty for a Linear.
    """
    rank = down.shape[0]
    tensors = {
        "lora_down": down.reshape(rank, -1, *kernel) if kernel else down,
        "lora_up": up.reshape(*up.shape, *(1,) * len(kernel)),
    }
    same = {name: tensor.float().contiguous() for name, tensor in tensors.items()}
    return LayerState(same, float(rank), rank, kernel)


def balanced(u: Tensor, s: Tensor, vh: Tensor, kernel: tuple[int, ...]) -> LayerState:
    """Singular values and vectors as a layer whose factors have one norm."""
    root = s.sqrt()
    return low_rank_layer((u * root).float(), (root[:, None] * vh).float(), kernel)


def empty_low_rank(sizes: Shape, rank: int, dtype: torch.dtype) -> LayerState:
    """The outline of a Linear's product."""
    shapes = {"lora_down": (rank, sizes[1]), "lora_up": (sizes[0], rank)}
    empty = {n: torch.empty(shape, dtype=dtype, device="meta") for n, shape in shapes.items()}
    return LayerState(empty, float(rank), rank)
