"""Several folders as one dataset: names, roles, what each says otherwise, and refusals."""

import pytest

from tests.fixtures.scanned_folder import settings
from trainer_core.data.sources.scan_dataset import scan_all
from trainer_core.errors import DatasetError


def test_each_folder_has_its_own_settings_role_and_name(tmp_path, captioned):
    captioned(tmp_path / "own" / "a.png", "a shape")
    captioned(tmp_path / "more" / "dogs" / "a.png", "a dog")
    captioned(tmp_path / "other" / "dogs" / "a.png", "another")
    captioned(tmp_path / "held" / "a.png", "held")
    captioned(tmp_path / "plain" / "a.png", "plain")
    captioned(tmp_path / "ordinary" / "a.png", "ordinary")
    folders = [
        {"path": str(tmp_path / "more" / "dogs"), "trigger_word": "dog"},
        {"path": str(tmp_path / "other" / "dogs"), "captions": {"suffix": "!"}},
        {"path": str(tmp_path / "held"), "role": "validation", "trigger_word": ""},
        {"path": str(tmp_path / "plain"), "role": "regularization"},
    ]
    dataset = settings(
        tmp_path / "own",
        trigger_word="zorb",
        folders=folders,
        regularization={"path": str(tmp_path / "ordinary")},
    )
    found = scan_all(dataset)
    assert [(s.name, s.caption, s.folder) for s in found.samples] == [
        ("a.png", "zorb, a shape", 0),
        ("dogs/a.png", "a dog", 1),
        ("dogs-2/a.png", "zorb, another!", 2),
        ("held/a.png", "held", 3),
        ("plain/a.png", "plain", 4),
        ("regularization/a.png", "ordinary", 5),
    ]
    assert [s.name for s in found.samples if s.validation] == ["held/a.png"]
    ordinary = [s.name for s in found.samples if s.regularization]
    assert ordinary == ["plain/a.png", "regularization/a.png"]


@pytest.mark.parametrize("role", ["train", "validation", "regularization"])
@pytest.mark.parametrize("inner", ["first", "second"])
def test_an_image_of_two_folders_is_refused(tmp_path, captioned, role, inner):
    captioned(tmp_path / "out" / "a.png")
    captioned(tmp_path / "out" / "in" / "b.png")
    outer, below = str(tmp_path / "out"), str(tmp_path / "out" / "in")
    path, second = (below, outer) if inner == "first" else (outer, below)
    dataset = settings(path, folders=[{"path": second, "role": role}])
    with pytest.raises(DatasetError, match="no image in common") as caught:
        scan_all(dataset)
    assert "dataset.folders[0].path" in caught.value.found
    assert "b.png" in caught.value.found
    assert ("measured" in caught.value.found) == (role == "validation")


def test_a_folder_that_is_absent_or_named_twice_is_refused_by_its_setting(tmp_path, captioned):
    captioned(tmp_path / "own" / "a.png")
    (tmp_path / "link").symlink_to(tmp_path / "own", target_is_directory=True)
    for path in (tmp_path / "link", tmp_path / "own" / ".." / "own"):
        for further in (
            {"folders": [{"path": str(path)}]},
            {"regularization": {"path": str(path)}},
        ):
            with pytest.raises(DatasetError, match=r"is dataset\.path as well"):
                scan_all(settings(tmp_path / "own", **further))
    absent = {"path": str(tmp_path / "absent")}
    for setting, further in (("folders[0]", [absent]), ("regularization", absent)):
        dataset = settings(tmp_path / "own", **{setting.removesuffix("[0]"): further})
        with pytest.raises(DatasetError) as caught:
            scan_all(dataset)
        assert caught.value.found.startswith(f"dataset.{setting}.path: ")


def test_folders_with_and_without_control_images_do_not_mix(tmp_path, captioned, paint):
    captioned(tmp_path / "own" / "a.png")
    captioned(tmp_path / "edits" / "b.png")
    paint(tmp_path / "edits" / "b_control.png", seed=1)
    dataset = settings(tmp_path / "own", folders=[{"path": str(tmp_path / "edits")}])
    with pytest.raises(DatasetError, match=r"dataset\.folders\[0\]\.path has control images"):
        scan_all(dataset)
    mixed = scan_all(dataset.model_copy(update={"missing_control": "without"}))
    assert [len(s.controls) for s in mixed.samples] == [0, 1]


def test_a_share_is_held_out_of_the_own_images_alone(tmp_path, captioned):
    for number in range(8):
        captioned(tmp_path / "own" / f"{number}.png", seed=number)
        captioned(tmp_path / "more" / f"{number}.png", seed=number + 10)
        captioned(tmp_path / "plain" / f"{number}.png", seed=number + 20)
    folders = [
        {"path": str(tmp_path / "more")},
        {"path": str(tmp_path / "plain"), "role": "regularization"},
    ]
    dataset = settings(tmp_path / "own", folders=folders, validation={"share": 0.25})
    held = {s.name for s in scan_all(dataset, seed=5).samples if s.validation}
    assert 1 <= len(held) < 12
    assert not any(name.startswith("plain/") for name in held)
    captioned(tmp_path / "own" / "8.png", seed=30)
    again = {s.name for s in scan_all(dataset, seed=5).samples if s.validation}
    assert again - {"8.png"} == held
    assert {s.name for s in scan_all(dataset, seed=6).samples if s.validation} != again
