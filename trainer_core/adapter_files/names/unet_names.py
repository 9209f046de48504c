"""The layers of Stable Diffusion's UNet: its authors' names, which ComfyUI has, and Diffusers'.

The UNet goes down over some levels, through its middle, and up again. On each level are some
residual blocks, each with a transformer behind it or without one, and at its end a layer that
changes the size. The authors count all of these in one list, Diffusers by level. Which there are
follows from the names alone, so that SD 1.5, SD 2, SDXL and its smaller relatives need no
configuration.

A file that was trained through a model names the layers that it adapts, and no others, so that
their names elsewhere do not follow from it, and a file under those names does not even tell its
layers. Its header tells which UNet it was: `published_unet` has the modules of each.

Source: ComfyUI 0.33, ``comfy/utils.py`` (`unet_to_diffusers`), ``comfy/supported_models.py`` and
``comfy/ldm/modules/diffusionmodules/openaimodel.py``; Diffusers 0.42,
``loaders/single_file_utils.py``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

_RESIDUAL = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}
_OUTER = {
    "input_blocks.0.0": "conv_in",
    "time_embed.0": "time_embedding.linear_1",
    "time_embed.2": "time_embedding.linear_2",
    "label_emb.0.0": "add_embedding.linear_1",
    "label_emb.0.2": "add_embedding.linear_2",
    "out.0": "conv_norm_out",
    "out.2": "conv_out",
}
_BLOCK = re.compile(r"(input|output)_blocks\.(\d+)\.(\d+)\.(\w+)(?:\.|$)")
_LEVELS_OF_SDXL = 3


@dataclass(frozen=True, slots=True)
class UnetNames:
    """The names of one UNet.

    Attributes:
        diffusers: Path of each module with weights to that in Diffusers' UNet.
        levels: On how many levels of size it works.
    """

    diffusers: Mapping[str, str]
    levels: int

    @property
    def is_sdxl(self) -> bool:
        """Whether it is SDXL's, or smaller: kohya's trainer has the authors' names for these.

        For SD 1.5 and SD 2, which work on four levels, it has those of Diffusers.
        """
        return self.levels == _LEVELS_OF_SDXL


def unet_names(paths: Iterable[str]) -> UnetNames | None:
    """Find the names in Diffusers' UNet, from the paths of every module with weights.

    None when these are not a UNet's, or one of a make that Diffusers does not have.
    """
    modules = tuple(paths)
    parts = _parts(modules)
    if not {0, 1} <= set(parts["input"]) or not {0, 1} <= set(parts["output"]):
        return None
    prefixes = dict([*_down(parts["input"]), *_middle(modules), *_up(parts["output"])])
    levels = 1 + sum("op" in names for each in parts["input"].values() for names in each.values())
    table = {path: _OUTER.get(path) or _inside(path, prefixes) for path in modules}
    known = {path: name for path, name in table.items() if name is not None}
    return UnetNames(known, levels) if len(known) == len(modules) else None


_Blocks = Mapping[int, Mapping[int, Collection[str]]]
"""Number of a block to the number of a part in it, to the names of what that part consists of."""


def _parts(paths: Iterable[str]) -> dict[str, dict[int, dict[int, set[str]]]]:
    found: dict[str, dict[int, dict[int, set[str]]]] = {"input": {}, "output": {}}
    for path in paths:
        if path == "input_blocks.0.0":
            found["input"][0] = {}
        place = _BLOCK.match(path)
        if place is not None:
            side, block, part, name = place.groups()
            found[side].setdefault(int(block), {}).setdefault(int(part), set()).add(name)
    return found


def _down(blocks: _Blocks) -> Iterator[tuple[str, str]]:
    """What each part on the way down is called, by its path."""
    level = first = 0
    for number in sorted(blocks)[1:]:
        if "op" in blocks[number].get(0, ()):
            yield f"input_blocks.{number}.0.op", f"down_blocks.{level}.downsamplers.0.conv"
            level, first = level + 1, number
        else:
            own, theirs = f"input_blocks.{number}", f"down_blocks.{level}"
            yield f"{own}.0", f"{theirs}.resnets.{number - first - 1}"
            yield f"{own}.1", f"{theirs}.attentions.{number - first - 1}"


def _middle(paths: Collection[str]) -> Iterator[tuple[str, str]]:
    own = [path.removeprefix("middle_block.") for path in paths if path.startswith("middle_block.")]
    yield "middle_block.0", "mid_block.resnets.0"
    if any(path.startswith("1.transformer_blocks.") for path in own):
        yield "middle_block.1", "mid_block.attentions.0"
    yield "middle_block.2", "mid_block.resnets.1"


def _up(blocks: _Blocks) -> Iterator[tuple[str, str]]:
    level = first = 0
    for number in sorted(blocks):
        own, theirs = f"output_blocks.{number}", f"up_blocks.{level}"
        yield f"{own}.0", f"{theirs}.resnets.{number - first}"
        yield f"{own}.1", f"{theirs}.attentions.{number - first}"
        # The layer behind the last residual block of a level comes after the transformer, if any.
        for part, names in blocks[number].items():
            if "conv" in names:
                yield f"{own}.{part}.conv", f"{theirs}.upsamplers.0.conv"
                level, first = level + 1, number + 1


def _inside(path: str, prefixes: Mapping[str, str]) -> str | None:
    """A module's name by that of the part that it lies in; None for a module of no such part."""
    if path in prefixes:
        return prefixes[path]
    own = ".".join(path.split(".")[: 2 if path.startswith("middle_block.") else 3])
    if own not in prefixes:
        return None
    rest = path.removeprefix(f"{own}.")
    if ".resnets." in prefixes[own]:
        rest = _RESIDUAL.get(rest)
    return None if rest is None else f"{prefixes[own]}.{rest}"


