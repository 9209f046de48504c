"""Likeness against the plain formula, and where it is shown."""

import itertools

import numpy
import pytest
import torch
from PIL import Image

from trainer_core.config import RunConfig
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.errors import InputError
from trainer_core.inference.comparison import (
    Column,
    Comparison,
    comparison_text,
    draw_grid,
    save_comparison,
)
from trainer_core.inference.likeness import measure_likeness
from trainer_core.inference.pipeline import Candidate
from trainer_core.training.checkpoints.comparison_columns import MOST_REFERENCES, reference_images


def pictures(count, seed):
    draws = numpy.random.default_rng(seed).integers(0, 256, (count, 8, 8, 3), dtype=numpy.uint8)
    return [Image.fromarray(each) for each in draws]


def embed(image):
    return torch.from_numpy(numpy.asarray(image, dtype=numpy.float32).reshape(-1)) - 128


def cosine(one, other):
    a, b = (numpy.asarray(each, dtype=numpy.float64).ravel() - 128 for each in (one, other))
    return a @ b / numpy.sqrt((a @ a) * (b @ b))


def compared(tmp_path):
    file = Candidate(tmp_path / "x.safetensors")
    columns = (Column("base"), Column("step 5", file, 5, "x"), Column("step 9", file, 9, "x"))
    made, others = pictures(6, 0), pictures(4, 1)
    # The base is the likest; the checkpoint that is the likest is named all the same.
    made[0] = others[0]
    rows = (tuple(made[:3]), tuple(made[3:]))
    like = measure_likeness(rows, columns, embed, others, "4 held-out images")
    changes = ((0.0, 0.1, 0.1),) * 2
    return Comparison(columns, ("a", "b"), (0, 1), rows, changes, like), others


def test_it_is_the_mean_cosine_to_all_images(tmp_path):
    found, others = compared(tmp_path)
    expected = [
        [numpy.mean([cosine(image, other) for other in others]) for image in row]
        for row in found.images
    ]
    assert found.likeness is not None
    numpy.testing.assert_allclose(found.likeness.values, expected, rtol=1e-10)
    means = numpy.mean(expected, axis=0)
    assert found.likeness.best == 1 + int(numpy.argmax(means[1:]))
    alone = measure_likeness([found.images[0][:1]], found.columns[:1], embed, others, "")
    assert alone.best is None


def test_it_stands_under_each_image_in_the_text_and_in_the_record(tmp_path):
    found, _ = compared(tmp_path)
    assert found.likeness is not None
    best = found.columns[found.likeness.best].label
    text = comparison_text(found)
    assert "like 4 held-out images (mean cosine, CLIP-I)" in text
    (line,) = [each for each in text.splitlines() if "most like the images" in each]
    assert line.split("  ")[1] == best
    for value in itertools.chain(*found.likeness.values):
        assert f"{value:5.3f}" in text
    record = found.record()
    assert record["likeness"] == {"beside": "4 held-out images", "best": best}
    assert [len(row["likeness"]) for row in record["rows"]] == [3, 3]
    save_comparison(found, tmp_path / "out")
    without = Comparison(found.columns, found.prompts, found.seeds, found.images, found.changes)
    assert "likeness" not in without.record()
    page, plain = draw_grid(found, 64), draw_grid(without, 64)
    assert page.height > plain.height
    ink = numpy.asarray(page).astype(int).min(axis=2) < 150
    assert ink.sum() > (numpy.asarray(plain).astype(int).min(axis=2) < 150).sum()


@pytest.mark.parametrize("value", [0.0, numpy.nan, numpy.inf])
def test_what_a_vision_model_does_not_see_is_refused(value):
    def blind(image):
        return torch.full((4,), value)

    with pytest.raises(InputError) as refused:
        measure_likeness([pictures(1, 0)], [Column("base")], blind, iter(pictures(1, 1)), "")
    error = refused.value
    assert all((error.found, error.expected, error.remedy))


@pytest.mark.parametrize(("share", "what"), [(0.5, "held-out"), (0.0, "trained")])
def test_held_out_images_are_taken_where_there_are_some(tmp_path, share, what):
    for number, image in enumerate(pictures(MOST_REFERENCES + 3, 2)):
        image.save(tmp_path / f"{number:03d}.png")
    dataset = {"path": str(tmp_path), "missing_caption": "empty", "validation": {"share": share}}
    config = RunConfig.model_validate({"dataset": dataset})
    opened, told = reference_images(config)
    assert iter(opened) is opened
    images = list(opened)
    held = sum(each.validation for each in scan_all(config.dataset, seed=config.seed).samples)
    assert len(images) == (held or MOST_REFERENCES)
    assert told == f"{len(images)} {what} images"
    (tmp_path / "none").mkdir()
    empty = config.dataset.model_copy(update={"path": str(tmp_path / "none")})
    with pytest.raises(InputError):
        reference_images(config.model_copy(update={"dataset": empty}))
