"""Folders of control images and masks that lie elsewhere: each file is read for one thing."""

import pytest
from PIL import Image

from trainer_core.config import DatasetSection
from trainer_core.data.sources.scan_folder import scan
from trainer_core.errors import DatasetError
from trainer_core.filesystem.allowed_folders import AllowedFolders

FILES = ("all/images/a.png", "all/images/x/b.png", "all/before/a.png", "all/before/b.png")
MASKS = ("all/masks/a.png", "all/before/deep/masks/b.png", "all/images/masks/a.png")


@pytest.fixture
def lay(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in (*FILES, *MASKS):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 64)).save(path)
    (tmp_path / "link").symlink_to("all/images")
    return tmp_path


def read(within=None, **settings):
    policies = {"missing_caption": "empty", "missing_image": "skip", "missing_control": "skip"}
    return scan(DatasetSection(path="all/images", **policies, **settings), within)


@pytest.mark.parametrize(
    ("controls", "masks", "found"),
    [
        (["all/before"], "all/masks", {"a.png": ("all/masks/a.png", ["all/before/a.png"])}),
        ([], "all/before/deep/masks", {"x/b.png": ("all/before/deep/masks/b.png", [])}),
        ([], "all/images/masks", {"a.png": ("all/images/masks/a.png", [])}),
        # A folder that holds the others has nothing of theirs.
        (["all/before"], "all", {"a.png": ("all/masks/a.png", ["all/before/a.png"])}),
    ],
)
def test_a_folder_inside_or_above_another_has_its_own_files_alone(lay, controls, masks, found):
    samples = {
        each.name: (each.mask and str(each.mask), [str(path) for path in each.controls])
        for each in read(control_folders=controls, mask_folder=masks).samples
    }
    assert {name: samples[name] for name in found} == found
    assert set(samples) == {"a.png", "x/b.png"}


@pytest.mark.parametrize("folder", ["all/images", "all/images/", "link", "all/before/../images"])
@pytest.mark.parametrize("setting", ["mask_folder", "control_folders"])
def test_no_image_is_its_own_mask_or_control_image(lay, folder, setting):
    value = folder if setting == "mask_folder" else [folder]
    with pytest.raises(DatasetError, match=rf"dataset\.{setting}: .* folder of the images"):
        read(**{setting: value})


@pytest.mark.parametrize("name", ["outside", "absent"])
def test_what_lies_outside_is_refused_alike_whether_it_is_there_or_not(lay, name):
    within = AllowedFolders([lay / "all"])
    (lay / "outside").mkdir()
    with pytest.raises(DatasetError, match=r"dataset\.mask_folder: .* out of the allowed folders"):
        read(within, mask_folder=str(lay / name))
