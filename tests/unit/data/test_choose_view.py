"""What of a sample a step trains: shares within binomial bounds, texts and sides in turns."""

import math
from collections import Counter
from dataclasses import dataclass, field

import pytest

from trainer_core.config import DatasetSection
from trainer_core.counters import counter_seed
from trainer_core.data.choose_view import Views
from trainer_core.types import ENDS, START, Bucket

SIZE = Bucket(64, 64)
DRAWS = 20_000


@dataclass(frozen=True)
class Item:
    name: str = "a.png"
    bucket: Bucket = SIZE
    folder: int = 0
    captions: int = 1
    control_buckets: tuple[Bucket, ...] = field(default=(SIZE,))
    flipped: object | None = None


def views(seed=3, folders=(), **settings):
    given = [{"path": "y", **each} for each in folders]
    return Views.of(DatasetSection(path="x", folders=given, **settings), seed)


def within(count, draws, share):
    """Whether a binomial gives such a count: five deviations, one time in a million it does not."""
    return abs(count - draws * share) <= 5 * math.sqrt(draws * share * (1 - share))


def test_caption_dropout_draws_what_it_always_drew():
    chosen, item = views(caption_dropout=0.1), Item(captions=3)
    dropped = 0
    for step in range(1, DRAWS // 4 + 1):
        for position in range(4):
            missing = chosen.of_sample(item, step, position, step).caption is None
            assert missing == (counter_seed(3, "caption_dropout", step, position) < 0.1 * 2.0**63)
            dropped += missing
    assert within(dropped, DRAWS, 0.1)
    assert not within(dropped, DRAWS, 0.12)


def test_shares_of_folders():
    chosen = views(
        control_dropout=0.1,
        caption_dropout=0.0,
        folders=[{"control_dropout": 0.6, "caption_dropout": 1.0}, {}],
    )
    counts = Counter()
    for step in range(1, 4_001):
        for folder in range(3):
            view = chosen.of_sample(Item(folder=folder), step, folder, 0)
            counts[folder, "bare"] += not view.controls
            counts[folder, "empty"] += view.caption is None
    assert [counts[folder, "empty"] for folder in range(3)] == [0, 4_000, 0]
    assert within(counts[0, "bare"], 4_000, 0.1)
    assert within(counts[1, "bare"], 4_000, 0.6)
    assert counts[2, "bare"] == counts[0, "bare"]
    # Samples of a pass are given their controls or not together: so they agree in their share.
    kinds = [((SIZE,), 0), ((SIZE,), 0), ((SIZE,), 0), ((), 0), ((), 0)]
    found = chosen.agreements(kinds, [0, 1, 2, 0, 1])
    assert found[0] == found[2] != found[1]
    assert found[3] == found[4]
    # With one share for all, which samples share a pass is what it was without any.
    assert views(control_dropout=0.3).agreements(kinds, [0] * 5) == kinds


@pytest.mark.parametrize("captions", [2, 3, 7])
def test_a_sample_goes_through_its_texts_before_one_comes_again(captions):
    chosen, item = views(), Item(captions=captions)
    orders = set()
    for rounds in range(60):
        turns = range(rounds * captions, (rounds + 1) * captions)
        order = tuple(chosen.of_sample(item, 9, 0, turn).caption for turn in turns)
        assert sorted(order) == list(range(captions))
        orders.add(order)
    assert len(orders) >= min(math.factorial(captions), 30), "rounds have orders of their own"

    # Another image, size or seed goes through them in another order; its step does not matter.
    def texts(views, item, step=1):
        return [views.of_sample(item, step, 0, turn).caption for turn in range(60)]

    mine = texts(chosen, item)
    assert texts(chosen, item, step=5) == mine
    for other in (
        Item(name="b.png", captions=captions),
        Item(bucket=Bucket(32, 32), captions=captions),
    ):
        assert texts(chosen, other) != mine
    assert texts(views(seed=4), item) != mine


def test_both_sides_come_equally_often_and_beside_every_text():
    chosen, item = views(), Item(captions=2, flipped=object())
    seen = Counter()
    for turn in range(4000):
        view = chosen.of_sample(item, 1, 0, turn)
        seen[view.caption, view.flipped] += 1
        if turn % 2:
            assert view.flipped != chosen.of_sample(item, 1, 0, turn - 1).flipped
    assert len(seen) == 4
    assert all(within(count, 4000, 0.25) for count in seen.values())
    assert not any(chosen.of_sample(Item(), 1, 0, turn).flipped for turn in range(50))


def test_shares_of_start_and_end_frames_are_drawn_by_sample_and_turn():
    chosen, item = views(start_frame=0.7, end_frame=0.2), Item()
    seen = Counter(chosen.of_sample(item, 1, 0, turn).endpoints for turn in range(DRAWS))
    for kind, share in (("", 0.3), (START, 0.5), (ENDS, 0.2)):
        assert within(seen[kind], DRAWS, share)
    # What the base is held to is the same sample, whatever step asks.
    for turn in range(50):
        drawn = chosen.of_sample(item, 7, 3, turn).endpoints
        assert drawn == chosen.ordinary(item, 1, turn, blank=True).endpoints
    assert {views().of_sample(item, 1, 0, turn).endpoints for turn in range(50)} == {START}
