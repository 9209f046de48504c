from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_core.data.batch_plan import BatchPlan
from trainer_core.data.cache.cache_file import make_entry, write_entry
from trainer_core.data.cache.cached_dataset import CachedDataset
from trainer_core.data.cache.cached_item import CachedItem
from trainer_core.data.load_batch import load_batch
from trainer_core.types import Bucket

SMALL, WIDE = Bucket(16, 16), Bucket(32, 16)
ORDER = [(6,), (1, 0), (3, 5), (8, 7), (4, 2)]


def plan_of(buckets, controls=None, batch_size=1, micro_batches=1, num_repeats=1, seed=0):
    controls = [0] * len(buckets) if controls is None else controls
    return BatchPlan(buckets, controls, batch_size, micro_batches, num_repeats, seed)


def chunks(plan: BatchPlan, epochs: int = 1) -> list[tuple[int, ...]]:
    steps = range(1, 1 + epochs * plan.steps_per_epoch)
    return [each.indices for step in steps for each in plan.passes(step)]


def trained(plan: BatchPlan, step: int) -> tuple[int, ...]:
    """The samples of a step, in their order."""
    return tuple(index for each in plan.passes(step) for index in each.indices)


@pytest.fixture
def dataset(tmp_path) -> CachedDataset:
    """Six real cached samples: four small, two wide, the last of each with a control."""
    items = []
    for number in range(6):
        bucket = SMALL if number < 4 else WIDE
        has_control = number in (3, 5)
        shape = (2, bucket.height // 8, bucket.width // 8)

        def keep(kind, name, tensors, number=number):
            entry = make_entry(tmp_path, kind, name, number)
            write_entry(entry, tensors)
            return entry

        image = {"latents": torch.full(shape, float(number))}
        control = {"latents": torch.full(shape, 100.0 + number)}
        items.append(
            CachedItem(
                name=f"{number}.png",
                bucket=bucket,
                control_buckets=(bucket,) if has_control else (),
                latents=keep("latents", "image", image),
                controls=(keep("latents", "control", control),) if has_control else (),
                text=keep("text", "text", {"t": torch.full((number + 1, 3), float(number))}),
                empty_text=keep("text", "empty", {"t": torch.zeros(1, 3)}),
            )
        )
    return CachedDataset(items)


def plan_for(dataset, **options) -> BatchPlan:
    return plan_of(dataset.buckets, dataset.control_buckets, **options)


@settings(max_examples=60, deadline=None)
@given(
    buckets=st.lists(st.sampled_from([SMALL, WIDE, Bucket(48, 48)]), min_size=1, max_size=24),
    data=st.data(),
    batch_size=st.integers(1, 6),
    micro_batches=st.integers(1, 4),
    seed=st.integers(0, 2**40),
)
def test_every_epoch_holds_every_image_exactly_and_no_pass_mixes(
    buckets, data, batch_size, micro_batches, seed
):
    controls = [data.draw(st.integers(0, 2)) for _ in buckets]
    repeats = [data.draw(st.integers(0, 3)) for _ in buckets[1:]] + [1]
    lengths = [data.draw(st.integers(1, 50)) for _ in buckets]
    plan = BatchPlan(buckets, controls, batch_size, micro_batches, repeats, seed, 0.0, lengths)
    whole = batch_size * micro_batches
    assert plan.steps_per_epoch == -(-sum(repeats) // whole)
    for epoch in range(2):
        steps = range(1 + epoch * plan.steps_per_epoch, 1 + (epoch + 1) * plan.steps_per_epoch)
        passes = [each for step in steps for each in plan.passes(step)]
        for each in passes:
            assert 1 <= len(each.indices) <= batch_size
            assert len({(buckets[index], controls[index]) for index in each.indices}) == 1
        seen = Counter(index for each in passes for index in each.indices)
        assert seen == Counter(dict(enumerate(repeats)))
        sizes = sorted(plan.samples(step) for step in steps)
        assert sizes[1:] == [whole] * (len(sizes) - 1)
        assert plan.epoch(steps[-1]) == epoch + 1


@settings(max_examples=30, deadline=None)
@given(
    buckets=st.lists(st.sampled_from([SMALL, WIDE, Bucket(48, 48)]), min_size=1, max_size=30),
    share=st.sampled_from([0.0, 0.25, 0.4]),
    seed=st.integers(0, 2**40),
)
def test_a_step_trains_the_same_samples_however_it_is_cut(buckets, share, seed):
    cuts = [(12, 1), (6, 2), (4, 3), (2, 6)] + ([(1, 12)] if share != 0.4 else [])
    plans = [
        BatchPlan(buckets, [0] * len(buckets), batch, micro, 1, seed, share)
        for batch, micro in cuts
    ]
    for step in range(1, 9):
        assert len({trained(plan, step) for plan in plans}) == 1
        points = [[n for each in plan.passes(step) for n in each.preserved] for plan in plans]
        assert points.count(points[0]) == len(plans)
        assert len({plan.samples(step) for plan in plans}) == 1
        assert all(
            len(each.indices) + len(each.preserved) <= batch
            for plan, (batch, _) in zip(plans, cuts, strict=True)
            for each in plan.passes(step)
        )


def test_texts_of_like_length_share_a_pass_and_single_samples_stay_shuffled():
    lengths = [1 + 7 * n % 97 for n in range(400)]

    def padded(plan):
        texts = [[lengths[index] for index in chunk] for chunk in chunks(plan)]
        return sum(len(each) * max(each) for each in texts)

    plain, sorted_ones = (
        BatchPlan([SMALL] * 400, [0] * 400, 4, 1, 1, 3, 0.0, tokens) for tokens in (None, lengths)
    )
    assert padded(plain) > 1.4 * sum(lengths)
    assert padded(sorted_ones) < 1.05 * sum(lengths)
    alone = BatchPlan([SMALL] * 400, [0] * 400, 1, 4, 1, 3, 0.0, lengths)
    assert chunks(alone) == chunks(plan_of([SMALL] * 400, micro_batches=4, seed=3))
    unknown = BatchPlan([SMALL] * 400, [0] * 400, 4, 1, 1, 3, 0.0, [*lengths[:-1], 0])
    assert chunks(unknown) == chunks(plain)


@pytest.mark.parametrize(("batch", "micro", "count"), [(4, 1, 2), (4, 2, 2), (1, 4, 2), (3, 3, 3)])
def test_processes_together_train_a_step_once_and_make_equally_many_passes(batch, micro, count):
    sizes = [SMALL] * 7 + [WIDE] * 4 + [Bucket(48, 48)] * 3
    plan = plan_of(sizes, batch_size=batch, micro_batches=micro)
    whole = micro % count == 0
    for step in range(1, 2 * plan.steps_per_epoch + 1):
        parts = []
        for index in range(count):
            dealt, share = ((index, count), (0, 1)) if whole else ((0, 1), (index, count))
            parts.append([plan.part(step, each, share) for each in plan.dealt(step, dealt)])
        assert len({len(each) for each in parts}) == 1
        counted = [each for part in parts for each in part if not each.idle]
        places = {
            position: index
            for each in counted
            for position, index in zip(each.positions, each.indices, strict=True)
        }
        assert [places[at] for at in range(plan.samples(step))] == list(trained(plan, step))
        assert sum(len(each.indices) for each in counted) == plan.samples(step)
        assert all(len(e.indices) == 1 for part in parts for e in part if e.idle)


def test_the_order_differs_by_epoch_and_seed_and_follows_from_nothing_else():
    plan = plan_of([SMALL] * 30, batch_size=2, seed=5)
    found = chunks(plan, epochs=3)
    epochs = [tuple(found[start : start + 15]) for start in (0, 15, 30)]
    assert len(set(epochs)) == 3
    other = plan_of([SMALL] * 30, batch_size=2, seed=6)
    assert chunks(other) != list(epochs[0])
    fresh = plan_of([SMALL] * 30, batch_size=2, seed=5)
    assert fresh.epoch(1) == 2 / 30
    backwards = [fresh.passes(step)[0].indices for step in reversed(range(1, 46))]
    assert backwards[::-1] == found
    # All images come once before any comes again.
    repeated = plan_of([SMALL] * 5, batch_size=5, num_repeats=4)
    assert all(sorted(chunk) == list(range(5)) for chunk in chunks(repeated))


def test_the_order_is_fixed_for_good():
    # A change here would change what resumed runs train: it needs a new configuration version.
    plan = plan_of([SMALL] * 6 + [WIDE] * 3, batch_size=2, seed=7)
    assert chunks(plan) == ORDER


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_shares_of_a_batch_make_up_the_whole(dataset, count):
    small = CachedDataset(dataset.items[:3])
    plan = plan_for(small, batch_size=3, micro_batches=2)
    whole = load_batch(small, plan, 2, 0, 0.5, 11)
    parts = [load_batch(small, plan, 2, 0, 0.5, 11, (index, count)) for index in range(count)]
    idle = [part for part in parts if part.idle]
    assert len(idle) == max(0, count - 3)
    assert all(part.weights == (0.0,) and len(part.names) == 1 for part in idle)
    parts = [part for part in parts if not part.idle]
    assert tuple(name for part in parts for name in part.names) == whole.names
    assert tuple(place for part in parts for place in part.positions) == whole.positions
    assert torch.equal(torch.cat([part.latents for part in parts]), whole.latents)
    texts = [text for part in parts for text in part.conditionings]
    for one, two in zip(texts, whole.conditionings, strict=True):
        assert torch.equal(one["t"], two["t"])


@pytest.mark.parametrize("share", [0.1, 0.25, 0.5, 0.75])
def test_single_samples_take_turns_with_preserved_points(share):
    plan = BatchPlan([SMALL] * 5, [0] * 5, 1, 2, 1, 3, share)
    drawn, own = [], []
    for step in range(1, 201):
        for each in plan.passes(step):
            assert len(each.indices) + len(each.preserved) == 1
            drawn += each.preserved
            own += each.indices
    assert drawn == list(range(round(400 * share)))
    # No sample loses its turn to a point.
    epochs = [sorted(own[at : at + 5]) for at in range(0, len(own) - 5, 5)]
    assert all(epoch == [0, 1, 2, 3, 4] for epoch in epochs)
    assert plan.epoch(200) == pytest.approx(len(own) / 5)
