"""Which files are masks, of which image, and what is told of those that fit none."""

import pytest

from tests.fixtures.bad_input import write_image, write_pair
from tests.fixtures.scanned_folder import names, settings
from tests.fixtures.tables import table
from trainer_core.config import DatasetSection
from trainer_core.config.folders import MaskSection
from trainer_core.data.sources.scan_folder import scan
from trainer_core.errors import DatasetError


def masked(folder, source="auto", **options) -> DatasetSection:
    return settings(folder, mask=MaskSection(source=source), **options)


@pytest.mark.parametrize(("image", "mask"), table(__file__, "places_of_masks"))
def test_a_mask_is_found_and_is_no_sample(tmp_path, image, mask):
    write_pair(tmp_path / image)
    write_image(tmp_path / mask, mode="L")
    if image.startswith("training"):
        write_image(tmp_path / "control_images" / image.removeprefix("training_images/"))
    for source in ("auto", "files"):
        found = scan(masked(tmp_path, source))
        assert names(found) == [image]
        assert found.samples[0].mask == tmp_path / mask
        assert found.problems == ()


def test_a_mask_of_a_folder_is_that_of_every_image_of_its_name(tmp_path):
    for name in ("x/a.png", "y/a.png"):
        write_pair(tmp_path / "data" / name)
    write_image(tmp_path / "theirs" / "a.png", mode="L")
    found = scan(masked(tmp_path / "data", mask_folder=str(tmp_path / "theirs")))
    assert [each.mask for each in found.samples] == [tmp_path / "theirs" / "a.png"] * 2


def test_images_without_mask_are_told_or_stop(tmp_path):
    for name in ("a.png", "b.png", "c.png"):
        write_pair(tmp_path / name)
    write_image(tmp_path / "b_mask.png", mode="L")
    found = scan(masked(tmp_path))
    assert [each.mask is not None for each in found.samples] == [False, True, False]
    assert found.problems == ("2 image(s) have no mask, and count everywhere alike: a.png, c.png",)
    with pytest.raises(DatasetError, match=r"a\.png has no mask; c\.png") as caught:
        scan(masked(tmp_path, "files"))
    assert "dataset.mask.source" in caught.value.remedy


def test_transparency_as_mask(tmp_path):
    write_pair(tmp_path / "a.png", mode="RGBA")
    write_pair(tmp_path / "b.png")
    write_image(tmp_path / "b_mask.png", mode="L")
    found = scan(masked(tmp_path, "alpha"))
    assert [each.mask for each in found.samples] == [tmp_path / "a.png", None]
    assert "b_mask.png" in found.problems[0]
    assert "1 image(s) have no transparency" in found.problems[1]
