import io
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFile, ImageOps

from trainer_core.data.crop import fit_to_bucket, resize_exact
from trainer_core.data.image import from_pixels, image_info, image_size, open_image, to_pixels
from trainer_core.errors import DatasetError
from trainer_core.types import Bucket


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bytes(values: np.ndarray, colour_type: int, before=b"", after=b"") -> bytes:
    """A PNG written by hand: big-endian rows without filters."""
    height, width = values.shape[:2]
    depth = 8 * values.dtype.itemsize
    rows = b"".join(b"\0" + row.astype(values.dtype.newbyteorder(">")).tobytes() for row in values)
    head = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", head)
        + before
        + png_chunk(b"IDAT", zlib.compress(rows))
        + after
        + png_chunk(b"IEND", b"")
    )


def corners(path, **options) -> Image.Image:
    """An image that tells its orientation: red left half above, blue below, green right."""
    image = Image.new("RGB", (48, 32), (0, 255, 0))
    image.paste((255, 0, 0), (0, 0, 24, 16))
    image.paste((0, 0, 255), (0, 16, 24, 32))
    image.save(path, **options)
    return image


def exif(orientation: int) -> Image.Exif:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


@pytest.mark.parametrize("mode", ["error", "skip"])
@pytest.mark.parametrize("name", ["a.gif", "a.webp", "a.png"])
def test_animated_images_are_errors_unless_the_first_frame_is_wanted(tmp_path, name, mode):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if name == "a.webp" else {}
    frames[0].save(
        tmp_path / name, save_all=True, append_images=frames[1:], duration=100, **options
    )
    assert image_info(tmp_path / name).animated
    with pytest.raises(DatasetError, match="several frames"):
        open_image(tmp_path / name, mode)
    first = open_image(tmp_path / name, "first_frame")
    assert first.getpixel((8, 8)) == (255, 0, 0)


@pytest.mark.parametrize(
    ("name", "orientation"),
    [*(("a.jpg", each) for each in range(1, 9)), ("a.png", 6), ("a.webp", 5)],
)
def test_exif_rotation_is_applied_as_pillow_does_it(tmp_path, orientation, name):
    corners(tmp_path / name, exif=exif(orientation), quality=100)
    with Image.open(tmp_path / name) as raw:
        expected = ImageOps.exif_transpose(raw).convert("RGB")
    image = open_image(tmp_path / name)
    assert image_size(tmp_path / name) == image.size == expected.size
    assert image.size == ((48, 32) if orientation < 5 else (32, 48))
    assert np.array_equal(np.asarray(image), np.asarray(expected))
    assert dict(image.getexif()) == {}


def test_sixteen_bit_greys_are_scaled_and_not_clipped(tmp_path):
    values = np.linspace(0, 65535, 256).round().astype(np.uint16).reshape(16, 16)
    (tmp_path / "a.png").write_bytes(png_bytes(values, 0))
    image = np.asarray(open_image(tmp_path / "a.png"))
    expected = np.floor(values / 257.0 + 0.5).astype(np.uint8)
    assert np.array_equal(image, np.repeat(expected[:, :, None], 3, axis=2))
    with Image.open(tmp_path / "a.png") as raw:
        clipped = np.asarray(raw.convert("RGB"))
    assert not np.array_equal(image, clipped), "Pillow clips no longer: the detour is not needed"


def test_what_is_transparent_lies_on_white(tmp_path):
    def opened(image, **options):
        image.save(tmp_path / "a.png", **options)
        return open_image(tmp_path / "a.png")

    half = Image.new("RGBA", (4, 4), (255, 0, 0, 0))
    half.paste((0, 0, 255, 255), (0, 0, 2, 4))
    half.putpixel((3, 3), (0, 0, 0, 128))
    found = opened(half)
    assert [found.getpixel(at) for at in ((0, 0), (2, 0), (3, 3))] == [
        (0, 0, 255), (255, 255, 255), (127, 127, 127)
    ]  # fmt: skip
    grey = Image.merge("LA", (Image.new("L", (4, 4), 10), Image.new("L", (4, 4), 0)))
    assert opened(grey).getpixel((1, 1)) == (255, 255, 255)
    palette = Image.new("P", (4, 4), 1)
    palette.putpalette([255, 0, 0, 0, 0, 255] + [0] * 762)
    palette.paste(0, (0, 0, 2, 4))
    found = opened(palette, transparency=0)
    assert [found.getpixel((0, 0)), found.getpixel((3, 3))] == [(255, 255, 255), (0, 0, 255)]
    for clear in ((0, 0, 0), (255, 0, 0)):
        found = opened(Image.new("RGB", (4, 4), clear), transparency=clear)
        assert found.getpixel((0, 0)) == (255, 255, 255)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.bmp"])
