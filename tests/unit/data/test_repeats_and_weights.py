"""How often each sample is trained and what it counts; and which samples are held out."""

import dataclasses
from pathlib import Path

import pytest

from trainer_core.config import DatasetSection
from trainer_core.data.repeats_and_weights import pace_marks, repeats_and_weights
from trainer_core.types import Sample

BASE = Sample("a.png", Path("a.png"), "", 8, 8)


def sample(**values) -> Sample:
    return dataclasses.replace(BASE, **values)


DATASET = DatasetSection.model_validate(
    {
        "path": "own",
        "num_repeats": 3,
        "folders": [
            {"path": "more", "weight": 0.5},
            {"path": "held", "role": "validation", "num_repeats": 7},
            {"path": "plain", "role": "regularization", "num_repeats": 2, "weight": 4.0},
        ],
        "regularization": {"path": "ordinary", "num_repeats": 5, "weight": 0.25},
    }
)


@pytest.mark.parametrize(
    ("values", "repeats", "weight"),
    [
        ({}, 3, 1.0),
        ({"repeats": 4, "weight": 0.5}, 12, 0.5),
        ({"folder": 1, "repeats": 2, "weight": 3.0}, 6, 1.5),
        ({"folder": 2, "validation": True}, 0, 1.0),
        ({"validation": True, "repeats": 9}, 0, 1.0),
        ({"folder": 3, "regularization": True}, 2, 4.0),
        ({"folder": 4, "regularization": True, "weight": 2.0}, 5, 0.5),
    ],
)
def test_a_samples_pace_is_its_own_times_its_folders(values, repeats, weight):
    assert repeats_and_weights([sample(**values)], DATASET) == ((repeats,), (weight,))


def test_the_identity_of_a_plain_dataset_stays_and_others_differ():
    assert pace_marks(sample()) == []
    assert pace_marks(sample(regularization=True, folder=1)) == ["regularization"]
    marks = [pace_marks(sample(**one)) for one in ({"validation": True}, {"folder": 1})]
    marks += [pace_marks(sample(repeats=2)), pace_marks(sample(weight=2.0))]
    assert len({tuple(each) for each in marks}) == 4
