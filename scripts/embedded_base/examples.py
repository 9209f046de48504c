"""Random training and test examples: pictures, captions, edits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from trainer_core.demo.vocabulary import (
    BACKGROUND_EDITS,
    COLORS,
    SHAPE_COLOR_EDITS,
    SHAPE_EDITS,
    SHAPES,
    Combination,
)

from .drawing import Scene, draw, jittered, random_scene


@dataclass(frozen=True)
class EditExample:
    """One edit: two pictures and what leads from one to the other.

    Attributes:
        control: What the picture shows before.
        target: What the picture shows after.
        instruction: The instruction in words.
        control_picture: uint8 ``[64, 64, 3]``.
        target_picture: uint8 ``[64, 64, 3]``.
    """

    control: Combination
    target: Combination
    instruction: str
    control_picture: np.ndarray
    target_picture: np.ndarray


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
        control_picture=draw(scene),
        target_picture=draw(_edited_scene(scene, target, kind, random)),
    )
