"""A prompt with settings of its own: its previews while training, and the grid of a comparison."""

import numpy
import pytest
from PIL import Image
from runs import run_config

from trainer_core.inference.comparison import Candidate, Column, compare, draw_grid
from trainer_core.training import train

SHARED = {"every": 1, "width": 64, "height": 64, "steps": 1, "seed": 4}
STEPS = {"steps": 1, "gradient_accumulation_steps": 1}


def previews(tmp_path, name, *prompts):
    given = {"training": STEPS, "preview": SHARED | {"prompts": list(prompts)}}
    config = run_config(tmp_path / name, tmp_path / "cache", **given)
    folder = train(config).folder / "samples" / "000001"
    return config, [Image.open(folder / f"{at}.png") for at in range(len(prompts))]


def alike(one, other):
    return numpy.array_equal(numpy.asarray(one), numpy.asarray(other))


@pytest.mark.slow
def test_a_preview_follows_the_flags_behind_its_prompt(tmp_path):
    text, flags = "a red circle", "--w 96 --h 32 --d 9 --s 2 --l 3 --n green"
    config, (usual, own, by_seed) = previews(
        tmp_path, "own", text, f"{text} {flags}", f"{text} --d 4"
    )
    assert [each.size for each in (usual, own, by_seed)] == [(64, 64), (96, 32), (64, 64)]
    assert alike(usual, by_seed), "the flag is not read as a part of the text"
    shared = {"width": 96, "height": 32, "seed": 9, "steps": 2, "guidance": 3.0}
    given = SHARED | shared | {"negative_prompt": "green", "prompts": [text]}
    alone = run_config(tmp_path / "alone", tmp_path / "cache", training=STEPS, preview=given)
    (path,) = (train(alone).folder / "samples" / "000001").glob("*.png")
    assert alike(own, Image.open(path))
    found = compare(config, [Column("base", Candidate(None, 0.0))])
    assert [row[0].size for row in found.images] == [(64, 64), (96, 32), (64, 64)]
    assert found.seeds == (4, 9, 4)
    draw_grid(found)
