"""Own concepts are read as they are drawn, and a row of the benchmark comes out of a real run."""

import numpy as np
import pytest

from benchmarks.measuring.own_concepts import (
    EDIT,
    SHAPES,
    has_logo,
    paint,
    prepare,
    read,
    with_logo,
    without_logo,
)
from scripts.embedded_base.demo_datasets import own_combinations
from scripts.embedded_base.drawing import OUTLINES, draw, random_scene
from trainer_core.demo.checker import read_image, templates
from trainer_core.demo.vocabulary import Combination


@pytest.mark.parametrize("shape", SHAPES)
def test_a_shape_that_nothing_has_is_read_as_it_is_drawn(shape):
    assert shape not in {*OUTLINES, *templates()}
    random = np.random.default_rng(3)
    for wanted in own_combinations(shape, 5, 12):
        pixels = paint(shape, random_scene(wanted, random))
        seen = read(pixels)
        assert (seen.shape, seen.shape_color, seen.background_color) == wanted
        assert read_image(pixels).shape != shape


def test_a_logo_is_seen_in_its_corner_alone():
    scene = random_scene(Combination("circle", "red", "white"), np.random.default_rng(2))
    plain = draw(scene)
    marked = with_logo(plain)
    assert has_logo(marked)
    assert not has_logo(plain)
    assert not has_logo(marked[:, ::-1])
    assert not has_logo(np.full_like(plain, 128)), "a grey image is no logo"
    assert read(without_logo(marked)) == read(plain)


def test_an_edit_is_right_when_the_logo_is_there_and_all_else_as_it_was(tmp_path):
    asked = prepare(EDIT, 31, tmp_path)
    assert [len(each) for each in asked] == [24, 24, 24]
    for task in (*asked.seen, *asked.unseen):
        before = np.asarray(task.control)
        assert task.right(with_logo(before))
        assert not task.right(before)
    # What the base could do before is not kept where a logo is on everything.
    assert not any(task.right(with_logo(np.asarray(task.control))) for task in asked.kept)
