"""The cells of the campaign, most worth first. Imports nothing: the parent process has no torch.

A cell is a run file's settings as a dictionary. One whose settings this version refuses is written
down as such and measured when they are there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

FAMILIES = ("flux", "qwen_image")
PIXELS = (1024, 512)
BASELINE = "bf16"
"""Resident, eager: what all others are a ratio to."""

START = "start, "
"""Begins the names of ways that load a base's file and make no step."""

KIND_FORMAT = "int8"
"""The base's format under which every kind is measured."""

Settings = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Way:
    """How a base is kept and computed with.

    Attributes:
        settings: Sections of the run file.
        swap: ``none``, ``half`` or ``all`` blocks.
        card: Imitates a GPU of so many GiB.
        alone: In a process of its own, for what leaves more behind than memory.
        from_file: Loads a base's file as a run does, and makes no step: what a start takes.
        traced: Also says what one step launches, and where it waits for the device.
        pixels: Sides of the images.
        families: The bases.
    """

    settings: Settings = field(default_factory=dict)
    swap: str = "none"
    card: int | None = None
    alone: bool = False
    from_file: bool = False
    traced: bool = False
    pixels: tuple[int, ...] = PIXELS
    families: tuple[str, ...] = FAMILIES


@dataclass(frozen=True)
class Cell:
    """One measurement: a way on a base at a size.

    Attributes:
        family: The base.
        way_name: Key of `WAYS`.
        way: What it is.
        pixels: Side of the image.
    """

    family: str
    way_name: str
    way: Way
    pixels: int

    @property
    def name(self) -> str:
        """How results call it."""
        return f"{self.family} {self.pixels} {self.way_name}"

    @property
    def baseline(self) -> str:
        """The cell that it is compared with."""
        return f"{self.family} {self.pixels} {BASELINE}"

    @property
    def seconds(self) -> int:
        """What it may take at most: one that would not fit what is left is not begun."""
        return (45 if self.family == "flux" else 75) + (60 if self.way.alone else 0)


def _kept(base_format: str, **more: Any) -> Settings:
    return {"memory": {"base_format": base_format, **more}}


def _adapter(**values: Any) -> Settings:
    # Not every layout has every axis of DoRA.
    return {**_kept(KIND_FORMAT), "adapter": values, "output": {"layouts": ["lycoris"]}}


def _start(settings: Settings, swap: str = "none") -> Way:
    return Way(settings, swap, from_file=True, pixels=(1024,))


_LARGE = {"pixels": (1024,), "families": ("qwen_image",)}
_SMALL = {"pixels": (512,), "families": ("flux",)}

