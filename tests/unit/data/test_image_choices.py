"""Images that a person left out, or cut elsewhere: wherever their folder is read."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from tests.fixtures.scanned_folder import names, settings
from trainer_core.cli import main
from trainer_core.data.crop import fit_to_bucket, kept_box
from trainer_core.data.framing import crop_of
from trainer_core.data.image import open_image, to_pixels
from trainer_core.data.masks import fit_mask, pool_mask
from trainer_core.data.sources.image_choices import FILE, changed_choices, read_choices
from trainer_core.data.sources.scan_folder import scan
from trainer_core.errors import DatasetError
from trainer_core.filesystem.allowed_folders import AllowedFolders

CORNER = (0.1, 0.9)


def choose(folder, name, given):
    (folder / FILE).write_text(changed_choices(folder, name, given))


def flat(folder, paint):
    for name in ("a.png", "\u00e9.png"):
        paint(folder / name)
        (folder / name).with_suffix(".txt").write_text("text")
    return "a.png", "\u00e9.png"


def paired(folder, paint):
    flat(folder / "training_images", paint)
    flat(folder / "control_images", paint)
    for text in (folder / "control_images").glob("*.txt"):
        text.unlink()
    return "training_images/a.png", "training_images/\u00e9.png"


def listed(folder, paint):
    found = flat(folder, paint)
    rows = (json.dumps({"image": name, "caption": "text"}) for name in found)
    (folder / "metadata.jsonl").write_text("\n".join(rows))
    return found


@pytest.mark.parametrize("layout", [flat, paired, listed])
def test_an_image_is_left_out_and_taken_in_again(tmp_path, paint, layout, capsys):
    first, second = layout(tmp_path, paint)
    choose(tmp_path, "e\u0301".join(second.split("\u00e9")), {"left_out": True})
    choose(tmp_path, first, {"focus": CORNER})
    found = scan(settings(tmp_path))
    assert (names(found), found.refusal) == ([first], None)
    assert found.samples[0].focus == CORNER
    assert f"1 image(s) are left out by hand: {second}" in found.problems
    main(["dataset", str(tmp_path)])
    assert "left out by hand" in capsys.readouterr().out
    choose(tmp_path, first, {"left_out": True})
    with pytest.raises(DatasetError, match="left out by hand"):
        scan(settings(tmp_path))
    for name in (first, second):
        choose(tmp_path, name, {"left_out": False})
    choose(tmp_path, first, {"focus": None})
    found = scan(settings(tmp_path))
    assert [each.focus for each in found.samples] == [None, None]
    assert found.problems == ()


@pytest.mark.parametrize("crop", ["center", "top", "mask", "stretch"])
def test_what_was_moved_is_what_is_encoded_with_its_mask(world, crop):
    path = world.add("a.png", width=200, height=70)
    values = np.zeros((70, 200), np.uint8)
    values[:, 100:] = 255
    Image.fromarray(values).save(path.with_name("a_mask.png"))
    world.options = {"crop": crop, "max_aspect_ratio": 1.0}
    grid = lambda width, height: (height // 8, width // 8, 2)  # noqa: E731
    before = world.build(grid=grid).load(0)
    choose(world.data, "a.png", {"focus": CORNER})
    after = world.build(grid=grid).load(0)
    (sample,) = scan(world.settings()).samples
    if crop == "stretch":
        assert torch.equal(before.latents, after.latents)
        return
    how = crop_of(sample, world.settings())
    assert how == ("mask", CORNER)
    assert kept_box((200, 70), after.bucket, *how)[0] == 0
    pixels = to_pixels(fit_to_bucket(open_image(path), after.bucket, *how))
    with torch.no_grad():
        torch.testing.assert_close(after.latents, world.encoders.encode_image(pixels[None])[0])
    mask = fit_mask(Image.fromarray(values), (200, 70), after.bucket, crop, CORNER)
    rows, columns = after.mask.shape
    torch.testing.assert_close(after.mask, pool_mask(mask, (rows, columns), 2), rtol=0, atol=5e-4)
    assert after.mask.max() == 0 < before.mask.max()


@pytest.mark.parametrize(
    "content",
    [
        *("no json", "[]", '{"left_out": "a.png"}', '{"left_out": [1]}', '{"focus": {"a": [1]}}'),
        *('{"focus": {"a": [0, 1.5]}}', '{"focus": {"a": [true, 0]}}', '{"focus": []}'),
    ],
)
def test_choices_that_cannot_be_read_are_refused_by_name(tmp_path, content):
    (tmp_path / FILE).write_text(content)
    with pytest.raises(DatasetError, match=FILE):
        read_choices(tmp_path)


def test_a_link_to_choices_elsewhere_is_not_followed(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    (tmp_path / "theirs.json").write_text("{}")
    (folder / FILE).symlink_to(tmp_path / "theirs.json")
    with pytest.raises(DatasetError, match="link"):
        read_choices(folder, AllowedFolders([folder]))
