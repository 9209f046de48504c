"""Random training and test examples: pictures, captions, edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainer_core.demo.vocabulary import COLORS, SHAPES, Combination

from .drawing import Bar, Scene, draw, jittered, random_scene
from .vocabulary import BACKGROUND_EDITS, SHAPE_COLOR_EDITS, SHAPE_EDITS

BAR_SIDES: dict[str, tuple[str, ...]] = {
    "on the left": ("left",),
    "on the right": ("right",),
    "at the top": ("top",),
    "at the bottom": ("bottom",),
    "on the left and right": ("left", "right"),
    "at the top and bottom": ("top", "bottom"),
}
BAR_EDITS: tuple[str, ...] = ("draw a {color} bar {place}", "put a {color} bar {place}")
COPY_EDITS: tuple[str, ...] = ("leave the picture as it is", "keep the picture")


@dataclass(frozen=True)
class EditExample:
    """One edit: two pictures and what leads from one to the other.

    Attributes:
        control: What the picture shows before.
        target: What the picture shows after.
        instruction: The instruction in words.
        control_picture: uint8 ``[64, 64, 3]``.
        target_picture: uint8 ``[64, 64, 3]``.
        described: Whether ``target`` says all that the picture after shows.
    """

    control: Combination
    target: Combination
    instruction: str
    control_image: np.ndarray
    target_image: np.ndarray
    described: bool = True


def _edited_target(
    control: Combination, kind: int, random: np.random.Generator
) -> tuple[Combination, tuple[str, ...]]:
    if kind == 0:
        free = [c for c in COLORS if c not in (control.color, control.background)]
        return control._replace(color=free[random.integers(len(free))]), SHAPE_COLOR_EDITS
    if kind == 1:
        free = [c for c in COLORS if c not in (control.color, control.background)]
        return control._replace(background=free[random.integers(len(free))]), BACKGROUND_EDITS
    others = [shape for shape in SHAPES if shape != control.shape]
    return control._replace(shape=others[random.integers(len(others))]), SHAPE_EDITS


def _edited_scene(
    scene: Scene, target: Combination, kind: int, random: np.random.Generator
) -> Scene:
    if kind == 0:
        return replace(scene, color=jittered(COLORS[target.color], random))
    if kind == 1:
        return replace(scene, background=jittered(COLORS[target.background], random))
    return replace(scene, shape=target.shape)


def random_edit(
    controls: Sequence[Combination],
    forbidden_targets: frozenset[Combination],
    random: np.random.Generator,
    plain_wording: bool = False,
) -> EditExample:
    """Makes a random edit of one attribute.

    Args:
        controls: What the picture may show before.
        forbidden_targets: What it must not show after.
        random: Source of all choices.
        plain_wording: Whether to use only the first wording of each edit.
    """
    while True:
        control = controls[random.integers(len(controls))]
        kind = int(random.integers(3))
        target, wordings = _edited_target(control, kind, random)
        if target not in forbidden_targets:
            break
    scene = random_scene(control, random)
    wording = wordings[0 if plain_wording else random.integers(len(wordings))]
    return EditExample(
        control=control,
        target=target,
        instruction=wording.format(old_shape=control.shape, **target._asdict()),
        control_image=draw(scene),
        target_image=draw(_edited_scene(scene, target, kind, random)),
    )


def random_bar_edit(controls: Sequence[Combination], random: np.random.Generator) -> EditExample:
    """Makes an edit that adds a bar along one side, or two, and keeps everything else.

    Args:
        controls: What the picture may show before.
        random: Source of all choices.
    """
    control = controls[random.integers(len(controls))]
    scene = random_scene(control, random)
    free = [name for name in COLORS if name != control.background]
    name = free[random.integers(len(free))]
    place = list(BAR_SIDES)[random.integers(len(BAR_SIDES))]
    width, color = random.uniform(4, 7), jittered(COLORS[name], random)
    bars = tuple(Bar(side, color, width) for side in BAR_SIDES[place])
    wording = BAR_EDITS[random.integers(len(BAR_EDITS))]
    return EditExample(
        control=control,
        target=control,
        instruction=wording.format(color=name, place=place),
        control_image=draw(scene),
        target_image=draw(replace(scene, bars=bars)),
        described=False,
    )


def random_copy(controls: Sequence[Combination], random: np.random.Generator) -> EditExample:
    """Makes an edit that changes nothing.

    Args:
        controls: What the picture may show.
        random: Source of all choices.
    """
    control = controls[random.integers(len(controls))]
    image = draw(random_scene(control, random))
    instruction = COPY_EDITS[random.integers(len(COPY_EDITS))]
    return EditExample(control, control, instruction, image, image)
