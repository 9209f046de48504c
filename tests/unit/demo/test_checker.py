import numpy as np
import pytest

from scripts.embedded_base.drawing import draw, random_scene, with_frame
from scripts.embedded_base.vocabulary import held_out_combinations, training_combinations
from trainer_core.demo.checker import read_image
from trainer_core.demo.vocabulary import (
    COLORS,
    CONCEPT_SHAPE,
    SHAPES,
    Combination,
    all_combinations,
)

EVERY_SHAPE = (*SHAPES, CONCEPT_SHAPE)


def drawn_images(count, seed):
    random = np.random.default_rng(seed)
    for number in range(count):
        color, background = random.choice(list(COLORS), size=2, replace=False).tolist()
        shape = EVERY_SHAPE[number % len(EVERY_SHAPE)]
        scene = random_scene(Combination(shape, color, background), random)
        framed = number % 3 == 0
        yield (
            (shape, color, background, framed),
            draw(with_frame(scene) if framed else scene),
            scene,
        )


def what_is_seen(pixels):
    reading = read_image(pixels)
    return reading.shape, reading.shape_color, reading.background_color, reading.framed


def test_reads_at_least_98_percent_of_drawn_images():
    outcomes = {}
    for drawn, pixels, _ in drawn_images(450, 1):
        shape, _, _, framed = drawn
        outcomes.setdefault((shape, framed), []).append(what_is_seen(pixels) == drawn)
    assert len(outcomes) == 2 * len(EVERY_SHAPE)
    for kind, right in outcomes.items():
        assert len(right) >= 30
        assert np.mean(right) >= 0.98, kind


@pytest.mark.parametrize("shape", [(64, 64), (64, 64, 4), (8, 8, 3)])
def test_rejects_what_is_no_image(shape):
    with pytest.raises(ValueError, match="RGB image"):
        read_image(np.zeros(shape, dtype=np.uint8))


def test_held_out_combinations_are_kept_apart():
    held_out, trained = set(held_out_combinations()), set(training_combinations())
    assert len(held_out) == 45
    assert held_out.isdisjoint(trained)
    assert held_out | trained == set(all_combinations())
    assert len(all_combinations()) == 224
