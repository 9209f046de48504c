"""OFT: the weight's rows are rotated, block by block, instead of something being added to them."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..kernels.adapter_kernel import Factors
from ..kernels.convolution import Window
from .kind import MOVED, Kind, LayerPlan

BLOCKS = "oft_blocks"


def block_size(outputs: int, wanted: int) -> int:
    """The largest size up to a wanted one of which blocks fill the outputs.

    Args:
        outputs: Outputs of a layer.
        wanted: ``adapter.rank``.
    """
    return next(size for size in range(min(wanted, outputs), 0, -1) if outputs % size == 0)


def square_blocks(blocks: Tensor) -> Tensor:
    """A layer's factor ``[n, size^2]`` as blocks ``[n, size, size]``."""
    size = math.isqrt(blocks.shape[1])
    return blocks.unflatten(1, (size, size))


def turns(blocks: Tensor) -> Tensor:
    """``R - I`` of each block, where R is Cayley's rotation ``(I + Q) (I - Q)^-1``.

    Q is ``B - B^T``. The difference is computed as ``2 (I - Q)^-1 Q``: of a small Q, ``R`` would
    lose most digits of it beside the ones of I.

    Args:
        blocks: ``[n, size^2]``.

    Returns:
        ``[n, size, size]``, at least in float32.
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