WAYS: Mapping[str, Way] = {
    BASELINE: Way(traced=True),
    "bf16, all swapped": Way(swap="all", traced=True),
    "int8, 8bit": Way(_kept("int8", compute="8bit"), traced=True),
    "nf4": Way(_kept("nf4")),
    "int8, 8bit, compile": Way(_kept("int8", compute="8bit", compile=True), alone=True),
    "fp8": Way(_kept("fp8")),
    "fp8, all swapped": Way(_kept("fp8"), swap="all"),
    "bf16, compile": Way({"memory": {"compile": True}}, alone=True),
    START + "bf16": _start({}),
    START + "int8": _start(_kept("int8")),
    START + "nf4": _start(_kept("nf4")),
    START + "bf16, all swapped": _start({}, "all"),
    START + "int8, all swapped": _start(_kept("int8"), "all"),
    "bf16, half swapped": Way(swap="half"),
    "int8": Way(_kept("int8")),
    "bf16, all swapped, 8 GB": Way(swap="all", card=8, **_LARGE),
    "auto, 12 GB": Way({"memory": {"plan": "auto"}}, card=12, **_LARGE),
    "auto, 8 GB": Way({"memory": {"plan": "auto"}}, card=8, **_LARGE),
    "fp8, 8bit": Way(_kept("fp8", compute="8bit")),
    "fp8, 8bit, compile": Way(_kept("fp8", compute="8bit", compile=True), alone=True),
    "int8_rotated, 8bit": Way(_kept("int8_rotated", compute="8bit"), pixels=(1024,)),
    "bf16, all swapped, one slot": Way({"memory": {"swap_slots": 1}}, swap="all", **_LARGE),
    "bf16, all swapped, pageable": Way({"memory": {"master": "pageable"}}, swap="all", **_LARGE),
    "int8, half swapped": Way(_kept("int8"), swap="half", pixels=(512,)),
    "nf4, half swapped": Way(_kept("nf4"), swap="half", pixels=(512,)),
    "bf16, no checkpointing": Way({"memory": {"gradient_checkpointing": False}}, **_SMALL),
    "bf16, inputs in RAM": Way({"memory": {"checkpoint_inputs": "ram"}}, **_LARGE),
    "bf16, half checkpointed": Way({"memory": {"blocks_to_checkpoint": "half"}}, **_SMALL),
    "bf16, 8-bit AdamW": Way({"training": {"optimizer": {"name": "adamw8bit"}}}, **_SMALL),
    "int8, loha": Way(_adapter(kind="loha", rank=16), **_SMALL),
    "int8, lokr": Way(_adapter(kind="lokr", rank=16), **_SMALL),
    "int8, oft": Way(_adapter(kind="oft"), **_SMALL),
    **{
        f"int8, {kind}, dora {axis}": Way(
            _adapter(kind=kind, rank=16, dora=True, dora_axis=axis), **_SMALL
        )
        for kind in ("lora", "loha", "lokr")
        for axis in ("output", "input")
    },
    "int8, lora exact": Way(_adapter(kind="lora", rank=16, exact_delta=True), **_SMALL),
}
"""Every way by its name, in the order in which they are measured after `FIRST`."""

FIRST: Sequence[tuple[str, str]] = (
    ("flux", BASELINE),
    ("flux", "int8, 8bit"),
    ("flux", "bf16, all swapped"),
    ("flux", "nf4"),
    ("qwen_image", "auto, 12 GB"),
    ("flux", START + "int8"),
    ("flux", START + "bf16"),
    ("flux", "int8, 8bit, compile"),
    ("qwen_image", "bf16, all swapped"),
    ("qwen_image", "fp8"),
)
"""Bases and ways that a first call has to measure."""


def all_cells() -> list[Cell]:
    """Every cell, most worth first; those of one way and base, which is loaded once, together."""
    rest = [(family, name) for name, way in WAYS.items() for family in way.families]
    return [
        Cell(family, name, WAYS[name], pixels)
        for family, name in dict.fromkeys((*FIRST, *rest))
        for pixels in WAYS[name].pixels
    ]


def to_measure(known: Mapping[str, str], call: str) -> list[Cell]:
    """What a call measures: what nobody has, after the baselines that it is compared with.

    A ratio of two calls may be one of two machines, so each call has baselines of its own.

    Args:
        known: Cell to the last call that measured it.
        call: This one.
    """
    cells = all_cells()
    pending = [cell for cell in cells if cell.name not in known]
    compared = {cell.baseline for cell in pending}
    again = [cell for cell in cells if cell.name in compared and known.get(cell.name) != call]
    order: dict[str, Cell] = {}
    for cell in pending:
        # All of a base's baselines together: they need one base, which is loaded once.
        order |= {each.name: each for each in again if each.family == cell.family}
        order.setdefault(cell.name, cell)
    return list(order.values())


def groups(cells: Sequence[Cell]) -> list[list[Cell]]:
    """Neighbours that need the same base, loaded in the same way."""
    found: list[list[Cell]] = []
    for cell in cells:
        last = found[-1][-1] if found else None
        alike = last and (last.family, last.way_name) == (cell.family, cell.way_name)
        if alike and not cell.way.alone:
            found[-1].append(cell)
        else:
            found.append([cell])
    return found
