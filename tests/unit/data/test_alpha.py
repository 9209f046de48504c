"""Images with transparency, for a family whose VAE reads four channels."""

import numpy as np
import pytest
from PIL import Image

from trainer_core.commands.console import terminal_lines
from trainer_core.data.crop import fit_to_bucket, resize_exact
from trainer_core.data.image import on_white, open_image
from trainer_core.types import Bucket

CLEAR_RED = (255, 0, 0, 0)


def halves(size=(64, 64), left=(0, 0, 255, 255), right=CLEAR_RED) -> Image.Image:
    image = Image.new("RGBA", size, right)
    image.paste(left, (0, 0, size[0] // 2, size[1]))
    return image


def test_alpha_is_kept_and_what_has_none_is_opaque(tmp_path, paint):
    halves().save(tmp_path / "clear.png")
    kept = open_image(tmp_path / "clear.png", channels=4)
    assert (kept.mode, kept.getpixel((0, 0)), kept.getpixel((40, 0))) == (
        "RGBA", (0, 0, 255, 255), CLEAR_RED,
    )  # fmt: skip
    paint(tmp_path / "plain.jpg", seed=1)
    opaque = open_image(tmp_path / "plain.jpg", channels=4)
    assert opaque.getchannel("A").getextrema() == (255, 255)
    assert opaque.convert("RGB").tobytes() == open_image(tmp_path / "plain.jpg").tobytes()


@pytest.mark.parametrize("resize", [fit_to_bucket, lambda i, b: resize_exact(i, b.width, b.height)])
def test_hidden_colours_do_not_bleed_and_opaque_images_are_as_rgb(tmp_path, paint, resize):
    bucket = Bucket(25, 25)
    small = np.asarray(resize(halves(), bucket)).astype(int)
    seen = small[small[..., 3] > 32]
    assert seen[:, 0].max() <= 8
    assert seen[:, 2].min() >= 247
    # The trap: without the weights red comes into what is seen.
    bled = np.asarray(resize(halves().convert("RGB"), bucket)).astype(int)
    assert bled[small[..., 3] > 32][:, 0].max() > 30
    paint(tmp_path / "a.png", size=(96, 64), seed=3)
    opaque = resize(open_image(tmp_path / "a.png", channels=4), bucket)
    assert (
        opaque.convert("RGB").tobytes() == resize(open_image(tmp_path / "a.png"), bucket).tobytes()
    )


def test_what_is_clear_is_white_where_three_channels_are_seen(tmp_path):
    assert on_white(halves()).getpixel((40, 0)) == (255, 255, 255)
    rgb = Image.new("RGB", (2, 2))
    assert on_white(rgb) is rgb
    halves((4, 2)).save(tmp_path / "preview.png")
    (line,) = terminal_lines(tmp_path / "preview.png", columns=4)
    assert "38;2;0;0;255" in line
    assert "38;2;255;255;255" in line
    assert "38;2;255;0;0" not in line
