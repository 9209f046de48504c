"""Questions and marks of the demonstration, on images that the drawing code draws."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from scripts.embedded_base.drawing import Scene, draw, with_frame
from trainer_core.demo.checker import read_image
from trainer_core.demo.exam import base_edit_questions, base_questions, concept_questions, mark
from trainer_core.demo.vocabulary import COLORS, CONCEPT_SHAPE, IMAGE_SIZE, SHAPES, Combination

COUNT = 12
MIDDLE = (IMAGE_SIZE / 2, IMAGE_SIZE / 2)
CONTROLLED = [
    Combination("circle", "red", "white"),
    Combination("square", "blue", "yellow"),
    Combination("triangle", "green", "black"),
    Combination("cross", "purple", "orange"),
]


def scene(combination, center=MIDDLE):
    color, background = COLORS[combination.color], COLORS[combination.background]
    return Scene(combination.shape, color, background, center, 16.0)


def wanted_by(text):
    """The combination of a canonical caption: a COLOR SHAPE on a BACKGROUND background."""
    _, color, shape, _, _, background, _ = text.split()
    return Combination(shape, color, background)


def wanted_by_edit(text, before):
    """The combination that an edit instruction makes of another."""
    if text.startswith("make the shape "):
        return before._replace(color=text.split()[-1])
    assert text.startswith("turn the shape into a ")
    return before._replace(shape=text.split()[-1])


def is_right(question, image):
    return question.right(read_image(image))


def controls():
    return [Image.fromarray(draw(scene(combination))) for combination in CONTROLLED]


def texts(questions):
    return [question.text for question in questions]


@pytest.mark.parametrize("ask", [concept_questions, base_questions])
def test_the_image_of_a_caption_is_right_and_every_other_is_wrong(ask):
    for question in ask(COUNT, 4):
        wanted = wanted_by(question.text)
        right = scene(wanted)
        assert is_right(question, draw(right)), question.text
        assert is_right(question, draw(replace(right, center=(28.0, 36.0), radius=13.0)))
        assert not is_right(question, draw(with_frame(right))), "a frame was not asked for"
        for name in (*SHAPES, CONCEPT_SHAPE):
            if name != wanted.shape:
                assert not is_right(question, draw(replace(right, shape=name)))
        for name, color in COLORS.items():
            if name not in wanted:
                assert not is_right(question, draw(replace(right, color=color)))
                assert not is_right(question, draw(replace(right, background=color)))
        swapped = replace(right, color=right.background, background=right.color)
        assert not is_right(question, draw(swapped))
        assert not is_right(question, np.full((IMAGE_SIZE, IMAGE_SIZE, 3), 90, np.uint8))


def test_an_edit_is_right_only_when_all_else_is_as_it_was():
    images, combinations = controls() * 5, CONTROLLED * 5
    asked = base_edit_questions(images, 1)
    assert (
        texts(asked)
        == texts(base_edit_questions(images, 1))
        != texts(base_edit_questions(images, 2))
    )
    assert {question.text.split()[0] for question in asked} == {"make", "turn"}
    for question, before in zip(asked, combinations, strict=True):
        wanted = wanted_by_edit(question.text, before)
        assert wanted != before
        assert wanted.color != wanted.background
        right = scene(wanted)
        assert is_right(question, draw(right)), question.text
        assert not is_right(question, draw(scene(before))), "nothing was edited"
        assert not is_right(question, draw(with_frame(right)))
        unused = next(name for name in COLORS if name not in (*wanted, *before))
        assert not is_right(question, draw(scene(wanted._replace(background=unused))))
        if wanted.shape == before.shape:
            other = next(name for name in SHAPES if name != wanted.shape)
            assert not is_right(question, draw(scene(wanted._replace(shape=other))))
        else:
            assert not is_right(question, draw(scene(wanted._replace(color=unused))))


def test_a_mark_is_the_share_of_right_answers():
    questions = concept_questions(4, 1)
    images = [draw(scene(wanted_by(question.text))) for question in questions]
    blank = np.zeros_like(images[0])
    assert mark(questions, images) == 1.0
    assert mark(questions, [*images[:3], blank]) == 0.75
    assert mark(questions, [blank] * 4) == 0.0
    with pytest.raises(ValueError, match="zip"):
        mark(questions, images[:3])
