from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer_core.data.batches import BatchPlan, load_batch
from trainer_core.data.cache.cache_file import make_entry, write_entry
from trainer_core.data.cache.cached_dataset import CachedDataset, CachedItem
from trainer_core.types import Bucket

SMALL, WIDE = Bucket(16, 16), Bucket(32, 16)
ORDER = [(6, 8), (1, 0), (3, 5), (8, 7), (4, 2)]


def plan_of(buckets, controls=None, batch_size=1, micro_batches=1, num_repeats=1, seed=0):
    controls = [0] * len(buckets) if controls is None else controls
    return BatchPlan(buckets, controls, batch_size, micro_batches, num_repeats, seed)


def chunks(plan: BatchPlan, epochs: int = 1) -> list[tuple[int, ...]]:
    steps = range(1, 1 + epochs * plan.chunks_per_epoch)
    return [plan.indices(step, 0) for step in steps]


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


@settings(max_examples=150, deadline=None)
@given(
    buckets=st.lists(st.sampled_from([SMALL, WIDE, Bucket(48, 48)]), min_size=1, max_size=24),
    data=st.data(),
    batch_size=st.integers(1, 6),
    num_repeats=st.integers(1, 3),
    seed=st.integers(0, 2**40),
)
def test_every_epoch_holds_every_image_and_no_batch_mixes(
    buckets, data, batch_size, num_repeats, seed
):
    controls = [data.draw(st.integers(0, 2)) for _ in buckets]
    plan = plan_of(buckets, controls, batch_size, 1, num_repeats, seed)
    for epoch in range(2):
        found = chunks(plan, epochs=2)[epoch * plan.chunks_per_epoch :][: plan.chunks_per_epoch]
        for chunk in found:
            assert len(chunk) == batch_size
            assert len({(buckets[index], controls[index]) for index in chunk}) == 1
        seen = Counter(index for chunk in found for index in chunk)
        assert set(seen) == set(range(len(buckets)))
        assert min(seen.values()) >= num_repeats
        groups = len(set(zip(buckets, controls, strict=True)))
        extra = sum(seen.values()) - len(buckets) * num_repeats
        assert extra <= groups * (batch_size - 1)


def test_without_filling_every_image_comes_exactly_as_often_as_it_is_repeated():
    plan = plan_of([SMALL] * 12, batch_size=4, num_repeats=3)
    seen = Counter(index for chunk in chunks(plan) for index in chunk)
    assert seen == dict.fromkeys(range(12), 3)
    assert plan.chunks_per_epoch == 9


def test_repeats_go_through_all_images_before_any_comes_again():
    plan = plan_of([SMALL] * 5, batch_size=5, num_repeats=4)
    assert all(sorted(chunk) == list(range(5)) for chunk in chunks(plan))


def test_filling_prefers_images_that_the_batch_does_not_hold():
    plan = plan_of([SMALL] * 7, batch_size=4)
    for chunk in chunks(plan, epochs=10):
        assert len(set(chunk)) == 4


def test_a_batch_larger_than_its_bucket_repeats_images_evenly():
    plan = plan_of([SMALL] * 2, batch_size=7)
    counts = Counter(plan.indices(1, 0))
    assert sorted(counts.values()) == [3, 4]


def test_the_order_differs_by_epoch_and_seed_and_follows_from_nothing_else():
    plan = plan_of([SMALL] * 30, batch_size=2, seed=5)
    found = chunks(plan, epochs=3)
    epochs = [tuple(found[start : start + 15]) for start in (0, 15, 30)]
    assert len(set(epochs)) == 3
    other = plan_of([SMALL] * 30, batch_size=2, seed=6)
    assert chunks(other) != list(epochs[0])
    fresh = plan_of([SMALL] * 30, batch_size=2, seed=5)
    backwards = [fresh.indices(step, 0) for step in reversed(range(1, 46))]
    assert backwards[::-1] == found


def test_the_order_is_fixed_for_good():
    # A change here would change what resumed runs train: it needs a new configuration version.
    plan = plan_of([SMALL] * 6 + [WIDE] * 3, batch_size=2, seed=7)
    assert chunks(plan) == ORDER


def test_first_places_are_spread_evenly_over_the_images():
    plan = plan_of([SMALL] * 4, batch_size=1)
    firsts = Counter(plan.indices(1 + 4 * epoch, 0)[0] for epoch in range(400))
    assert min(firsts.values()) > 60
    assert max(firsts.values()) < 140