def test_truncation_is_seen_even_where_the_host_fills_images_up(tmp_path, paint, name, monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    path = paint(tmp_path / name, 128, 128)
    assert open_image(path).size == (128, 128)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])
    with Image.open(path) as filled:
        filled.load()
    with pytest.raises(DatasetError, match="ends before the image does"):
        open_image(path)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"hello, this is text"), "cannot be read"),
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is a folder"),
    ],
)
def test_files_that_are_no_images_are_named(tmp_path, make, words):
    make(tmp_path / "a.png")
    for read in (open_image, image_size):
        with pytest.raises(DatasetError, match=words) as caught:
            read(tmp_path / "a.png")
        assert "a.png" in caught.value.found


@pytest.mark.parametrize(("side", "lifted"), [(14000, False), (60000, False), (60000, True)])
def test_an_implausibly_large_image_is_refused_from_its_header(tmp_path, monkeypatch, side, lifted):
    """Also where the host has lifted Pillow's own limit."""
    if lifted:
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    data = bytearray(png_bytes(np.zeros((1, 1, 3), dtype=np.uint8), 2))
    data[8:33] = png_chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
    (tmp_path / "a.png").write_bytes(bytes(data))
    for read in (open_image, image_size):
        with pytest.raises(DatasetError, match="implausible size"):
            read(tmp_path / "a.png")


def _samples() -> list[bytes]:
    image = Image.effect_mandelbrot((24, 24), (-2, -1.5, 1, 1.5), 40)
    found = []
    for name in ("PNG", "JPEG", "WEBP", "BMP", "GIF"):
        buffer = io.BytesIO()
        image.convert("RGB").save(buffer, name, exif=exif(6))
        found.append(buffer.getvalue())
    return found


SAMPLES = _samples()


# Pillow warns of what it then refuses or reads around.
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(SAMPLES), st.data())
def test_damaged_bytes_give_an_image_or_our_error_and_nothing_else(tmp_path, data, draw):
    damaged = bytearray(data[: draw.draw(st.integers(0, len(data)))])
    for _ in range(draw.draw(st.integers(0, 4))):
        if damaged:
            damaged[draw.draw(st.integers(0, len(damaged) - 1))] = draw.draw(st.integers(0, 255))
    path = tmp_path / "a.png"
    path.write_bytes(bytes(damaged))
    with suppress(DatasetError):
        size = image_size(path)
        assert open_image(path, "first_frame").size == size


@pytest.mark.parametrize(
    ("size", "bucket"),
    [((100, 60), (32, 32)), ((64, 64), (64, 64)), ((33, 500), (32, 96)), ((20, 20), (64, 32))],
)
def test_fitting_covers_the_bucket_and_crops_the_centre_as_pillow_does(tmp_path, size, bucket):
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    ours = np.asarray(fit_to_bucket(image, Bucket(*bucket))).astype(int)
    theirs = ImageOps.fit(image, bucket, Image.Resampling.LANCZOS, centering=(0.5, 0.5))
    assert ours.shape == (bucket[1], bucket[0], 3)
    assert np.abs(ours - np.asarray(theirs).astype(int)).max() <= 1


def test_resizing_and_pixels_equal_the_image_processor_of_diffusers():
    from diffusers.image_processor import VaeImageProcessor

    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (50, 70, 3), dtype=np.uint8))
    processor = VaeImageProcessor(vae_scale_factor=16)
    resized = resize_exact(image, 64, 32)
    assert np.array_equal(np.asarray(resized), np.asarray(processor.resize(image, 32, 64)))
    assert torch.equal(to_pixels(resized), processor.preprocess(image, 32, 64)[0])
    pixels = torch.rand(3, 8, 8) * 2.4 - 1.2
    theirs = processor.postprocess(pixels[None], output_type="pil")[0]
    assert np.array_equal(np.asarray(from_pixels(pixels)), np.asarray(theirs))
