"""Regularization images: a second folder, with its own weight and repeats."""

import pytest

from trainer_core.config import DatasetSection
from trainer_core.data.batches import BatchPlan
from trainer_core.data.sources.combined import scan_all
from trainer_core.data.sources.folder import scan
from trainer_core.errors import DatasetError
from trainer_core.types import Bucket


def settings(own, second, **more) -> DatasetSection:
    return DatasetSection(
        path=str(own), regularization={"path": str(second)}, trigger_word="zorb", **more
    )


def test_ordinary_images_come_behind_the_own_ones_without_the_trigger_word(tmp_path, captioned):
    captioned(tmp_path / "own" / "a.png", "a shape")
    captioned(tmp_path / "second" / "a.png", "a circle")
    captioned(tmp_path / "second" / "b.png", "a square")
    found = scan_all(settings(tmp_path / "own", tmp_path / "second")).samples
    assert [(s.name, s.caption, s.regularization) for s in found] == [
        ("a.png", "zorb, a shape", False),
        ("regularization/a.png", "a circle", True),
        ("regularization/b.png", "a square", True),
    ]
    alone = DatasetSection(path=str(tmp_path / "own"))
    assert scan_all(alone) == scan(alone)


def test_a_mistake_in_the_second_folder_names_its_setting(tmp_path, captioned):
    captioned(tmp_path / "own" / "a.png")
    with pytest.raises(DatasetError, match=r"dataset\.regularization\.path: .* does not exist"):
        scan_all(settings(tmp_path / "own", tmp_path / "absent"))
    with pytest.raises(DatasetError, match=r"is dataset\.path as well"):
        scan_all(settings(tmp_path / "own", tmp_path / "own" / ".." / "own"))
    captioned(tmp_path / "pairs" / "a.png")
    captioned(tmp_path / "pairs" / "a_control.png", None)
    with pytest.raises(DatasetError, match="the other has none"):
        scan_all(settings(tmp_path / "own", tmp_path / "pairs"))


def test_each_sample_has_its_own_number_of_repeats():
    plan = BatchPlan([Bucket(8, 8)] * 3, [0] * 3, 1, 1, [1, 3, 2], 0)
    assert plan.steps_per_epoch == 6
    drawn = [plan.indices(step, 0)[0] for step in range(1, 7)]
    assert sorted(drawn) == [0, 1, 1, 1, 2, 2]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75])
def test_single_samples_take_turns_with_preserved_points(share):
    plan = BatchPlan([Bucket(8, 8)] * 5, [0] * 5, 1, 2, 1, 3, share)
    drawn, own = [], []
    for step in range(1, 201):
        for micro in range(2):
            indices, points = plan.indices(step, micro), plan.preserved(step, micro)
            assert len(indices) + len(points) == 1
            drawn += points
            own += indices
    assert drawn == list(range(round(400 * share)))
    # No sample loses its turn to a point.
    epochs = [sorted(own[at : at + 5]) for at in range(0, len(own) - 5, 5)]
    assert all(epoch == [0, 1, 2, 3, 4] for epoch in epochs)
    assert plan.epoch(200) == pytest.approx(len(own) / 5)


@pytest.mark.parametrize(("share", "points"), [(0.0, 0), (0.01, 1), (0.5, 4), (0.9, 7)])
def test_a_larger_batch_has_the_same_number_of_points_each_time(share, points):
    plan = BatchPlan([Bucket(8, 8)] * 280, [0] * 280, 8, 1, 1, 3, share)
    for step in range(1, 5):
        assert len(plan.indices(step, 0)) == 8 - points
        assert plan.preserved(step, 0) == range((step - 1) * points, step * points)
