"""Which control images a scan finds for a training image, in both layouts."""

import pytest

from tests.fixtures.scanned_folder import names, settings
from trainer_core.data.sources.scan_folder import scan
from trainer_core.errors import DatasetError


def paired(root, captioned, paint, stems=("a", "b")):
    for stem in stems:
        captioned(root / "training_images" / f"{stem}.png", caption=f"make {stem}")
        paint(root / "control_images" / f"{stem}.jpg")
    return root


@pytest.mark.parametrize("layout", ["auto", "paired"])
def test_paired_layout_finds_controls_by_name(tmp_path, captioned, paint, layout):
    paired(tmp_path, captioned, paint)
    captioned(tmp_path / "training_images" / "sub" / "c.d.png", "deep")
    paint(tmp_path / "control_images" / "sub" / "c.d.PNG")
    found = scan(settings(tmp_path, layout=layout))
    assert names(found) == [f"training_images/{n}" for n in ("a.png", "b.png", "sub/c.d.png")]
    assert [[c.name for c in s.controls] for s in found.samples] == [["a.jpg"], ["b.jpg"],
                                                                     ["c.d.PNG"]]  # fmt: skip


@pytest.mark.parametrize(
    "files",
    [
        ["a_0.png", "a_1.png", "a_2.png"],
        ["a_1.png", "a_2.png"],
        ["a.png", "a_1.png", "a_2.png"],
        ["a_control_1.png", "a_control_2.png"],
        ["a_control.png", "a_1.png"],
        ["a_01.png", "a_02.png", "a_03.png"],
        [f"a_{n}.png" for n in range(12)],
    ],
)
def test_several_controls_in_every_spelling_come_in_the_order_of_their_numbers(
    tmp_path, captioned, paint, files
):
    captioned(tmp_path / "training_images" / "a.png")
    for file in reversed(files):
        paint(tmp_path / "control_images" / file)
    sample = scan(settings(tmp_path)).samples[0]
    assert [control.name for control in sample.controls] == files


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["a_0.png", "a_2.png"], "number 1 is missing"),
        (["a_2.png"], "begin at number 2"),
        (["a_1.png", "a_1.jpg"], "claim the same place"),
        (["a.png", "a.jpg"], "claim the same place"),
    ],
)
def test_gaps_and_doubles_among_controls_are_told(tmp_path, captioned, paint, files, words):
    paired(tmp_path, captioned, paint, ("b",))
    captioned(tmp_path / "training_images" / "a.png")
    for file in files:
        paint(tmp_path / "control_images" / file)
    with pytest.raises(DatasetError, match=words):
        scan(settings(tmp_path))
    assert names(scan(settings(tmp_path, missing_control="skip"))) == ["training_images/b.png"]


def test_a_captioned_image_is_no_control_whatever_its_name(tmp_path, captioned):
    captioned(tmp_path / "remote.png", "a far place")
    captioned(tmp_path / "remote_control.png", "a device")
    found = scan(settings(tmp_path))
    assert names(found) == ["remote.png", "remote_control.png"]
    assert found.samples[0].controls == ()


@pytest.mark.parametrize(
    ("images", "controls"), [("images", "control"), ("after", "x/y"), ("", "b")]
)
def test_pairs_of_one_name_in_two_folders_are_told_with_what_to_do(
    images, controls, tmp_path, captioned, paint
):
    """As ai-toolkit and FlyMyAI lay control images, in folders of any name."""
    for stem in ("a", "b"):
        captioned(tmp_path / images / f"{stem}.png", f"make {stem}")
        paint(tmp_path / controls / f"{stem}.jpg")
    told = f"dataset.control_folders: [{tmp_path / controls}]"
    with pytest.raises(DatasetError) as caught:
        scan(settings(tmp_path))
    assert told in caught.value.remedy
    found = scan(settings(tmp_path, missing_caption="empty"))
    assert any(told in each for each in found.problems)
    found = scan(settings(tmp_path, control_folders=[str(tmp_path / controls)]))
    assert [[c.name for c in s.controls] for s in found.samples] == [["a.jpg"], ["b.jpg"]]
    # A caption, or an image without a partner, makes them images of their own.
    paint(tmp_path / controls / "c.jpg")
    found = scan(settings(tmp_path, missing_caption="empty"))
    assert not any("control_folders" in each for each in found.problems)
