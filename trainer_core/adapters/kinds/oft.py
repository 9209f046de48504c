"""OFT: the weight's rows are rotated, block by block, instead of something being added to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NoReturn

import torch
from torch import Tensor

from ...errors import AdapterError
from ...types import LayerState
from ..kernels.adapter_kernel import Factors
from ..kernels.convolution import Window
from .file_rules import SKIPS, STOPS, Fault, FileRules, Shape, Tensors
from .kind import MOVED, Kind, LayerPlan

BLOCKS = "oft_blocks"


def block_size(outputs: int, wanted: int) -> int:
    """The largest size up to ``adapter.rank`` of which blocks fill the outputs."""
    return next(size for size in range(min(wanted, outputs), 0, -1) if outputs % size == 0)


def square_blocks(blocks: Tensor) -> Tensor:
    """A layer's factor ``[n, size^2]`` as blocks ``[n, size, size]``."""
    size = math.isqrt(blocks.shape[1])
    return blocks.unflatten(1, (size, size))


def turns(blocks: Tensor) -> Tensor:
    """``R - I`` of each block ``[n, size^2]``, where R is Cayley's ``(I + Q) (I - Q)^-1``.

    ``[n, size, size]``, at least in float32. Q is ``B - B^T``. The difference is computed as ``2 (I
    - Q)^-1 Q``: of a small Q, ``R`` would lose most digits of it beside the ones of I.
    """
    square = square_blocks(blocks.to(torch.promote_types(blocks.dtype, torch.float32)))
    skew = square - square.mT
    identity = torch.eye(skew.shape[1], dtype=skew.dtype, device=skew.device)
    # I - Q has no eigenvalue below 1, so that nothing needs to be checked, which would wait for
    # the device.
    return 2.0 * torch.linalg.solve_ex(identity - skew, skew, check_errors=False)[0]


def _delta(factors: Factors, scale: float) -> Tensor:
    """What the weight is multiplied by for its difference, ``[out, out]``."""
    return torch.block_diag(*(turns(factors[BLOCKS]) * scale).mT)


def _apply(y: Tensor, factors: Factors, scale: float) -> Tensor:
    """Turn each block of the frozen layer's outputs, as ComfyUI turns the rows of its weight."""
    turned = (turns(factors[BLOCKS]) * scale).to(y.dtype)
    groups = y.unflatten(-1, turned.shape[:2])
    return torch.einsum("knm,...kn->...km", turned, groups).flatten(-2)


def _convolve(window: Window, y: Tensor, factors: Factors, scale: float) -> Tensor:
    """The same at each place of a convolution's output."""
    del window
    return _apply(y.movedim(1, -1), factors, scale).movedim(-1, 1)


def _shapes(plan: LayerPlan) -> dict[str, tuple[int, ...]]:
    return {BLOCKS: (plan.outputs // plan.rank, plan.rank * plan.rank)}


def _problem(plan: LayerPlan) -> tuple[str, str, str] | None:
    if plan.config.dora or plan.config.dropout:
        name = "dora" if plan.config.dora else "dropout"
        return (
            f"adapter.{name} is set and adapter.kind is oft",
            f"adapter.{name} with a kind that is added to the weight",
            f"Leave adapter.{name} out, or set adapter.kind to lora.",
        )
    if plan.rank > 1:
        return None
    return (
        f"{plan.name} has {plan.outputs} outputs, which no blocks of 2 to "
        f"{max(plan.config.rank, 2)} fill",
        "for oft, outputs that a block size from 2 up to adapter.rank divides: a block of one "
        "number cannot be turned",
        "Raise adapter.rank, or leave the layer out with adapter.exclude.",
    )


def _distance(plan: LayerPlan) -> float:
    """Of a weight that makes outputs as large as its inputs: each number turns four entries."""
    return 4 * MOVED * math.sqrt((plan.rank - 1) * plan.outputs)


def _spread(plan: LayerPlan) -> float:
    """Blocks have few of a gradient's directions; measured at 3072 with blocks of 4, 16 and 32."""
    return math.sqrt(1.2 * plan.width / (plan.rank - 1))


OFT = Kind(
    name="oft",
    factor_names=(BLOCKS,),
    shapes=_shapes,
    initializers={},
    scale=lambda factors, alpha, rank: 1.0,
    delta=_delta,
    apply=_apply,
    convolve=_convolve,
    multiplies=True,
    crosses_groups=True,
    layer_rank=block_size,
    largest_rank=lambda plan: None,
    problem=_problem,
    distance=_distance,
    spread=_spread,
)
"""W' = R^T W with R of blocks on the diagonal, each Cayley's rotation of a skew matrix.

The rank is the blocks' size. All blocks start at zero, where R is I.

Source: Qiu et al. 2023, arXiv:2306.07280; the side, the transposition and the parts of Q are those
of LyCORIS 4.1.3 (``diag-oft``) and ComfyUI 0.33, without their limit on Q (a file's alpha).
"""


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
        turns = f", or a BOFT of {blocks.shape[0]} turns" if blocks.dim() == _BUTTERFLY else ""
        shape = tuple(blocks.shape)
        return "" if square else f"has {BLOCKS} of {shape}, which are not squares{turns}"

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

    def norm_on_device(self, matrices: Tensors) -> Tensor:
        return torch.linalg.vector_norm(turns(matrices[BLOCKS]), dtype=torch.float32)

    def product(self, matrices: Tensors, scale: float) -> NoReturn:
        raise AdapterError(
            "an oft as a sum of factors", _LOST, "Give the base's weight: --base PATH --rank N."
        )

    def fit(self, source: Tensors, fresh: Tensors) -> NoReturn:
        found, wanted = (self.guessed_rank(each) for each in (source, fresh))
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

    def comfyui_fault(self, shapes: Mapping[str, Shape]) -> Fault | None:
        blocks = shapes[BLOCKS]
        if "rescale" in shapes:
            return Fault("read wrongly", "ComfyUI leaves the rescale of an OFT out")
        if "dora_scale" in shapes:
            return Fault("read wrongly", "ComfyUI multiplies what an OFT with DoRA adds by alpha")
        if len(blocks) == _BUTTERFLY and "alpha" not in shapes:
            return Fault("read wrongly", f"a BOFT without an alpha: {SKIPS}")
        if len(blocks) == _BUTTERFLY and (blocks[-1] % 2 or 2 * blocks[1] % 2 ** blocks[0]):
            return Fault("wrong shape", f"a BOFT whose turns do not part its rows: {SKIPS}")
        if len(blocks) not in (3, _BUTTERFLY) or blocks[-1] != blocks[-2]:
            return Fault("wrong shape", f"blocks of {list(blocks)}, which are not squares: {STOPS}")
        return None

    def comfyui_sizes(self, shapes: Mapping[str, Shape]) -> Shape:
        return math.prod(shapes[BLOCKS][-3:-1]), 0

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
