"""What is mirrored, and which words forbid it."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.tables import table
from trainer_core.config import DatasetSection
from trainer_core.data.flips import forbidden_words_pattern, forbidding_word, with_flips
from trainer_core.types import Bucket, PlannedSample, Sample


@pytest.mark.parametrize(("words", "captions", "found"), table(__file__, "words_that_forbid"))
def test_words_forbid_whole_and_in_any_case(words, captions, found):
    assert forbidding_word(captions, forbidden_words_pattern(words)) == found


def planned(name, caption, *more):
    sample = Sample(name, Path(name), caption, 64, 64, more_captions=more)
    return PlannedSample(sample, Bucket(64, 64))


SOME = (planned("a", "a cup"), planned("b", "a Sign"), planned("c", "a cup", "the left cup"))


def test_an_image_is_mirrored_unless_one_of_its_texts_forbids_it():
    assert with_flips(SOME, DatasetSection()) == (SOME, ())
    chosen, notes = with_flips(SOME, DatasetSection(flip=True))
    assert [each.flipped for each in chosen] == [True, False, False]
    assert [each.sample for each in chosen] == [each.sample for each in SOME]
    (note,) = notes
    for word in ("2 of 3", "dataset.flip_except", "sign (1)", "left (1)", "such as b"):
        assert word in note
    free, notes = with_flips(SOME, DatasetSection(flip=True, flip_except=[]))
    assert all(each.flipped for each in free)
    assert not notes


def test_what_is_held_out_is_measured_as_it_is_and_never_mirrored():
    held = planned("d", "the left one")
    held = replace(held, sample=replace(held.sample, validation=True))
    chosen, (note,) = with_flips((*SOME, held), DatasetSection(flip=True))
    assert [each.flipped for each in chosen] == [True, False, False, False]
    assert chosen[-1] == held
    assert "2 of 3" in note
