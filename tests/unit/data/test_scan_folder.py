"""Which images and captions a scan finds, and what it says of the others."""

import os

import pytest
from PIL import Image

from tests.fixtures.scanned_folder import names, settings
from trainer_core.data.sources.scan_folder import scan
from trainer_core.errors import DatasetError


def test_flat_folder_gives_sorted_samples_with_captions_and_sizes(tmp_path, captioned):
    captioned(tmp_path / "b.png", " two\nlines \n", width=40, height=30)
    captioned(tmp_path / "a.JPG", "one")
    captioned(tmp_path / "sub" / "c.WebP", "three")
    captioned(tmp_path / "d.bmp", "four")
    captioned(tmp_path / "e.jpeg", "five")
    found = scan(settings(tmp_path))
    assert names(found) == ["a.JPG", "b.png", "d.bmp", "e.jpeg", "sub/c.WebP"]
    assert [s.caption for s in found.samples] == ["one", "two\nlines", "four", "five", "three"]
    assert (found.samples[1].width, found.samples[1].height) == (40, 30)
    assert found.samples[0].image == tmp_path / "a.JPG"
    assert found.samples[0].controls == ()
    assert found.problems == ()


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_a_linked_folder_and_file_are_read(tmp_path, captioned):
    captioned(tmp_path / "elsewhere" / "a.png")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "elsewhere")
    assert names(scan(settings(tmp_path / "data"))) == ["linked/a.png"]


@pytest.mark.parametrize("policy", ["error", "skip", "first_frame"])
def test_animated_policies(tmp_path, captioned, policy):
    captioned(tmp_path / "a.png")
    frames = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")]
    frames[0].save(tmp_path / "b.png", save_all=True, append_images=frames[1:])
    (tmp_path / "b.txt").write_text("moves")
    chosen = settings(tmp_path, animated=policy)
    if policy == "error":
        with pytest.raises(DatasetError, match="several frames") as caught:
            scan(chosen)
        assert "dataset.animated" in caught.value.remedy
    else:
        found = scan(chosen)
        assert names(found) == (["a.png", "b.png"] if policy == "first_frame" else ["a.png"])
        assert len(found.problems) == (policy == "skip")
