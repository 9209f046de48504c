"""The denoiser of Qwen-Image 2.1 in the trainer's convention.

Text, reference images and target are one sequence. What stands where follows from the shapes of the
conditioning alone, so that no number has to come back from the device, and a step can be simulated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...types import Conditioning
from ..diffusers_parts import computing_dtype, inner_module, pipeline_time

BEFORE_IMAGE = "before_image_{}"
"""The text before a reference image, numbered from 1; ``text_embeddings`` is what is behind all."""

_RUNS = "text_runs"
_SLOT = 4
"""Latents of an image that stand in the place of one of the text encoder's image tokens."""

Shape = tuple[int, int, int]
"""Frames, rows and columns of an image's latents."""


def prepare(transformer: nn.Module) -> None:
    """`LayerSpec.prepare`: the model is told where the images are (`joint_forward`)."""
    transformer.forward = partial(joint_forward, transformer)


def predict(
    transformer: nn.Module,
    noisy: Tensor,
    sigma: Tensor,
    conditionings: Sequence[Conditioning],
    controls: Sequence[Tensor] = (),
    guidance: float = 1.0,
) -> Tensor:
    """`Predict` for Qwen-Image 2.1; no published base is conditioned on guidance.

    The target's positions begin where the text ends, so that no padding would leave them as they
    are: samples whose texts have other lengths are computed by themselves. Each conditioning has
    ``text_embeddings`` `[L, D]` and, for each reference image, the text before it
    (`BEFORE_IMAGE`) `[L, D]`.
    """
    alone = _is_sharded(transformer)
    groups: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for index, each in enumerate(conditionings):
        runs = tuple(map(len, _runs(each, len(controls))))
        groups.setdefault((runs, index if alone else 0), []).append(index)
    velocities: dict[int, Tensor] = {}
    for (runs, _), members in groups.items():

        def chosen(batch: Tensor, members: list[int] = members) -> Tensor:
            return batch if len(members) == len(batch) else torch.stack([batch[i] for i in members])

        texts = [conditionings[index] for index in members]
        references = [chosen(each) for each in controls]
        found = _predict_alike(
            transformer,
            runs,
            chosen(noisy),
            sigma=chosen(sigma),
            conditionings=texts,
            controls=references,
        )
        velocities.update(zip(members, found, strict=True))
    return torch.stack([velocities[index] for index in range(len(noisy))])


def _is_sharded(transformer: nn.Module) -> bool:
    """Whether processes share the weights (FSDP2), and have to call the model equally often."""
    return any(each.__name__ == "FSDPModule" for each in type(inner_module(transformer)).__mro__)


