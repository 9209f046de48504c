"""Token routing: blocks in the middle compute a random part of an image's tokens.

The others pass by these blocks as they are, and are computed again by the last ones. A batch has
one draw, by the run's seed, the step and the micro-batch: so it is the same after any resume, on
any number of processes, and in parts of a micro-batch. Text and reference images are always
computed, each token at its own rotary position.

A block is called by what Diffusers' models call to compute activations again, outside of which
tokens are chosen: a block computes again what it was given. Passes without gradients, such as
previews, do not go that way and compute everything.

Source: Krause et al., TREAD (arXiv 2501.04765).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...config import RoutingSection
from ...counters import counter_seed
from ...device import send
from ...errors import ConfigError
from ...families.diffusers_parts import inner_module
from ...families.family import Family
from ...types import Conditioning
from .micro_batch import Predict


def routed_blocks(
    transformer: nn.Module, family: Family, settings: RoutingSection
) -> list[nn.Module]:
    """The blocks that compute a part of the tokens; none where every block computes all.

    Raises:
        ConfigError: When no block is left to be one, or the family's blocks cannot be.
    """
    require_routable(family, settings)
    spec = family.layers.routed
    if spec is None or settings.share == 1:
        return []
    inner = inner_module(transformer)
    blocks = [block for name in spec.blocks for block in inner.get_submodule(name).children()]
    end = len(blocks) - settings.last
    if settings.first >= end:
        raise ConfigError(
            f"training.routing.first is {settings.first} and training.routing.last is "
            f"{settings.last}, and the base has {len(blocks)} blocks",
            "blocks between the first and the last ones, which compute a part of the tokens",
            "Lower training.routing.first or training.routing.last.",
        )
    return blocks[settings.first : end]


def require_routable(family: Family, settings: RoutingSection) -> None:
    """Refuse routing where it is not known which inputs of a block belong to which token.

    Raises:
        ConfigError: When tokens are to be routed, and cannot be.
    """
    if settings.share < 1 and family.layers.routed is None:
        raise ConfigError(
            f"training.routing.share is {settings.share:g}, and family is {family.name}",
            "a family whose blocks are known to compute single tokens, which no model of the "
            "graph is",
            "Leave training.routing.share out, or name the model's file in Load Training Base.",
        )


class TokenRouting:
    """Lets the middle blocks of a denoiser compute a part of the tokens, while it trains.

    Args:
        transformer: The denoiser, whose blocks are called by this from now on.
        settings: Which part, and which blocks.

    Raises:
        ConfigError: As `routed_blocks`.
    """

    def __init__(
        self, transformer: nn.Module, family: Family, settings: RoutingSection, seed: int
    ) -> None:
        inner, spec = inner_module(transformer), family.layers.routed
        assert spec is not None
        blocks = routed_blocks(transformer, family, settings)
        self._spec, self._share, self._seed = spec, settings.share, seed
        self._patch = family.latents.patch
        self._places = {
            id(block): list(inspect.signature(type(block).forward).parameters)[1:]
            for block in blocks
        }
        checkpointed = inner.gradient_checkpointing
        self._call: Callable[..., Any] = lambda block, *inputs: block(*inputs)
        if checkpointed:
            self._call = inner._gradient_checkpointing_func
        self._at: tuple[int, int] = (0, 0)
        self._draw: _Draw | None = None
        family.layers.enable_checkpointing(transformer, self)

    def begin(self, step: int, micro: int) -> None:
        """Let the next passes have the draw of a micro-batch."""
        self._at = step, micro

    def routed(self, predict: Predict) -> Predict:
        """The same prediction, which computes a part of the tokens where gradients are wanted."""

        def routed(
            noisy: Tensor,
            sigma: Tensor,
            conditionings: Sequence[Conditioning],
            controls: Sequence[Tensor],
        ) -> Tensor:
            self._draw = self._drawn(noisy, controls)
            try:
                return predict(noisy, sigma, conditionings, controls)
            finally:
                self._draw = None

        return routed

    def _drawn(self, noisy: Tensor, controls: Sequence[Tensor]) -> _Draw:
        # What has other channels than the target belongs to its channels, and has no tokens.
        references = [each for each in controls if each.shape[1] == noisy.shape[1]]
        tokens = self._tokens(noisy)
        random = torch.Generator().manual_seed(counter_seed(self._seed, "routing", *self._at))
        order = torch.randperm(tokens, generator=random)
        chosen = order[: max(1, round(self._share * tokens))].sort().values
        behind = sum(map(self._tokens, references))
        return _Draw(chosen, tokens, behind, start=self._spec.start, device=noisy.device)

    def _tokens(self, latents: Tensor) -> int:
        return latents[0, 0].numel() // self._patch**2

    def __call__(self, block: nn.Module, *inputs: Any) -> Any:
        """Call a block, of the middle ones with the tokens that are drawn."""
        names, draw = self._places.get(id(block)), self._draw
        if names is None or draw is None:
            return self._call(block, *inputs)
        chosen = [draw.of(inputs[0], 1), *inputs[1:]]
        for name, axes in self._spec.axes.items():
            place = names.index(name)
            if place < len(inputs):
                chosen[place] = _each(inputs[place], axes, draw)
        output = self._call(block, *chosen)
        *others, computed = output if isinstance(output, tuple) else (output,)
        everything = inputs[0].index_copy(1, draw.places(inputs[0].shape[1]), computed)
        return (*others, everything) if isinstance(output, tuple) else everything


class _Draw:
    """The tokens that a pass computes.

    Args:
        chosen: Of the target's tokens, in their order, on the CPU.
        targets: How many tokens the target has.
        references: How many tokens its reference images have.
        start: As `RoutedBlocks.start`.
    """

    def __init__(
        self,
        chosen: Tensor,
        targets: int,
        references: int,
        start: Callable[[int, int, int], int],
        device: torch.device,
    ) -> None:
        self._chosen, self._targets, self._references = chosen, targets, references
        self._start, self._device = start, device
        self._places: dict[int, Tensor] = {}

    def places(self, length: int) -> Tensor:
        """Those of an axis of so many entries."""
        if length not in self._places:
            start = self._start(length, self._targets, self._references)
            behind = torch.arange(start + self._targets, length)
            places = torch.cat([torch.arange(start), start + self._chosen, behind])
            self._places[length] = send(places, self._device)
        return self._places[length]

    def of(self, tensor: Tensor, axis: int) -> Tensor:
        """What a tensor has for them."""
        return tensor.index_select(axis, self.places(tensor.shape[axis]))


def _each(value: Any, axes: Sequence[int | None], draw: _Draw) -> Any:
    """What an argument has for the tokens of a draw; None, and parts without an axis, stay."""
    if value is None:
        return None
    if isinstance(value, Tensor):
        (axis,) = axes
        return value if axis is None else draw.of(value, axis)
    parts = [
        part if axis is None else draw.of(part, axis)
        for part, axis in zip(value, axes, strict=False)
    ]
    return (*parts, *value[len(axes) :])
