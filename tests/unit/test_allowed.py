"""Reading stays inside of some folders, wherever links lead."""

import pytest

from trainer_core.config import DatasetSection
from trainer_core.data.sources.scan_folder import scan
from trainer_core.demo.run import dataset_folder
from trainer_core.errors import DatasetError, InputError
from trainer_core.filesystem.allowed_folders import AllowedFolders


@pytest.fixture
def places(tmp_path):
    """An allowed folder, and one beside it that is not."""
    image = sorted(dataset_folder("generate").rglob("*.png"))[0]
    for folder in (tmp_path / "data", tmp_path / "secret"):
        folder.mkdir()
        (folder / "a.png").write_bytes(image.read_bytes())
        (folder / "a.txt").write_text("a caption")
    return tmp_path / "data", tmp_path / "secret"


def scanned(folder, within=True):
    settings = DatasetSection(path=str(folder))
    return scan(settings, AllowedFolders([folder]) if within else None)


# What is linked inside of a dataset, to what in the other folder, and what belongs beside it.
LINKS = {
    "image": ("b.png", "a.png", "b.txt"),
    "caption": ("b.txt", "a.txt", "b.png"),
    "folder": ("below", "", None),
    "link to a link": ("b.png", "again.png", "b.txt"),
    "nothing": ("b.png", "none.png", "b.txt"),
}


@pytest.mark.parametrize("case", LINKS)
def test_a_link_that_leads_out_of_a_dataset(places, case):
    data, secret = places
    name, target, beside = LINKS[case]
    if target == "again.png":
        (secret / target).symlink_to(secret / "a.png")
    (data / name).symlink_to(secret / target if target else secret)
    if beside:
        source = data / f"a{(data / beside).suffix}"
        (data / beside).write_bytes(source.read_bytes())
    with pytest.raises(DatasetError, match="link") as caught:
        scanned(data)
    assert name in caught.value.found
    assert "secret" not in str(caught.value), "it tells where the link leads"
    if case != "nothing":
        assert scanned(data, within=False).samples, "the user's own shell follows links"


@pytest.mark.parametrize("part", ["control_images", "training_images"])
@pytest.mark.parametrize("whole", [True, False])
def test_a_link_in_a_paired_dataset(places, part, whole):
    data, secret = places
    for name in ("control_images", "training_images"):
        (data / name).mkdir()
        for file in ("a.png", "a.txt"):
            (data / name / file).write_bytes((data / file).read_bytes())
    if whole:
        (data / part).rename(secret / part)
        (data / part).symlink_to(secret / part)
    else:
        (data / part / "a.png").unlink()
        (data / part / "a.png").symlink_to(secret / "a.png")
    with pytest.raises(DatasetError, match="link"):
        scanned(data)
    assert scanned(data, within=False).samples


def test_links_that_stay_inside_are_followed(places):
    data, _ = places
    (data / "b.png").symlink_to(data / "a.png")
    (data / "b.txt").symlink_to("a.txt")
    assert len(scanned(data).samples) == 2


@pytest.mark.parametrize(
    "name", ["metrics.jsonl", "checkpoints/000001/adapter.safetensors", "samples"]
)
def test_a_folder_of_ours_has_no_link_that_leads_out(places, name):
    data, secret = places
    (data / "checkpoints" / "000001").mkdir(parents=True)
    allowed = AllowedFolders([data])
    allowed.require_all(data, "run")
    allowed.require_all(data / "absent", "run")
    (data / name).symlink_to(secret / "a.txt" if "." in name else secret)
    with pytest.raises(InputError, match=r"run: .*link"):
        allowed.require_all(data, "run")