def _predict_alike(
    transformer: nn.Module,
    runs: tuple[int, ...],
    noisy: Tensor,
    sigma: Tensor,
    conditionings: Sequence[Conditioning],
    controls: Sequence[Tensor],
) -> Tensor:
    """As `predict`, of samples whose texts have the same lengths."""
    dtype = computing_dtype(transformer)
    images = [*controls, noisy]
    shapes = [(1, image.shape[-2], image.shape[-1]) for image in images]
    slots = [image.shape[-2] * image.shape[-1] // _SLOT for image in images]
    texts = []
    for each in conditionings:
        rows: list[Tensor] = []
        for run, count in zip(_runs(each, len(controls)), slots, strict=True):
            rows += [run, run.new_zeros(count, run.shape[-1])]
        texts.append(torch.cat(rows[:-1]))  # behind the text comes the target, without slots there
    device = noisy.device
    marks: list[Tensor] = []
    for run, count in zip(runs, slots, strict=True):
        # Made on the device: a list that is sent there would wait for what is computed there.
        marks += [torch.zeros(run, dtype=torch.bool, device=device)]
        marks += [torch.ones(count, dtype=torch.bool, device=device)]
    output = transformer(
        hidden_states=torch.cat([image.flatten(2).mT for image in images], dim=1).to(dtype),
        encoder_hidden_states=torch.stack(texts).to(device, dtype),
        timestep=pipeline_time(sigma, dtype),
        img_shapes=[shapes] * len(noisy),
        img_mask=torch.cat(marks).expand(len(noisy), -1),
        attention_kwargs={_RUNS: runs},
        return_dict=False,
    )[0]
    target = output[:, output.shape[1] - noisy[0, 0].numel() :]
    return target.mT.unflatten(2, noisy.shape[-2:]).to(noisy.dtype)


def _runs(conditioning: Conditioning, images: int) -> list[Tensor]:
    """The text before each reference image and before the target; a simulated one may lack it."""
    last = conditioning["text_embeddings"]
    names = [BEFORE_IMAGE.format(number + 1) for number in range(images)]
    return [*(conditioning.get(name, last[:0]) for name in names), last]


def joint_forward(
    model: Any,
    *,
    hidden_states: Tensor,
    encoder_hidden_states: Tensor,
    timestep: Tensor,
    img_shapes: Sequence[Sequence[Shape]],
    attention_kwargs: Mapping[str, Any],
    **others: Any,
) -> tuple[Tensor]:
    """What Diffusers' model computes, told where the images are instead of looking for them.

    It looks for them in a mask on the device, and waits for it several times a step. Arguments are
    as there, but text in an image's place is not read, and `attention_kwargs` has the text tokens
    before each image. `[B, h w, C]` of the target alone.
    """
    runs, shapes = attention_kwargs[_RUNS], img_shapes[0]
    image, text = model.img_in(hidden_states), model.txt_in(encoder_hidden_states)
    pieces: list[Tensor] = []
    segments: list[tuple[int, int, bool]] = []
    read = slots = length = 0
    for run, (_, height, width) in zip(runs, shapes, strict=True):
        pieces += [text[:, read : read + run], image[:, slots : slots + height * width]]
        segments += [(length, length + run, True)] if run else []
        segments.append((length + run, length + run + height * width, False))
        read, slots = read + run + height * width // _SLOT, slots + height * width
        length += run + height * width
    prefix = segments.pop()[0]
    joint = torch.cat(pieces, dim=1)
    time, mask = timestep.to(joint.dtype), None
    if model.config.causal_condition:
        time = torch.cat([time, time.new_zeros(1)])
        mask = torch.arange(length, device=joint.device) >= prefix
    embedded = model.time_text_embed(time, joint)
    modulation = model.modulation(embedded)
    positions = rotary(model.pos_embed, runs, shapes, joint.device)
    again = torch.is_grad_enabled() and model.gradient_checkpointing
    for block in model.transformer_blocks:
        call = partial(model._gradient_checkpointing_func, block) if again else block
        # Without a mask of another kind, a cache, or padding that would have to be left out.
        joint = call(joint, modulation, positions, None, mask, None, None, None, segments, None)
    return (model.proj_out(model.norm_out(joint[:, prefix:], embedded[: len(timestep)])),)


def rotary(rope: Any, runs: Sequence[int], shapes: Sequence[Shape], device: torch.device) -> Tensor:
    """The rotary positions of the sequence, `[S, D / 2]`, complex, with runs of text before images.

    A text's tokens advance on all three axes. An image stays where the text before it has come to
    on the first axis, and has its rows and columns around 0 on the others; what follows goes on
    behind its longer side. Tables of Diffusers' module are not read.
    """
    axes: tuple[list[Tensor], ...] = ([], [], [])
    position = 0
    for run, (_, height, width) in zip(runs, shapes, strict=True):
        text = torch.arange(position, position + run, device=device)
        position += run
        rows = torch.arange(height, device=device) - (height - height // 2)
        columns = torch.arange(width, device=device) - (width - width // 2)
        image = (
            torch.full((height * width,), position, device=device),
            rows[:, None].expand(height, width).flatten(),
            columns.expand(height, width).flatten(),
        )
        for axis, places in zip(axes, image, strict=True):
            axis += [text, places]
        position += max(height, width)
    turns = []
    for axis, size in zip(axes, rope.axes_dim, strict=True):
        share = torch.arange(0, size, 2, device=device).float() / size
        turns.append(torch.outer(torch.cat(axis), 1.0 / torch.pow(rope.theta, share)))
    angles = torch.cat(turns, dim=-1)
    return torch.polar(torch.ones_like(angles), angles)
