import itertools
import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st

from trainer_core.config import DatasetSection
from trainer_core.data.buckets import choose_buckets, plan_buckets, standard_buckets
from trainer_core.data.crop import kept_box
from trainer_core.errors import ConfigError, DatasetError
from trainer_core.types import Bucket, Sample


def image(width: int, height: int, controls: tuple[Path, ...] = ()) -> Sample:
    return Sample(f"{width}x{height}.png", Path("none.png"), "", width, height, controls)


def no_control_size(width: int, height: int, area: int) -> tuple[int, int]:
    raise AssertionError("asked for a control's size without a control area")


def bucket_of(width: int, height: int, multiple: int = 32, **options) -> tuple[int, int]:
    plan = plan_buckets([image(width, height)], DatasetSection(**options), multiple,
                        no_control_size)  # fmt: skip
    return plan.samples[0].bucket.width, plan.samples[0].bucket.height


@budget(max_examples=100, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(64, 6000), st.integers(64, 6000)), min_size=1),
    resolution=st.integers(64, 2048),
    multiple=st.sampled_from([8, 16, 32, 64]),
    aspect=st.floats(1, 8),
    upscale=st.booleans(),
)
def test_every_plan_keeps_its_promises(sizes, resolution, multiple, aspect, upscale):
    settings = DatasetSection(resolution=resolution, max_aspect_ratio=aspect, upscale=upscale)
    samples = [image(*size) for size in sizes]
    plan = plan_buckets(samples, settings, multiple, no_control_size)
    assert [planned.sample for planned in plan.samples] == samples
    assert sum(plan.counts().values()) == len(samples)
    for planned in plan.samples:
        bucket, sample = planned.bucket, planned.sample
        assert bucket.width % multiple == bucket.height % multiple == 0
        assert min(bucket.width, bucket.height) >= multiple
        assert bucket.width * bucket.height <= resolution**2
        longest, shortest = max(bucket.width, bucket.height), min(bucket.width, bucket.height)
        assert longest <= aspect * shortest + 1e-6
        if not upscale:
            assert bucket.width <= sample.width
            assert bucket.height <= sample.height


def test_an_image_smaller_than_one_multiple_is_an_error_that_names_it():
    with pytest.raises(DatasetError, match=r"31x500\.png is 31 x 500") as caught:
        bucket_of(31, 500)
    assert "dataset.upscale" in caught.value.remedy


def test_controls_have_the_targets_size_without_a_control_area():
    sample = image(2000, 1000, (Path("a.png"), Path("b.png")))
    planned = plan_buckets([sample], DatasetSection(), 32, no_control_size).samples[0]
    assert planned.control_buckets == (planned.bucket, planned.bucket)


def test_controls_have_their_own_size_with_a_control_area(tmp_path, paint):
    sample = image(2000, 1000, (paint(tmp_path / "a.png", 40, 20),))
    asked = []

    def control_size(width: int, height: int, area: int) -> tuple[int, int]:
        asked.append((width, height, area))
        return 96, 48

    settings = DatasetSection(control_area=4096)
    planned = plan_buckets([sample], settings, 32, control_size).samples[0]
    assert asked == [(40, 20, 4096)]
    assert planned.control_buckets == (Bucket(96, 48),)


PHOTOS = [(1600, 1200), (1200, 1600), (1440, 1080), (4032, 3024)]


def test_notes_tell_of_small_cropped_and_mixed_images():
    samples = [image(100, 100), image(9000, 700), image(2000, 2000, (Path("a.png"),))]
    notes = plan_buckets(samples, DatasetSection(), 32, no_control_size).notes
    assert any("100x100.png" in note and "trained smaller" in note for note in notes)
    assert any("9000x700.png" in note and "cropped" in note for note in notes)
    assert any("2 with 0, 1 with 1" in note for note in notes)
    photos = [image(2000, 2000), *(image(*size) for size in PHOTOS)]
    square = DatasetSection(bucketing="area", max_aspect_ratio=1, resolution=64)
    for sizes, settings in (
        (photos, square),  # 4:3 loses just a quarter
        ([image(2000, 700)], square.model_copy(update={"crop": "stretch"})),
    ):
        assert plan_buckets(sizes, settings, 32, no_control_size).notes == ()


def slow_choice(size, buckets, upscale):
    """The rule as it is written down, one bucket after another."""
    width, height = size
    best, least = None, None
    for bucket in buckets:
        if not upscale and (bucket.width > width or bucket.height > height):
            continue
        off = round(abs(math.log(bucket.width / bucket.height / (width / height))), 9)
        rank = (off, -bucket.width * bucket.height)
        if least is None or rank < least:
            best, least = bucket, rank
    return best


