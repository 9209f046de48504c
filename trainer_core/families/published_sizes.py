"""How large the layers of a published base are, and how many blocks it has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Size = tuple[int, int]
"""Outputs and inputs of a layer."""

_BLOCK = re.compile(r"([a-z_.]*[a-z_])\.([0-9]+)\.(.+)")


@dataclass(frozen=True, slots=True)
class PublishedSizes:
    """The layers of a base.

    Attributes:
        layers: Path in Diffusers' transformer, with ``{}`` for a block's number, to the size.
        blocks: A list of blocks, by Diffusers' and by ComfyUI's name, to how many it has.
        width: Of the hidden state.
    """

    layers: Mapping[str, Size]
    blocks: Mapping[str, int]
    width: int

    @property
    def numbers(self) -> int:
        """Numbers of the weights of all layers."""
        return sum(
            rows * columns * (self.blocks[path.partition(".{}")[0]] if ".{}" in path else 1)
            for path, (rows, columns) in self.layers.items()
        )

    def of(self, module: str) -> Size | None:
        """The size of a layer; None for one that the architecture lacks."""
        block = None if module in self.layers else _BLOCK.fullmatch(module)
        template = module if block is None else f"{block[1]}.{{}}.{block[3]}"
        return self.layers.get(template)

    def lacks_block(self, path: str) -> str:
        """What is wrong with the number of a path's block; empty where nothing is."""
        block = _BLOCK.fullmatch(path)
        count = None if block is None else self.blocks.get(block[1])
        if block is None or count is None or int(block[2]) < count:
            return ""
        return f"{block[1]} has {count} blocks, from 0 to {count - 1}"
