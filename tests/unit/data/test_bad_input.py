"""Every kind of bad input: severity, words, nothing dropped in silence."""

from pathlib import Path

import pytest

from tests.fixtures.bad_input import BadInput, cases, judge, write_pair
from trainer_core.config import DatasetSection

CASES = [
    pytest.param(each, id=each.id, marks=[pytest.mark.exhaustive] if each.slow else [])
    for each in cases(Path(__file__).parent / "bad")
]


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    assert judge(case, folder).faults == []


def _lonely(folder: Path) -> DatasetSection:
    write_pair(folder / "a.png")
    (folder / "b.txt").write_text("no image", encoding="utf-8")
    return DatasetSection(path=str(folder), missing_image="skip")


@pytest.mark.parametrize(
    ("severity", "words", "lost", "faults"),
    [
        ("left_out", ["b.txt"], [], 0),
        ("warning", ["b.txt"], [], 0),
        ("error", ["b.txt"], [], 1),
        ("left_out", ["b.txt", "nobody says this"], [], 1),
        ("left_out", ["b.txt"], ["a.png"], 1),
    ],
)
def test_the_judge_sees_each_kind_of_fault(tmp_path, severity, words, lost, faults):
    case = BadInput("lonely", _lonely, severity, words, lost=lost)
    assert len(judge(case, tmp_path).faults) == faults