_LAYERS_OF_RESIDUAL = ("in_layers.2", "emb_layers.1", "out_layers.3")
_NORMS_OF_RESIDUAL = ("in_layers.0", "out_layers.0")
_AROUND = ("proj_in", "proj_out")
_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0")
_LAYERS_OF_BLOCK = (
    *(f"{each}.{layer}" for each in ("attn1", "attn2") for layer in _ATTENTION),
    *("ff.net.0.proj", "ff.net.2"),
)
_NORMS_OF_BLOCK = ("norm1", "norm2", "norm3")
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
    for path, is_norm in (*_built_down(shape), *_built_middle(shape), *_built_up(shape)):
        (norms if is_norm else layers).append(path)
    return PublishedUnet(tuple(layers), tuple(norms))


_Module = tuple[str, bool]
"""A path, and whether it is a norm's."""


def _built_down(shape: _Shape) -> Iterator[_Module]:
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


def _built_middle(shape: _Shape) -> Iterator[_Module]:
    yield from _residual("middle_block.0", widened=False)
    yield from _transformer("middle_block.1", shape.middle)
    yield from _residual("middle_block.2", widened=False)


def _built_up(shape: _Shape) -> Iterator[_Module]:
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
    for name in (*_LAYERS_OF_RESIDUAL, *(("skip_connection",) if widened else ())):
        yield f"{path}.{name}", False
    for name in _NORMS_OF_RESIDUAL:
        yield f"{path}.{name}", True


def _transformer(path: str, depth: int) -> Iterator[_Module]:
    if not depth:
        return
    yield f"{path}.norm", True
    for name in _AROUND:
        yield f"{path}.{name}", False
    for number in range(depth):
        block = f"{path}.transformer_blocks.{number}"
        for name in _LAYERS_OF_BLOCK:
            yield f"{block}.{name}", False
        for name in _NORMS_OF_BLOCK:
            yield f"{block}.{name}", True
