"""AdamW that keeps its moments in 8 bits: two bytes for a parameter instead of eight.

The numbers are those of Dettmers et al. 2022 (8-bit optimizers via block-wise quantization,
arXiv:2110.02861), as bitsandbytes' AdamW8bit has them: blocks of 256, each with an fp32 scale, and
256 levels that are dense near zero. docs/decisions/0045 says why it is written here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from .optimizer_kind import PACKED

BLOCK = 256
"""Numbers that share a scale."""

_SCALE = 4
_SMALLEST = PACKED
"""Parameters of fewer numbers keep their moments in fp32."""

_AT_ONCE = 2**22
"""Numbers that are updated together: few launches, and little room for what is unpacked."""

STATES = ("exp_avg", "exp_avg_sq")
"""What a state has besides ``step``: the mean gradient and the mean squared one."""


class AdamW8bit(torch.optim.Optimizer):
    """AdamW with packed moments.

    Args:
        groups: As of `torch.optim.AdamW`; where ``bits`` is 32 the group's moments stay in fp32.
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(
            groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0, "bits": 8}
        )
        self._levels: dict[torch.device, tuple[Levels, ...]] = {}

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Update every parameter that has a gradient."""
        del closure
        for group in self.param_groups:
            plain: list[Tensor] = []
            packed: list[Tensor] = []
            for each in group["params"]:
                if each.grad is None:
                    continue
                state = self.state[each]
                if not state:
                    state.update(new_state(each, group))
                is_packed = state[STATES[0]].dtype == torch.uint8
                (packed if is_packed else plain).append(each)
            if plain:
                self._update_plain(plain, group)
            if packed:
                torch._foreach_add_([self.state[each]["step"] for each in packed], 1.0)  # pyright: ignore[reportPrivateImportUsage]
            # A layer that was left out by chance is some steps behind.
            by_step: dict[float, list[Tensor]] = {}
            for each in packed:
                by_step.setdefault(self.state[each]["step"].item(), []).append(each)
            for number, parameters in by_step.items():
                for few in portions(parameters):
                    self._update(few, group, number)

    def _update_plain(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        states = [self.state[each] for each in parameters]
        adamw(
            parameters,
            [each.grad for each in parameters if each.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _update(self, parameters: list[Tensor], group: dict[str, Any], step: float) -> None:
        (beta1, beta2), rate = group["betas"], group["lr"]
        gradient = _blocks([each.grad for each in parameters if each.grad is not None])
        stored = [[self.state[each][name] for each in parameters] for name in STATES]
        device = gradient.device
        if device not in self._levels:
            self._levels[device] = tuple(levels(name, device) for name in STATES)
        formats = self._levels[device]
        mean, square = (f.unpack(torch.cat(s)) for f, s in zip(formats, stored, strict=True))
        mean.mul_(beta1).add_(gradient, alpha=1 - beta1)
        square.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        rows = [len(each) for each in stored[0]]
        for parts, each, moment in zip(stored, formats, (mean, square), strict=True):
            torch._foreach_copy_(parts, each.pack(moment).split(rows))  # pyright: ignore[reportPrivateImportUsage]
        square.sqrt_().div_(math.sqrt(1 - beta2**step)).add_(group["eps"])
        change, divisor = (
            [_like(part, each) for part, each in zip(moment.split(rows), parameters, strict=True)]
            for moment in (mean, square)
        )
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - rate * group["weight_decay"])  # pyright: ignore[reportPrivateImportUsage]
        torch._foreach_addcdiv_(parameters, change, divisor, -rate / (1 - beta1**step))  # pyright: ignore[reportPrivateImportUsage]


class Levels(NamedTuple):
    """How a moment is kept in 8 bits.

    Attributes:
        values: The 256 levels, rising, from -1 or 0 to 1.
        bounds: The 255 numbers between them.
    """

    values: Tensor
    bounds: Tensor

    def pack(self, moment: Tensor) -> Tensor:
        """Keep blocks of numbers, float32 ``[n, 256]``.

        Returns:
            uint8 ``[n, 260]``: levels, and behind them the bytes of the block's scale.
        """
        packed = moment.new_empty((len(moment), BLOCK + _SCALE), dtype=torch.uint8)
        scale = moment.abs().amax(dim=1, keepdim=True)
        packed[:, BLOCK:].view(torch.float32).copy_(scale)
        share = moment / scale.clamp_min(torch.finfo(torch.float32).tiny)
        packed[:, :BLOCK].copy_(torch.bucketize(share, self.bounds, out_int32=True))
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """Read what `pack` kept: float32 ``[n, 256]``."""
        chosen, scale = packed[:, :BLOCK].int(), packed[:, BLOCK:].view(torch.float32)
        return self.values.index_select(0, chosen.view(-1)).view(-1, BLOCK).mul_(scale)


def levels(name: str, device: torch.device) -> Levels:
    """The levels of a moment: `STATES`.

    With an exponent e from 0 to 6 they are ``10^(e - 6)`` times the middles of equal parts of
    [0.1, 1]: of ``2^e`` parts, with either sign; or, for squares, of twice as many. Then 0 and 1.
    """
    signed = name == STATES[0]
    found = [torch.tensor([0.0, 1.0])]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (exponent + (not signed)) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (exponent - 6)
        found += [middles, -middles] if signed else [middles]
    values = torch.cat(found).sort().values
    bounds = (values[1:] + values[:-1]) / 2
    if not signed:
        # A small mean square that became 0 would let its mean gradient be divided by eps.
        bounds[0] = -1.0
    return Levels(values.to(device), bounds.to(device))


def new_state(parameter: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
    """What an optimizer of ours keeps for a parameter before its first step.

    Args:
        parameter: Float32.
        group: Of the optimizer, an `AdamW8bit` or torch's AdamW.
    """
    place = parameter.device if group.get("fused") else "cpu"
    step = torch.tensor(0.0, dtype=torch.float32, device=place)
    if not _is_packed(parameter, group):
        # As torch makes it: in the parameter's order in memory.
        return {"step": step} | {name: torch.zeros_like(parameter) for name in STATES}
    size = _packed_size(parameter)
    zeros = {name: torch.zeros(size, dtype=torch.uint8, device=parameter.device) for name in STATES}
    return {"step": step} | zeros


def fit_moment(stored: Tensor, parameter: Tensor, group: dict[str, Any], name: str) -> Tensor:
    """Turn a stored moment into what an optimizer keeps now; bit for bit where it is that already.

    Args:
        stored: As a checkpoint has it, of either optimizer.
        name: `STATES`.

    Returns:
        A tensor of its own, on the parameter's device.
    """
    found = stored.to(parameter.device, copy=True)
    if (stored.dtype == torch.uint8) == _is_packed(parameter, group):
        return found
    form = levels(name, parameter.device)
    if stored.dtype == torch.uint8:
        return _like(form.unpack(found), parameter)
    return form.pack(_blocks([found]))


def stored_shape(stored: Tensor, parameter: Tensor) -> tuple[int, ...]:
    """The shape that a parameter's stored moment must have."""
    return _packed_size(parameter) if stored.dtype == torch.uint8 else tuple(parameter.shape)


