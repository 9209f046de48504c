"""Images of phones, cameras and the web, by what they hold; and files that are not an image."""

import numpy as np
import pytest
from PIL import Image, features

from tests.fixtures.scanned_folder import settings
from trainer_core.data.image import image_info, open_image
from trainer_core.data.report.image_fingerprints import small_image
from trainer_core.data.sources.scan_folder import scan

avif = pytest.mark.skipif(not features.check("avif"), reason="this Pillow reads no AVIF")


def picture(mode="RGB"):
    """Red to the left, blue to the right; half transparent where it can be."""
    colours = np.zeros((64, 96, 3), np.uint8)
    colours[:, :48], colours[:, 48:] = (220, 30, 30), (30, 30, 220)
    image = Image.fromarray(colours).convert(mode)
    if mode == "RGBA":
        image.putalpha(128)
    return image


def write(path, *, orientation=1, mode="RGB", kind=""):
    tags = Image.Exif()
    tags[0x0112] = orientation
    kind = kind or path.suffix[1:].lower()
    if kind in {"heic", "heif", "hif"}:
        heif = pytest.importorskip("pillow_heif", reason="pillow-heif is not installed")
        heif.from_pillow(picture(mode)).save(path, quality=90, exif=tags.tobytes())
    else:
        picture(mode).save(path, format={"avif": "AVIF"}.get(kind, "JPEG"), exif=tags, quality=90)
    return path


@pytest.mark.parametrize(
    ("name", "orientation", "mode"),
    [
        *[(name, 6, "RGB") for name in ("a.heic", "a.HIF", "a.heif", "a.jfif", "a.jpe", "a.PJPEG")],
        *[("a.heic", 1, "RGBA"), ("a.heic", 8, "RGB")],
        *[pytest.param("a.avif", *each, marks=avif) for each in ((6, "RGB"), (1, "RGBA"))],
    ],
)
def test_what_phones_and_the_web_write_is_read_upright(tmp_path, name, orientation, mode):
    path = write(tmp_path / name, orientation=orientation, mode=mode)
    (tmp_path / "a.txt").write_text("a flag")
    size = (64, 96) if orientation > 4 else (96, 64)
    (sample,) = scan(settings(tmp_path)).samples
    assert (sample.width, sample.height) == size
    assert (image_info(path).alpha, image_info(path).animated) == (mode == "RGBA", False)
    image = open_image(path)
    assert (image.mode, image.size, image.info) == ("RGB", size, {})
    first = np.asarray(image)[5, 5]
    last = np.asarray(image)[-6, -6]
    if orientation == 8:
        first, last = last, first
    white = 127 if mode == "RGBA" else 0
    wanted = [(220, 30, 30), (30, 30, 220)]
    for found, colour in zip((first, last), wanted, strict=True):
        meant = np.array(colour) * (1 - white / 255) + white
        assert np.abs(found.astype(int) - meant).max() < 6
    assert small_image(path.read_bytes(), 96).size == size
