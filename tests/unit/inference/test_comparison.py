"""The grid of a comparison, its record, and what of a run is compared."""

import json

import numpy
import pytest
from PIL import Image

from trainer_core.errors import InputError
from trainer_core.inference.comparison import (
    Column,
    Comparison,
    comparison_text,
    draw_grid,
    save_comparison,
)
from trainer_core.inference.pipeline import Candidate
from trainer_core.training.checkpoints.comparison_columns import (
    file_columns,
    read_steps,
    read_strengths,
    run_columns,
)
from trainer_core.training.checkpoints.run_folder import find_version

COLORS = ("white", "red", "blue")


def comparison(tmp_path, size=(60, 40), changes=(0.0, 0.25, 0.0)):
    file = tmp_path / "x.safetensors"
    columns = (
        Column("base"),
        Column("step 5", Candidate(file), 5, "x", best=True),
        Column("step 9", Candidate(file), 9, "x"),
    )
    row = tuple(Image.new("RGB", size, color) for color in COLORS)
    prompts = ("a long prompt " * 30, "émile \n in two lines")
    return Comparison(columns, prompts, (3, 4), (row, row), (changes, changes))


@pytest.mark.parametrize("size", [(60, 40), (40, 60), (2000, 1000), (1, 1)])
def test_every_image_is_in_the_grid_under_its_column(tmp_path, size):
    grid = draw_grid(comparison(tmp_path, size))
    pixels = numpy.asarray(grid).astype(int)
    red = (abs(pixels - (255, 0, 0)).sum(axis=2) == 0).nonzero()
    blue = (abs(pixels - (0, 0, 255)).sum(axis=2) == 0).nonzero()
    assert red[1].max() < blue[1].min()
    # Twice: once for each prompt.
    assert (numpy.diff(sorted(set(red[0]))) > 1).sum() == 1
    assert max(red[1].max() - red[1].min(), red[0].max()) < 900


def test_a_column_that_changes_nothing_is_named(tmp_path):
    found = comparison(tmp_path)
    assert found.inert() == ["step 9"]
    text = comparison_text(found)
    assert "step 9 changes nothing" in text
    assert "25.0   25.0  best on held-out images" in text


def test_nothing_is_replaced_and_the_record_names_every_image(tmp_path):
    found = comparison(tmp_path)
    grid, record = save_comparison(found, tmp_path / "comparisons")
    again, _ = save_comparison(found, tmp_path / "comparisons")
    assert (grid.parent.name, again.parent.name) == ("000", "001")
    said = json.loads(record.read_text(encoding="utf-8"))
    assert [each["step"] for each in said["columns"]] == [None, 5, 9]
    assert [each["best"] for each in said["columns"]] == [False, True, False]
    assert said["rows"][1]["seed"] == 4
    for row in said["rows"]:
        with Image.open(grid.parent / row["images"][2]) as image:
            assert image.getpixel((0, 0)) == (0, 0, 255)


@pytest.fixture
def run(tmp_path):
    version = tmp_path / "run" / "v1"
    for step in (5, 10):
        folder = version / "checkpoints" / f"{step:06d}"
        folder.mkdir(parents=True)
        (folder / "adapter.safetensors").write_bytes(b"")
    (version / "run.json").write_text('{"best": {"step": 5, "loss": 0.1}}', encoding="utf-8")
    (tmp_path / "run" / "v0").mkdir()
    return version


def test_columns_are_the_base_and_every_checkpoint_at_every_strength(run):
    found = run_columns(run, None, (1.0, 0.5))
    labels = ["base", "step 5 at 1", "step 5 at 0.5", "step 10 at 1", "step 10 at 0.5"]
    assert [each.label for each in found] == labels
    assert [each.best for each in found] == [False, True, True, False, False]
    # One adapter after the other: each is read and put on the base once.
    assert found[1].candidate.adapter is found[2].candidate.adapter
    (other,) = file_columns([run / "my.safetensors"], (1.0,))
    assert other.label == "my"
    assert [each.step for each in run_columns(run, (10,))] == [None, 10]


@pytest.mark.parametrize(
    ("ask", "named"),
    [
        (lambda run: run_columns(run, (7,)), "7"),
        (lambda run: run_columns(run.parent / "v0"), "none"),
        (lambda run: run_columns(run, None, tuple(range(1, 40))), "39 strengths"),
        (lambda run: find_version(run.parent.parent), "is not a run"),
        (lambda _: read_steps("5,x"), "5,x"),
        (lambda _: read_steps("-5"), "-5"),
        (lambda _: read_strengths("1;2"), "1;2"),
        (lambda _: read_strengths("nan"), "nan"),
    ],
)
def test_what_cannot_be_compared_is_named(run, ask, named):
    with pytest.raises(InputError) as caught:
        ask(run)
    assert named in caught.value.found
    assert caught.value.remedy
