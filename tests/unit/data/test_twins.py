"""Twins: which samples the base is held at, and with which text."""

from collections import Counter

import pytest

from tests.fixtures.cache_world import World
from tests.fixtures.tables import table
from trainer_core.data.batch_plan import BatchPlan
from trainer_core.data.captions.rules import with_class_word
from trainer_core.types import Bucket, View

SMALL, WIDE = Bucket(16, 16), Bucket(32, 16)
KEPT = {"preservation": {"share": 0.5, "kind": "output", "class_word": "woman"}}


@pytest.mark.parametrize(("caption", "held"), table(__file__, "class_words"))
def test_the_class_word_takes_the_place_of_the_trigger_word(caption, held):
    assert with_class_word(caption, " ohwx ", "woman ") == held


def plan_of(batch_size, micro_batches=1, share=0.5, buckets=None, seed=3):
    buckets = buckets or [SMALL] * 7
    kinds = [0] * len(buckets)
    return BatchPlan(buckets, kinds, batch_size, micro_batches, 1, seed, share)


def twins_of(plan, step, share=(0, 1), wanted=None):
    wanted = wanted or [True] * plan.samples_per_epoch
    passes = range(len(plan.passes(step)))
    return [each for micro in passes for each in plan.twins(step, micro, share, wanted)]


def own_of(plan, step):
    return {
        (index, turn, step, each.first + place)
        for each in plan.passes(step)
        for place, (index, turn) in enumerate(zip(each.indices, each.turns, strict=True))
    }


@pytest.mark.parametrize(("batch_size", "micro_batches"), [(4, 1), (2, 2), (1, 4), (3, 1), (6, 2)])
def test_twins_are_of_the_own_samples_of_the_step(batch_size, micro_batches):
    plan = plan_of(batch_size, micro_batches)
    for step in range(1, 3 * plan.steps_per_epoch):
        own, found = own_of(plan, step), twins_of(plan, step)
        assert len(found) == sum(len(each.preserved) for each in plan.passes(step))
        first = {(t.index, t.turn, t.step, t.position) for t in found[: len(own)]}
        assert len(first) == min(len(found), len(own))
        assert first <= own
        # What is left over has another noise than every sample of the step.
        assert all(each.position >= len(own) for each in found[len(own) :])


def test_every_text_with_the_class_word_is_encoded_once_and_no_other(world):
    world.options = {
        "captions": {"variants": "lines"}, "control_dropout": 0.3, "flip": True,
        "trigger_word": "ohwx", **KEPT,
    }  # fmt: skip
    world.add("a.png", "one\ntwo of ohwx", control=True)
    world.add("b.png", "one", control=True)
    dataset = world.build()
    given = Counter(world.encoders.texts)
    own = {"a": ["ohwx, one", "two of ohwx"], "b": ["ohwx, one"]}
    held = {name: [text.replace("ohwx", "woman") for text in texts] for name, texts in own.items()}
    seen = ((64, 64),)
    # Beside each control image as it is and mirrored, and once for both without.
    wanted = Counter(
        (text, seen) for name in "ab" for text in (*own[name], "", *held[name]) for _ in range(2)
    )
    wanted.update((text, ()) for text in {*own["a"], *held["a"], ""})
    assert given == wanted
    assert dataset.class_word == "woman"
    assert [len(item.class_texts) for item in dataset.items] == [6, 3]
    world.encoders.counts()
    world.build()
    assert world.encoders.counts() == (0, 0, 0)


@pytest.mark.parametrize("mirrored", [False, True])
def test_each_twin_reads_the_text_of_its_view(world, mirrored):
    world.options = {
        "captions": {"variants": "lines"}, "control_dropout": 0.3, "flip": mirrored,
        "trigger_word": "ohwx", **KEPT,
    }  # fmt: skip
    world.add("a.png", "one\ntwo of ohwx", control=True)
    (item,) = world.build().items
    held = {}
    for controls in (True, False):
        for flipped in (False, True) if mirrored else (False,):
            for place in range(2):
                own = View(place, controls, flipped)
                twin = View(place, controls, flipped, ordinary=True)
                assert item.text_of(twin) != item.text_of(own)
                held[controls, flipped and controls, place] = item.text_of(twin)
            blank = View(None, controls, flipped)
            assert item.text_of(blank) == item.text_of(View(None, controls, flipped, ordinary=True))
    assert len(set(held.values())) == len(held) == (6 if mirrored else 4)
    assert set(held.values()) == set(item.class_texts)
    # The same file as of a dataset whose captions have the class word.
    alone = World(world.data.parent / "other", world.captioned, world.paint)
    alone.cache, alone.options = world.cache, {"trigger_word": "woman"}
    (alone.data).parent.mkdir()
    (alone.data).symlink_to(world.data)
    (world.data / "a.txt").write_text("one", encoding="utf-8")
    (other,) = alone.build().items
    assert held[True, False, 0] == other.text
