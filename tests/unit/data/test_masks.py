"""What a mask file says, where it lies on the latents, and what it weighs."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from fixtures.tables import table
from PIL import Image

from trainer_core.config import MaskSection
from trainer_core.data.crop import fit_to_bucket, kept_box
from trainer_core.data.masks import (
    batch_weights,
    center_of_mass,
    counts_nothing,
    fit_mask,
    mask_weights,
    masked_preview,
    may_count_nothing,
    pool_mask,
    predicted_alone,
    read_mask,
    require_masks_fit,
    same_shape,
)
from trainer_core.diffusion.losses import FlowLoss
from trainer_core.errors import DatasetError
from trainer_core.types import Bucket, Sample

HALVES = np.zeros((6, 8), np.uint8)
HALVES[:, 4:] = 255
"""Black on the left, white on the right."""

CROPS = ("center", "top", "mask", "stretch")


def grey(values=HALVES) -> Image.Image:
    return Image.fromarray(values)


def colored(path, mode):
    grey().convert(mode).save(path)


def sixteen_bits(path):
    Image.fromarray(HALVES.astype(np.uint16) * 257).save(path)


def clear_on_the_left(path):
    image = Image.new("RGBA", (8, 6), (255, 255, 255, 255))
    image.putalpha(grey())
    image.save(path)


def palette(path):
    image = Image.fromarray((HALVES > 0).astype(np.uint8), "P")
    image.putpalette([0, 0, 0, 255, 255, 255])
    image.save(path)


def palette_with_a_clear_colour(path):
    image = Image.fromarray((HALVES > 0).astype(np.uint8), "P")
    image.putpalette([255, 255, 255, 255, 255, 255])
    image.save(path, transparency=0)


def turned(path):
    exif = Image.Exif()
    exif[0x0112] = 6  # shown after a quarter turn clockwise
    grey().rotate(90, expand=True).save(path, exif=exif)


SAVED = {
    **{mode: partial(colored, mode=mode) for mode in ("1", "L", "RGB", "RGBA", "LA")},
    "16 bits": sixteen_bits,
    "clear": clear_on_the_left,
    "turned": turned,
    "palette": palette,
    "clear colour": palette_with_a_clear_colour,
}


@pytest.mark.parametrize("save", SAVED.values(), ids=SAVED)
def test_masks_of_every_mode_say_the_same(tmp_path, save):
    save(tmp_path / "mask.png")
    assert np.array_equal(np.asarray(read_mask(tmp_path / "mask.png", (8, 6))), HALVES)
    inverted = read_mask(tmp_path / "mask.png", (8, 6), invert=True)
    assert np.array_equal(np.asarray(inverted), 255 - HALVES)


def test_transparency_is_read_where_it_is_the_mask(tmp_path):
    image = Image.new("RGBA", (8, 6), (10, 20, 30, 255))
    image.putalpha(grey())
    image.save(tmp_path / "a.png")
    found = read_mask(tmp_path / "a.png", (8, 6), transparency=True)
    assert np.array_equal(np.asarray(found), HALVES)
    image.convert("RGB").save(tmp_path / "opaque.png")
    opaque = read_mask(tmp_path / "opaque.png", (8, 6), transparency=True)
    assert opaque.getextrema() == (255, 255)


@pytest.mark.parametrize(("mask", "image", "same"), table(__file__, "shapes of masks"))
def test_a_mask_of_another_shape_is_refused(tmp_path, mask, image, same):
    assert same_shape(mask, image) == same_shape(image, mask) == same
    grey(np.zeros(mask[::-1], np.uint8)).save(tmp_path / "mask.png")
    if same:
        read_mask(tmp_path / "mask.png", image)
        return
    with pytest.raises(DatasetError, match=f"{mask[0]} x {mask[1]}") as told:
        read_mask(tmp_path / "mask.png", image)
    assert "dataset.mask.source" in str(told.value)


def textbook(mask, factor, patch):
    """The formula in float64: mean over a latent's pixels, largest of a token's latents."""
    means = torch.nn.functional.avg_pool2d(mask.double()[None, None], factor)
    tokens = torch.nn.functional.max_pool2d(means, patch)
    return torch.nn.functional.interpolate(tokens, scale_factor=patch, mode="nearest")[0, 0]


@pytest.mark.parametrize(("factor", "patch"), [(8, 2), (16, 1), (8, 1), (4, 2)])
def test_a_mask_on_the_latents_is_the_textbooks(factor, patch):
    mask = torch.rand(48, 32, generator=torch.Generator().manual_seed(factor))
    found = pool_mask(mask, (48 // factor, 32 // factor), patch)
    torch.testing.assert_close(found.double(), textbook(mask, factor, patch), rtol=0, atol=1e-6)


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(("fore", "back"), [(2.0, 1.0), (1.0, 0.1), (1.0, 0.0), (0.0, 3.0)])
def test_weights_are_the_textbooks(fore, back, normalize):
    mask = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))
    settings = MaskSection(foreground=fore, background=back, normalize=normalize)
    found = mask_weights(mask, settings)
    expected = mask.double().numpy() * fore + (1 - mask.double().numpy()) * back
    if normalize:
        expected = expected / expected.mean()
        assert found.double().mean().item() == pytest.approx(1.0, abs=1e-7)
    assert (found.shape, found.dtype) == ((1, 6, 4), torch.float32)
    np.testing.assert_allclose(found[0].double().numpy(), expected, rtol=1e-6)


def test_frames_that_are_given_count_nothing_and_the_others_as_if_they_were_all():
    clean, mask = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([[1.0, 0.0]])
    assert predicted_alone(None, [None, None]) is None
    found = predicted_alone(None, [clean, None])
    third = 4 / 3
    assert found.flatten(1).tolist() == [
        pytest.approx([0.0, third, third, third]),
        [1.0, 1.0, 1.0, 1.0],
    ]
    weights = batch_weights([mask, None], MaskSection(background=0.0))
    both = predicted_alone(weights, [clean, None])
    assert both.shape == (2, 1, 4, 1, 2)
    torch.testing.assert_close(both, found * weights[:, :, None])
    # With the loss: the mean over the frames that are predicted.
    errors = torch.randn(2, 3, 4, 5, 6, generator=torch.Generator().manual_seed(0))
    loss, _ = FlowLoss()(errors, torch.zeros_like(errors), torch.ones(2), found)
    textbook = [errors[0, :, 1:].square().mean(), errors[1].square().mean()]
    torch.testing.assert_close(loss, torch.stack(textbook))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize(
    ("settings", "black", "white"),
    [
        ({"background": 0.0}, True, False),
        ({"foreground": 0.0}, False, True),
        ({"background": 0.0, "foreground": 0.0}, True, True),
        ({}, False, False),
    ],
)
def test_masks_of_which_nothing_counts_are_known_and_never_nan(settings, black, white, normalize):
    section = MaskSection(normalize=normalize, **settings)
    for mask, nothing in ((torch.zeros(2, 2), black), (torch.ones(2, 2), white)):
        assert counts_nothing(mask, section) == nothing
        assert mask_weights(mask, section).isfinite().all()
    assert may_count_nothing(section) == (black or white)


SIZES = [(100, 70), (64, 64), (70, 100), (128, 96), (64, 200), (333, 97), (40, 30)]


@pytest.mark.parametrize("crop", CROPS)
@pytest.mark.parametrize("size", SIZES)
def test_a_mask_is_cut_exactly_as_its_image(crop, size):
    """Each place of both says where it comes from; what came out has to agree."""
    wide, high = size
    across = np.broadcast_to(np.linspace(0, 255, wide), (high, wide))
    down = np.broadcast_to(np.linspace(0, 255, high)[:, None], (high, wide))
    bucket = Bucket(64, 48)
    for values in (across, down):
        picture = grey(values.round().astype(np.uint8))
        focus = center_of_mass(picture)
        image = np.asarray(fit_to_bucket(picture, bucket, crop, focus), np.float64)
        mask = fit_mask(picture, size, bucket, crop).double().numpy() * 255
        # Two filters agree on a slope, but at the border and by a pixel's part of it.
        inner = np.s_[6:-6, 6:-6]
        slope = 255 / min(size)
        assert np.abs(image - mask)[inner].max() <= 1 + slope
        moved = np.abs(image - np.roll(mask, 5, (0, 1)))[inner].max()
        assert moved > 1 + slope, "the comparison would not see a shift"


@pytest.mark.parametrize("place", [0, 5, 20, 41, 60, 99])
@pytest.mark.parametrize("upright", [False, True])
def test_what_is_kept_has_the_mask_as_much_in_its_middle_as_can_be(place, upright):
    """Of all the places where the bucket fits, none has the mask nearer to its middle."""
    size, bucket = ((64, 100), Bucket(64, 64)) if upright else ((100, 64), Bucket(64, 64))
    values = np.zeros(size[::-1], np.uint8)
    (values if upright else values.T)[place] = 255
    focus = center_of_mass(grey(values))
    left, top, right, bottom = kept_box(size, bucket, "mask", focus)
    assert (right - left, bottom - top) == (64, 64)
    start = top if upright else left
    away = {begin: abs(begin + 32 - (place + 0.5)) for begin in range(100 - 64 + 1)}
    assert away[int(start)] == min(away.values())


@pytest.mark.parametrize(
    ("variant", "channels", "mask", "word"),
    [
        ("fill", 3, "m.png", "fills"),
        ("layers", 4, "m.png", "layer"),
        ("plain", 4, "a.png", "transparency"),
        ("plain", 4, "m.png", None),
        ("plain", 3, "a.png", None),
        ("fill", 3, None, None),
    ],
)
def test_masks_are_refused_where_something_else_is_trained(variant, channels, mask, word):
    image = Path("a.png")
    sample = Sample("a.png", image, "", 8, 8, mask=Path(mask) if mask else None)
    given = [sample], variant, channels, {"fill"}, ("layers",)
    if word is None:
        require_masks_fit(*given)
        return
    with pytest.raises(DatasetError, match=word) as told:
        require_masks_fit(*given)
    assert "dataset.mask.source: none" in str(told.value)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_a_preview_tints_what_does_not_count_and_nothing_else(as_tensor):
    image = Image.new("RGB", (80, 60), (90, 120, 60))
    mask = torch.from_numpy(HALVES / 255.0) if as_tensor else grey()
    shown = masked_preview(image, mask)
    assert (shown.mode, shown.size) == ("RGB", (80, 60))
    assert shown.getpixel((79, 30)) == (90, 120, 60)
    assert shown.getpixel((0, 30)) != (90, 120, 60)
