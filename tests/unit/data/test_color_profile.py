"""Images with an embedded colour profile are seen as they are meant."""

import warnings

import numpy as np
import pytest
from PIL import Image, ImageCms, features

from tests.fixtures.icc_profiles import (
    ADOBE_RGB,
    DISPLAY_P3,
    SRGB,
    as_srgb,
    grey_profile,
    ink_profile,
    rgb_profile,
)
from trainer_core.data.image import open_image

pytestmark = pytest.mark.skipif(
    not features.check("littlecms2"), reason="this Pillow was built without LittleCMS"
)

WIDE = {"Display P3": (DISPLAY_P3, None), "Adobe RGB": (ADOBE_RGB, 563 / 256), "light": (SRGB, 1.0)}


@pytest.fixture
def colors():
    """Random colours, and a few that sRGB cannot show."""
    random = np.random.default_rng(1)
    values = random.integers(0, 256, size=(16, 16, 3), dtype=np.uint8)
    values[0, :3] = np.eye(3) * 255
    return values


def pixels(image):
    return np.asarray(image).astype(int)


@pytest.mark.parametrize("name", WIDE)
def test_wide_colours_become_srgb(tmp_path, colors, name):
    path = tmp_path / "a.png"
    Image.fromarray(colors).save(path, icc_profile=rgb_profile(*WIDE[name]))
    found = open_image(path)
    assert (found.mode, found.info) == ("RGB", {})
    expected = as_srgb(colors.astype(float), *WIDE[name])
    assert np.abs(pixels(found) - expected).max() <= 2
    assert np.abs(expected - colors).max() > 15, "the profile hardly moves a colour"


@pytest.mark.parametrize(
    "profile",
    [rgb_profile(SRGB, None), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()],
)
def test_srgb_by_whatever_name_moves_no_pixel(tmp_path, colors, profile):
    Image.fromarray(colors).save(tmp_path / "a.png", icc_profile=profile)
    assert np.array_equal(pixels(open_image(tmp_path / "a.png")), colors)


def broken_profiles():
    whole = rgb_profile(*WIDE["Display P3"])
    lost = whole.replace(b"rTRC", b"xTRC")
    return {
        "text": b"this is not a profile",
        "empty": b"",
        "cut": whole[:200],
        "without a curve": lost,
        "zeros": bytes(len(whole)),
        "of Lab": ImageCms.ImageCmsProfile(ImageCms.createProfile("LAB")).tobytes(),
        "of greys": grey_profile(1.0),
        "of inks": ink_profile(),
    }


@pytest.mark.parametrize("name", broken_profiles())
def test_a_profile_that_is_broken_or_does_not_fit_moves_no_pixel_and_warns_of_nothing(
    tmp_path, colors, name, capfd
):
    Image.fromarray(colors).save(tmp_path / "a.png", icc_profile=broken_profiles()[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(pixels(open_image(tmp_path / "a.png")), colors)
    assert capfd.readouterr() == ("", "")
