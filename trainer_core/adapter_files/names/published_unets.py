"""The modules of Stable Diffusion's UNets as published, in their authors' names, without a model.

A file that was trained through a model names the layers that it adapts, and no others. What they
are called by other programs follows from the whole structure (`unet_names`), and a file under those
names does not even tell its layers. The header tells which UNet it was.

Source: ComfyUI 0.33, ``comfy/ldm/modules/diffusionmodules/openaimodel.py`` and
``comfy/supported_models.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

_RESIDUAL = ("in_layers.2", "emb_layers.1", "out_layers.3")
_RESIDUAL_NORMS = ("in_layers.0", "out_layers.0")
_AROUND = ("proj_in", "proj_out")
_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
_BLOCK = (
    *(f"{each}.{layer}" for each in ("attn1", "attn2") for layer in _ATTENTION),
    *("ff.net.0.proj", "ff.net.2"),
)
_BLOCK_NORMS = ("norm1", "norm2", "norm3")
_ENDS = ("time_embed.0", "time_embed.2", "input_blocks.0.0", "out.2")
_LABEL = ("label_emb.0.0", "label_emb.0.2")
_DOWN, _UP = 2, 3
"""Residual blocks of each level, on the way down and on the way up."""


@dataclass(frozen=True, slots=True)
class PublishedUnet:
    """The modules of one UNet that have weights.

    Attributes:
        layers: Paths of its Linear layers and convolutions.
        norms: Paths of its norms.
    """

    layers: tuple[str, ...]
    norms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a UNet is built by.

    Attributes:
        widths: Of its levels, in units of the first.
        depths: Transformer blocks of each level; 0 for no transformer.
        middle: The same in the middle.
        labelled: Whether it reads a label.
    """

    widths: tuple[int, ...]
    depths: tuple[int, ...]
    middle: int
    labelled: bool = False


_FOUR_LEVELS = _Shape((1, 2, 4, 4), (1, 1, 1, 0), 1)
_SHAPES: Mapping[str, _Shape] = {
    "stable-diffusion-v1": _FOUR_LEVELS,
    "stable-diffusion-v2-512": _FOUR_LEVELS,
    "stable-diffusion-xl-v1-base": _Shape((1, 2, 4), (0, 2, 10), 10, labelled=True),
}
"""By what headers of adapter files call them (``modelspec.architecture``)."""


@cache
def published_unet(architecture: str) -> PublishedUnet | None:
    """The UNet of an architecture, as a header names it; None for any other model."""
    shape = _SHAPES.get(architecture)
    if shape is None:
        return None
    layers = [*_ENDS, *(_LABEL if shape.labelled else ())]
    norms = ["out.0"]
    for path, is_norm in (*_down(shape), *_middle(shape), *_up(shape)):
        (norms if is_norm else layers).append(path)
    return PublishedUnet(tuple(layers), tuple(norms))


_Module = tuple[str, bool]
"""A path, and whether it is a norm's."""


def _down(shape: _Shape) -> Iterator[_Module]:
    number, last = 1, len(shape.widths) - 1
    for level, (before, width) in enumerate(pairwise((shape.widths[0], *shape.widths))):
        for place in range(_DOWN):
            own = f"input_blocks.{number}"
            yield from _residual(f"{own}.0", widened=place == 0 and before != width)
            yield from _transformer(f"{own}.1", shape.depths[level])
            number += 1
        if level < last:
            yield f"input_blocks.{number}.0.op", False
            number += 1


def _middle(shape: _Shape) -> Iterator[_Module]:
    yield from _residual("middle_block.0", widened=False)
    yield from _transformer("middle_block.1", shape.middle)
    yield from _residual("middle_block.2", widened=False)


def _up(shape: _Shape) -> Iterator[_Module]:
    number = 0
    for level in reversed(range(len(shape.widths))):
        for place in range(_UP):
            own, depth = f"output_blocks.{number}", shape.depths[level]
            yield from _residual(f"{own}.0", widened=True)  # by what is handed across
            yield from _transformer(f"{own}.1", depth)
            if level and place == _UP - 1:
                yield f"{own}.{2 if depth else 1}.conv", False
            number += 1


def _residual(path: str, *, widened: bool) -> Iterator[_Module]:
    for name in (*_RESIDUAL, *(("skip_connection",) if widened else ())):
        yield f"{path}.{name}", False
    for name in _RESIDUAL_NORMS:
        yield f"{path}.{name}", True


def _transformer(path: str, depth: int) -> Iterator[_Module]:
    if not depth:
        return
    yield f"{path}.norm", True
    for name in _AROUND:
        yield f"{path}.{name}", False
    for number in range(depth):
        block = f"{path}.transformer_blocks.{number}"
        for name in _BLOCK:
            yield f"{block}.{name}", False
        for name in _BLOCK_NORMS:
            yield f"{block}.{name}", True