def test_micro_batches_continue_each_other():
    flat = plan_of([SMALL] * 10, batch_size=2)
    grouped = plan_of([SMALL] * 10, batch_size=2, micro_batches=3)
    found = [grouped.indices(step, micro) for step in range(1, 11) for micro in range(3)]
    assert found == chunks(flat, epochs=6)
    assert grouped.epoch(5) == 3.0
    assert flat.epoch(1) == 0.2


@pytest.mark.parametrize(("step", "micro"), [(0, 0), (1, 1), (1, -1)])
def test_steps_count_from_one_and_micro_batches_from_zero(step, micro):
    with pytest.raises(ValueError, match="no micro-batch"):
        plan_of([SMALL]).indices(step, micro)


@pytest.mark.parametrize(
    "wrong", [{"buckets": []}, {"batch_size": 0}, {"micro_batches": 0}, {"num_repeats": 0}]
)
def test_empty_plans_are_refused(wrong):
    with pytest.raises(ValueError, match="at least 1"):
        plan_of(**{"buckets": [SMALL], **wrong})


def test_a_batch_holds_its_samples_in_order(dataset):
    plan = plan_for(dataset, batch_size=3, micro_batches=2, seed=3)
    for step in range(1, 6):
        for micro in range(2):
            batch = load_batch(dataset, plan, step, micro, 0.0, 3)
            indices = plan.indices(step, micro)
            assert batch.names == tuple(f"{index}.png" for index in indices)
            assert batch.positions == tuple(range(micro * 3, micro * 3 + 3))
            assert batch.latents[:, 0, 0, 0].tolist() == [float(index) for index in indices]
            assert [len(text["t"]) for text in batch.conditionings] == [i + 1 for i in indices]
            for control in batch.controls:
                assert control[:, 0, 0, 0].tolist() == [100.0 + index for index in indices]
            assert len(batch.controls) == len(dataset.control_buckets[indices[0]])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_shares_of_a_batch_make_up_the_whole(dataset, count):
    plan = plan_for(dataset, batch_size=4, micro_batches=2)
    whole = load_batch(dataset, plan, 2, 1, 0.5, 11)
    parts = [load_batch(dataset, plan, 2, 1, 0.5, 11, (index, count)) for index in range(count)]
    assert tuple(name for part in parts for name in part.names) == whole.names
    assert tuple(place for part in parts for place in part.positions) == whole.positions
    assert torch.equal(torch.cat([part.latents for part in parts]), whole.latents)
    texts = [text for part in parts for text in part.conditionings]
    for one, two in zip(texts, whole.conditionings, strict=True):
        assert torch.equal(one["t"], two["t"])
    lengths = [len(part.names) for part in parts]
    assert max(lengths) - min(lengths) <= 1


def test_an_empty_share_is_refused(dataset):
    plan = plan_for(dataset, batch_size=1)
    with pytest.raises(ValueError, match="empty"):
        load_batch(dataset, plan, 1, 0, 0.0, 0, (0, 2))


def dropped(dataset, plan, rate, seed, steps) -> list[bool]:
    found = []
    for step in range(1, steps + 1):
        batch = load_batch(dataset, plan, step, 0, rate, seed)
        found += [bool((text["t"] == 0).all() and len(text["t"]) == 1)
                  for text in batch.conditionings]  # fmt: skip
    return found


def test_captions_are_dropped_at_their_rate_and_the_same_ones_each_time(dataset):
    # Sample 0's own text is one row of zeros like the empty one; leave it out.
    captioned = CachedDataset(dataset.items[1:3])
    plan = plan_for(captioned, batch_size=2)
    found = dropped(captioned, plan, 0.3, 1, 1500)
    assert abs(sum(found) / len(found) - 0.3) < 0.03
    assert found == dropped(captioned, plan, 0.3, 1, 1500)
    assert found != dropped(captioned, plan, 0.3, 2, 1500)
    assert not any(dropped(captioned, plan, 0.0, 1, 200))
    assert all(dropped(captioned, plan, 1.0, 1, 200))


def test_dropped_captions_are_independent_of_the_position_in_the_step(dataset):
    captioned = CachedDataset(dataset.items[1:3])
    plan = plan_for(captioned, batch_size=2)
    found = dropped(captioned, plan, 0.5, 4, 1500)
    both = sum(one and two for one, two in zip(found[::2], found[1::2], strict=True)) / 1500
    assert abs(both - 0.25) < 0.04
