"""A training step of one full-width Qwen-Image block, over the frozen step."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trainer_core.adapters import attach
from trainer_core.config import AdapterConfig
from trainer_core.families.registry import get_family

from .counters import Operations, count, saved_bytes
from .peers import peft_configs
from .recipes import GROUPS, OURS, RANK
from .timing import Ratio, eager_ratios

WIDTH = 3072
HEADS = 24
IMAGE_SIDE = {"cpu": 32, "cuda": 64}
"""Image tokens in a row; 1024 tokens, or 4096 on a GPU."""
TEXT_TOKENS = 64
SEPARATE = "separate"
"""The form in which q, k and v do not share their input; in the other, as in training, they do."""

PEFT_GROUPS = ("lora", "loha", "lokr r16 f8", "dora output")
"""Its other LoKr cost the same."""
APART = ("lora", "loha", "lokr r16 f8", "dora output")
"""Ours that are measured without a shared input as well."""

Name = tuple[str, str, str]
"""Source, group and form."""

_PLACE = "transformer_blocks.0"
"""Where the block would be in a transformer."""


@dataclass(frozen=True)
class BlockRow:
    """One implementation's figures.

    Attributes:
        name: What was measured.
        source: Who wrote it.
        group: What it computes.
        form: Empty, or `SEPARATE`.
        time: Over the frozen step; None without timed rounds.
        saved: Bytes kept for the backward pass, over the frozen step's.
        written: Bytes that operations wrote in a step, over the frozen step's.
        flops: Of matrix products, over the frozen step's.
        operations: How many wrote something.
        parameters: Trainable ones.
    """

    name: str
    source: str
    group: str
    form: str
    time: Ratio | None
    saved: float
    written: float
    flops: float
    operations: int
    parameters: int


def block_names() -> list[Name]:
    """Source, group and form of all that can be measured."""
    ours = [(OURS, group, "") for group in GROUPS]
    ours += [(OURS, group, SEPARATE) for group in APART]
    return ours + [("PEFT", group, "") for group in PEFT_GROUPS]


def measure_block(names: list[Name], rounds: int, device: str) -> list[BlockRow]:
    """Measure the block with all twelve Linears of attention and feed-forward adapted.

    Args:
        names: Source, group and form of each implementation.
        rounds: Timed rounds; 0 counts only.
        device: ``cpu`` or ``cuda``.

    Returns:
        The frozen block's row, then one for each implementation.
    """
    world = _World(device)
    everything = [("frozen", "frozen", ""), *names]
    built = [world.build(*name) for name in everything]
    steps = [world.step(module, parameters) for module, parameters in built]
    for step in steps:
        step()
    kept = [world.kept(module) for module, _ in built]
    done: list[Operations] = [count(step) for step in steps]
    times: list[Ratio | None] = [None] * len(built)
    if rounds:
        times = list(eager_ratios(steps, steps[0], rounds, device))
    rows = []
    for index, (source, group, form) in enumerate(everything):
        rows.append(
            BlockRow(
                name="frozen" if source == "frozen" else " ".join((source, group, form)).strip(),
                source=source,
                group=group,
                form=form,
                time=times[index],
                saved=round(kept[index] / kept[0], 3),
                written=round(done[index].written / done[0].written, 4),
                flops=round(done[index].flops / done[0].flops, 4),
                operations=done[index].calls,
                parameters=sum(each.numel() for each in built[index][1]),
            )
        )
    del built, steps
    gc.collect()
    return rows


class _World:
    """The block's weights, which all implementations share, and its batch."""

    def __init__(self, device: str) -> None:
        from diffusers.models.transformers.transformer_qwenimage import QwenEmbedRope

        generator = torch.Generator().manual_seed(6)

        def draw(*shape: int) -> Tensor:
            noise = torch.empty(shape, dtype=torch.bfloat16).normal_(generator=generator)
            return noise.to(device)

        side = IMAGE_SIDE[device]
        self._weights = {
            name: self._first_value(name, draw(*value.shape))
            for name, value in self._empty().state_dict().items()
        }
        self._image = draw(1, side * side, WIDTH).requires_grad_(True)
        self._text = draw(1, TEXT_TOKENS, WIDTH).requires_grad_(True)
        self._gradients = (draw(1, side * side, WIDTH), draw(1, TEXT_TOKENS, WIDTH))
        self._time = draw(1, WIDTH)
        rope = QwenEmbedRope(theta=10000, axes_dim=[16, 56, 56], scale_rope=True)
        places: Any = [(1, side, side)]
        self._rotation = rope(places, device=torch.device(device), max_txt_seq_len=TEXT_TOKENS)

    @staticmethod
    def _empty() -> nn.Module:
        from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformerBlock

        with torch.device("meta"):
            return QwenImageTransformerBlock(WIDTH, HEADS, WIDTH // HEADS)

    @staticmethod
    def _first_value(name: str, noise: Tensor) -> Tensor:
        if noise.dim() == 2:
            return noise.div_(noise.shape[1] ** 0.5)
        return noise.mul_(0.1).add_(1.0 if "norm" in name and name.endswith("weight") else 0.0)

    def build(self, source: str, group: str, form: str) -> tuple[nn.Module, list[nn.Parameter]]:
        """A block on the shared weights, with an adapter or frozen."""
        module = self._empty()
        module.load_state_dict(self._weights, assign=True)
        module.requires_grad_(False).train()
        targets = [
            name
            for name, part in module.named_modules()
            if isinstance(part, nn.Linear) and "_mod" not in name
        ]
        if source == OURS:
            chosen = {f"{_PLACE}.{name}": module.get_submodule(name) for name in targets}
            shared = () if form == SEPARATE else get_family("qwen_image").layers.shared_inputs
            config = AdapterConfig(rank=RANK, **GROUPS[group])
            adapter = attach(module, config, chosen, shared=shared)
            adapter.train()
            return module, list(adapter.parameters())
        if source == "PEFT":
            from peft import inject_adapter_in_model

            inject_adapter_in_model(peft_configs(target_modules=targets)[group], module)
            for part in module.parameters():
                part.data = part.data.to(torch.bfloat16)
        return module, [each for each in module.parameters() if each.requires_grad]

    def forward(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Text and image after the block."""
        return module(self._image, self._text, None, self._time, image_rotary_emb=self._rotation)

    def step(self, module: nn.Module, parameters: list[nn.Parameter]) -> Callable[[], object]:
        """Forward, backward and AdamW."""
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True) if parameters else None

        def step() -> None:
            text, image = self.forward(module)
            self._image.grad = self._text.grad = None
            torch.autograd.backward((image, text), self._gradients)
            if optimizer is not None:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)

        return step

    def kept(self, module: nn.Module) -> int:
        """Bytes kept for the backward pass, without parameters."""
        with saved_bytes(module.parameters()) as saved:
            self.forward(module)
        return saved.bytes
