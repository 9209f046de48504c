"""Repeats in folder names, several folders of control images, and any number of them in one."""

import pytest

from tests.fixtures.bad_input import write_image, write_pair
from tests.fixtures.scanned_folder import settings
from trainer_core.data.sources.scan_folder import scan
from trainer_core.errors import DatasetError


def repeats(found) -> dict[str, int]:
    return {sample.name: sample.repeats for sample in found.samples}


@pytest.mark.parametrize("layout", ["auto", "kohya"])
def test_the_number_of_a_folder_is_how_often_its_images_come(tmp_path, layout):
    write_pair(tmp_path / "10_ohwx man" / "a.png")
    write_pair(tmp_path / "3_dog" / "b.png")
    found = scan(settings(tmp_path, layout=layout))
    assert repeats(found) == {"10_ohwx man/a.png": 10, "3_dog/b.png": 3}
    assert found.problems == (
        "read as repeats of kohya's folder names, 2 folder(s): 10_ohwx man (10 times), 3_dog "
        "(3 times)",
    )


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("a.png", True),
        ("10_x/sub/a.png", True),
        ("plain/a.png", True),
        ("2023_summer/a.png", True),
        ("0_x/a.png", True),
    ],
)
def test_a_tree_that_is_not_all_named_so_has_no_repeats(tmp_path, other, told):
    write_pair(tmp_path / "10_cat" / "b.png")
    write_pair(tmp_path / other)
    found = scan(settings(tmp_path))
    assert set(repeats(found).values()) == {1}
    assert ("dataset.layout: kohya" in " ".join(found.problems)) == told
    assert scan(settings(tmp_path, layout="flat")).problems == ()


def test_a_caption_that_was_forgotten_is_not_replaced_by_the_folders_name(tmp_path):
    write_pair(tmp_path / "10_cat" / "a.png")
    write_image(tmp_path / "10_cat" / "b.png")
    with pytest.raises(DatasetError, match=r"10_cat/b\.png has no caption"):
        scan(settings(tmp_path))


@pytest.mark.parametrize("paired", [False, True])
def test_any_number_of_control_images_in_one_dataset(tmp_path, paired):
    images = tmp_path / "training_images" if paired else tmp_path
    controls = tmp_path / "control_images" if paired else tmp_path
    for name in ("none", "one", "three"):
        write_pair(images / f"{name}.png")
    for name in ("one_control", "three_control_1", "three_control_2", "three_control_3"):
        write_image(controls / f"{name}.png")
    found = scan(settings(tmp_path, missing_control="without"))
    assert [len(each.controls) for each in found.samples] == [0, 1, 3]
    assert "1 image(s) are trained without control image" in found.problems[0]
    with pytest.raises(DatasetError, match=r"none\.png has no control image"):
        scan(settings(tmp_path))
