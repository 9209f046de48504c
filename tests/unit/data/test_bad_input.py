"""Every kind of bad input: severity, words, nothing dropped in silence, none slow."""

import time
from collections import Counter
from pathlib import Path

import pytest

from tests.fixtures.bad_input import (
    SECONDS,
    BadInput,
    Outcome,
    cases,
    judge,
    silent_files,
    write_image,
    write_pair,
)
from trainer_core.config import DatasetSection

CASES = cases(Path(__file__).parent / "bad")


def _parameter(case: BadInput):
    return pytest.param(case, id=case.id, marks=[pytest.mark.exhaustive] if case.slow else [])


@pytest.mark.parametrize("case", [_parameter(case) for case in CASES])
def test_bad_input(case, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    start = time.monotonic()
    verdict = judge(case, folder)
    assert verdict.faults == []
    assert time.monotonic() - start < SECONDS


def test_every_case_has_a_name_of_its_own_and_words():
    names = Counter(case.id for case in CASES)
    assert [name for name, count in names.items() if count > 1] == []
    # What is odd and yet trained as it stands needs no words.
    assert [each.id for each in CASES if not each.words and each.severity != "warning"] == []


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


def test_the_judge_wants_what_is_raised(tmp_path):
    def stopped(folder: Path) -> DatasetSection:
        return _lonely(folder).model_copy(update={"missing_image": "error"})

    assert judge(BadInput("a", stopped, "error", ["b.txt"]), tmp_path / "1").faults == []
    assert len(judge(BadInput("b", stopped, "left_out", ["b.txt"]), tmp_path / "2").faults) == 1
    assert len(judge(BadInput("c", stopped, "error", ["not said"]), tmp_path / "3").faults) == 1


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
