"""Every kind of bad input: severity, words, nothing dropped in silence."""

from pathlib import Path

import pytest

from tests.fixtures.bad_input import (
    BadInput,
    Outcome,
    cases,
    judge,
    silent_files,
    write_image,
    write_pair,
)
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


def test_a_file_that_nobody_names_is_dropped_in_silence(tmp_path):
    write_pair(tmp_path / "a.png")
    write_image(tmp_path / "sub" / "c.png")
    settings = DatasetSection(path=str(tmp_path))
    assert silent_files(settings, Outcome(())) == ["a.png", "a.txt", "sub/c.png"]
    assert silent_files(settings, Outcome(("a.png, a.txt and 1 more",))) == []
    assert silent_files(settings, Outcome(("a.png, a.txt", "the folder sub is not read"))) == []
    assert silent_files(settings, Outcome((f"{tmp_path}/a.png, a.txt, sub/c.png",))) == []
    assert silent_files(settings, Outcome(("sub/a.png, a.txt", "sub/d.png"))) == [
        "a.png",
        "sub/c.png",
    ]
