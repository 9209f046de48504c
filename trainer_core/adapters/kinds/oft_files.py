"""OFT in files: square blocks, of which rotations of the weight's rows are made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...errors import AdapterError
from ...types import LayerState
from .file_rules import STOPS, Fault, FileRules, Shape, Tensors
from .kind import LayerPlan
from .oft import BLOCKS, square_blocks, turns

_BUTTERFLY = 4
"""Axes of BOFT's blocks, the first of which counts its turns one after the other."""

_LOST = "a kind whose difference is the same on every weight: an oft multiplies the weight"


class OftFiles(FileRules):
    """Source: the writers and readers of ComfyUI 0.33 and LyCORIS 4.1.3 (``diag-oft``, ``boft``).

    A layer's factor is ``[n, size^2]`` here, and ``[n, size, size]`` in files.
    """

    name, title, mark = "oft", "OFT", "oft"
    pairs = ()
    spellings = ((f".{BLOCKS}", BLOCKS, "oft"),)
    other_methods = (
        (r"\.(oft_|boft_|OFT_)", "PEFT's OFT or BOFT, which rotate the weight's columns"),
        (r"\.rescale$", "an OFT with a rescale, which ComfyUI leaves out"),
    )
    rank_factors = ()
    window_factors = ()
    filed_planes = ()
    scaled_factors = ()
    multiplies = True
    stacks = False
    product_is_exact = False
    closest_is_known = False
    unused_alpha = 0.0
    comfyui_endings = (f".{BLOCKS}", ".rescale")
    diffusers_kind = "oft"

    def factor_sets(self) -> list[frozenset[str]]:
        return [frozenset({BLOCKS})]

    def sizes(self, tensors: Tensors) -> tuple[int, int]:
        # The factors fit a weight of any number of columns, and do not tell it.
        blocks = tensors[BLOCKS]
        return blocks.shape[0] * math.isqrt(blocks.shape[1]), 0

    def mistake(self, tensors: Tensors) -> str:
        blocks = tensors.get(BLOCKS)
        if blocks is None:
            return f"lacks {BLOCKS}"
        square = blocks.dim() == 2 and math.isqrt(blocks.shape[1]) ** 2 == blocks.shape[1]
        return "" if square else f"has {BLOCKS} of {tuple(blocks.shape)}, which are no squares"

    def guessed_rank(self, tensors: Tensors) -> int:
        return math.isqrt(tensors[BLOCKS].shape[1])

    def row_factors(self, tensors: Tensors) -> tuple[tuple[str, int], ...]:
        return ((BLOCKS, 0),)

    def block_rows(self, tensors: Tensors) -> int:
        return self.guessed_rank(tensors)

    def own_form(self, tensors: Tensors) -> dict[str, Tensor]:
        return {name: _flat(t) if name == BLOCKS else t for name, t in tensors.items()}

    def check_alpha(self, tensors: Tensors, alpha: float) -> str:
        if alpha <= 0.0:
            return ""
        square = square_blocks(tensors[BLOCKS])
        length = float(torch.linalg.vector_norm(square - square.mT))
        if length <= alpha:
            return ""
        return (
            f"an alpha of {alpha:g} that limits a rotation of {length:.3g}: ComfyUI takes it as it "
            "is, LyCORIS and kohya's scripts times the layer's outputs"
        )

    def norm(self, matrices: Tensors) -> float:
        return float(torch.linalg.vector_norm(turns(matrices[BLOCKS]), dtype=torch.float64))

    def product(self, matrices: Tensors, scale: float) -> NoReturn:
        raise AdapterError(
            "an oft as a sum of factors", _LOST, "Give the base's weight: --base PATH --rank N."
        )

    def fit(self, given: Tensors, fresh: Tensors) -> NoReturn:
        found, wanted = (self.guessed_rank(each) for each in (given, fresh))
        raise AdapterError(
            f"an oft with blocks of {found} where blocks of {wanted} are wanted",
            f"the block size of the given layer: no rotation of blocks of {wanted} is the same",
            f"Set adapter.rank to {found}.",
        )

    def resized_shapes(self, layer: LayerState, rank: int, factor: int | None) -> NoReturn:
        raise AdapterError(
            f"blocks of {rank} for an oft",
            "a lora, loha or lokr, whose factors can be cut",
            "Make a lora of it with the base: adapter-trainer convert IN OUT --to comfyui "
            "--approximate lora --rank N --base PATH.",
        )

    def extract(self, plan: LayerPlan, matrix: Tensor) -> NoReturn:
        raise AdapterError(
            "kind=oft",
            "another kind: a difference of weights is seldom a rotation of them",
            "Extract a lora.",
        )

    def diffusers(self, tensors: Tensors, scale: float) -> NoReturn:
        raise AdapterError(*self.diffusers_problem({}))

    def diffusers_problem(self, layers: Mapping[str, LayerState]) -> tuple[str, str, str]:
        return (
            "an oft, which rotates the rows of the weight",
            "a kind that Diffusers and PEFT read: PEFT's own OFT rotates the columns",
            "Choose layout 'comfyui', 'kohya' or 'lycoris'. Or make a lora of it with the base: "
            "--approximate lora --rank N --base PATH.",
        )

    def peft_ranks(self, layers: Mapping[str, LayerState]) -> NoReturn:
        raise AdapterError(*self.diffusers_problem(layers))

    def comfyui_factors(self, tensors: Tensors) -> dict[str, Tensor]:
        return {n: square_blocks(t) if n == BLOCKS else t for n, t in tensors.items()}

    def comfyui_slots(self, found: Mapping[str, str]) -> dict[str, str]:
        endings = {BLOCKS: f".{BLOCKS}", "rescale": ".rescale"}
        return endings if f".{BLOCKS}" in found else {}

    def comfyui_fault(self, given: Mapping[str, Shape]) -> Fault | None:
        blocks = given[BLOCKS]
        if "rescale" in given:
            return Fault("read wrongly", "ComfyUI leaves the rescale of an OFT out")
        if "dora_scale" in given:
            return Fault("read wrongly", "ComfyUI multiplies what an OFT with DoRA adds by alpha")
        if len(blocks) == _BUTTERFLY and "alpha" not in given:
            return Fault("read wrongly", "ComfyUI reads no BOFT without an alpha")
        if len(blocks) == _BUTTERFLY and (blocks[0] != 1 or blocks[-1] % 2):
            return Fault("read wrongly", f"a BOFT of {blocks[0]} turns, which is not known here")
        if len(blocks) not in (3, _BUTTERFLY) or blocks[-1] != blocks[-2]:
            return Fault("wrong shape", f"blocks of {list(blocks)}, which are no squares: {STOPS}")
        return None

    def comfyui_sizes(self, given: Mapping[str, Shape]) -> Shape:
        return math.prod(given[BLOCKS][:-1]), 0

    def kohya_arguments(self, options: Mapping[str, Any]) -> dict[str, str]:
        return {"algo": "diag-oft"}


def _flat(blocks: Tensor) -> Tensor:
    """A file's blocks ``[n, size, size]`` as ``[n, size^2]``; also those of a BOFT of one turn.

    BOFT turns ``W' = P^T R P W``, where P puts the rows of a block's two halves in turn, and its R
    is not transposed. ``P^T R^T P`` is Cayley's rotation of ``P^T B^T P``, so that the same
    numbers, elsewhere, are an OFT.
    """
    if blocks.dim() == _BUTTERFLY and blocks.shape[0] == 1 and blocks.shape[-1] % 2 == 0:
        size = blocks.shape[-1]
        # Row r of a half, which lies at 2 r and at 2 r + 1 there.
        places = [*range(0, size, 2), *range(1, size, 2)]
        blocks = blocks[0][:, places][:, :, places].mT
    square = blocks.dim() == 3 and blocks.shape[1] == blocks.shape[2]
    return blocks.flatten(1) if square else blocks