def packed_bytes(shape: Sequence[int]) -> float:
    """Bytes of the state of a factor: moments in 8 bits with a scale for 256 of them."""
    size = math.prod(shape)
    each = (BLOCK + _SCALE) / BLOCK if size >= _SMALLEST else 4.0
    return len(STATES) * each * size


def _is_packed(parameter: Tensor, group: dict[str, Any]) -> bool:
    return group.get("bits") == 8 and parameter.numel() >= _SMALLEST


def _packed_size(parameter: Tensor) -> tuple[int, int]:
    return -(-parameter.numel() // BLOCK), BLOCK + _SCALE


def _blocks(tensors: Sequence[Tensor]) -> Tensor:
    """One behind the other, each filled up with zeros to whole blocks: ``[n, 256]``."""
    parts: list[Tensor] = []
    for each in tensors:
        parts.append(each.reshape(-1))
        if each.numel() % BLOCK:
            parts.append(each.new_zeros(-each.numel() % BLOCK))
    return torch.cat(parts).view(-1, BLOCK)


def _like(blocks: Tensor, parameter: Tensor) -> Tensor:
    """View a parameter's blocks, without what filled them up, in its shape."""
    if parameter.numel() % BLOCK:
        blocks = blocks.view(-1)[: parameter.numel()]
    return blocks.view(parameter.shape)


def portions(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Cut parameters into lists of about as many numbers as are updated together."""
    portion: list[Tensor] = []
    count = 0
    for each in parameters:
        if portion and count + each.numel() > _AT_ONCE:
            yield portion
            portion, count = [], 0
        portion.append(each)
        count += each.numel()
    yield portion