@budget(max_examples=50, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 3000)), min_size=1),
    resolution=st.integers(64, 1536),
    multiple=st.sampled_from([8, 16, 64]),
    aspect=st.floats(1, 8),
    upscale=st.booleans(),
)
def test_many_sizes_at_once_get_what_each_gets_alone(sizes, resolution, multiple, aspect, upscale):
    buckets = standard_buckets(resolution, aspect, multiple)
    # Sizes of the very shape of a bucket, and between two, are those that could be rounded off.
    sizes += [(3 * each.width, 3 * each.height) for each in buckets[:20]]
    expected = [slow_choice(size, buckets, upscale) for size in sizes]
    assert choose_buckets(sizes, buckets, upscale=upscale) == expected


def sizes_of(sample: Sample, multiple: int = 16, **options) -> list[tuple[int, int]]:
    plan = plan_buckets([sample], DatasetSection(**options), multiple, no_control_size)
    assert all(planned.sample is sample for planned in plan.samples)
    return [(each.bucket.width, each.bucket.height) for each in plan.samples]


@pytest.mark.parametrize(
    ("size", "options", "found"),
    [
        ((2000, 3000), {"more_shapes": ["1:1", "16:9"]}, [(832, 1248), (1024, 1024), (1360, 768)]),
        ((2000, 2000), {"more_shapes": ["1:1"]}, [(1024, 1024)]),
        ((1000, 700), {"more_shapes": ["1:1"]}, [(992, 688), (688, 688)]),
        ((400, 40), {"more_shapes": ["1:30"], "bucketing": "longest_side"}, [(384, 32)]),
        (
            (2000, 2000),
            {"more_shapes": ["2:1"], "more_resolutions": [512]},
            [(1024, 1024), (1440, 720), (512, 512), (720, 352)],
        ),
    ],
)
def test_an_image_is_planned_for_each_shape_that_it_is_cut_to(size, options, found):
    assert sizes_of(image(*size), **options) == found


def test_shapes_are_cut_as_the_seed_crops_them():
    """Its ``crop_to_aspect_ratio`` and ``image_resize``, in fractions."""
    options = {"bucketing": "longest_side", "upscale": True, "resolution": 1024}
    for width, height in itertools.product(range(200, 3000, 311), range(220, 3000, 317)):
        plan = plan_buckets(
            [image(width, height)],
            DatasetSection(more_shapes=["16:9", "4:3", "1:1"], **options),
            16,
            no_control_size,
        )
        kept = {each.bucket: kept_box((width, height), each.bucket) for each in plan.samples}
        for ratio in (Fraction(16, 9), Fraction(4, 3), Fraction(1)):
            wide = Fraction(width, height) > ratio
            part = (int(height * ratio), height) if wide else (width, int(width / ratio))
            bucket = Bucket(*(1024 * side // max(part) // 32 * 32 for side in part))
            left, top = (width - part[0]) // 2, (height - part[1]) // 2
            box = (left, top, left + part[0], top + part[1])
            # Both sides are whole multiples of 32 there too, which it stretches for and we cut for.
            assert kept[bucket] == pytest.approx(box, abs=1 + 32 * max(part) / 1024), bucket


def test_the_longest_side_is_the_seeds_for_every_shape():
    """The document's numbers in fractions: the other side rounded down, both to 32."""
    given = {"bucketing": "longest_side", "upscale": True, "resolution": 512}
    for width in range(40, 600, 57):
        for height in range(40, 600, 59):
            longest = max(width, height)
            exact = [512 * side // longest // 32 * 32 for side in (width, height)]
            assert sizes_of(image(width, height), **given) == [tuple(exact)]


@pytest.mark.parametrize("step", [24, 8, 100])
def test_a_step_that_the_family_cannot_train_names_setting_and_remedy(step):
    with pytest.raises(ConfigError, match=rf"dataset\.bucket_step: {step}") as caught:
        sizes_of(image(500, 500), bucket_step=step)
    assert "multiple of 16" in caught.value.expected
    good = [int(word) for word in caught.value.remedy.replace(",", "").split() if word.isdigit()]
    assert good
    assert all(sizes_of(image(500, 500), bucket_step=each) for each in good)


LONGEST = {"bucketing": "longest_side"}


@pytest.mark.parametrize(
    ("size", "options", "found"),
    [
        # Large ones get the nearest shape.
        ((4000, 4000), {}, (1024, 1024)),
        ((4000, 3000), {}, (1184, 864)),
        ((1080, 1920), {}, (768, 1344)),
        ((64, 64), {"resolution": 64}, (64, 64)),
        # Small ones keep their size, rounded down, unless they are to be enlarged.
        ((700, 500), {}, (672, 480)),
        ((33, 63), {}, (32, 32)),
        ((8, 8), {"upscale": True}, (1024, 1024)),
        # Extreme ones are cut.
        ((5000, 500), {}, (1440, 480)),
        ((10000, 64), {"max_aspect_ratio": 1.0}, (64, 64)),
        ((2000, 3000), LONGEST, (672, 1024)),
        ((640, 480), LONGEST, (640, 480)),
        ((640, 480), {**LONGEST, "upscale": True}, (1024, 768)),
    ],
)
def test_the_size_of_a_bucket(size, options, found):
    assert bucket_of(*size, **options) == found
