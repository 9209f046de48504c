"""Masks, crops and mirrored images in the cache."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from trainer_core.config import MaskSection
from trainer_core.data.crop import fit_to_bucket
from trainer_core.data.image import open_image, to_pixels
from trainer_core.data.masks import fit_mask, pool_mask
from trainer_core.errors import DatasetError
from trainer_core.types import Bucket, View

MIRRORED = View(flipped=True)


def grid(width, height):
    return height // 8, width // 8, 2


@pytest.fixture
def masked(world):
    """A world whose images have the masks of their names in a folder beside it."""
    plain = world.plan

    def plan():
        found = plain()
        samples = []
        for each in found.samples:
            mask = world.data.parent / "masks" / f"{each.sample.image.stem}.png"
            own = replace(each.sample, mask=mask if mask.exists() else each.sample.mask)
            samples.append(replace(each, sample=own))
        return replace(found, samples=tuple(samples))

    def add_mask(stem, values):
        path = world.data.parent / "masks" / f"{stem}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.asarray(values, np.uint8)).save(path)
        return path

    def built(**options):
        return world.build(plan(), grid=grid, shown=True, **options)

    world.masked_plan, world.add_mask, world.built = plan, add_mask, built
    return world


@torch.no_grad()
def encoded(world, pixels):
    return world.encoders.encode_image(pixels[None])[0]


def half(width=64, height=64):
    values = np.zeros((height, width), np.uint8)
    values[:, : width // 2] = 255
    return values


def test_a_mask_is_kept_as_it_lies_on_the_latents_and_for_every_base(masked):
    masked.add("a.png", "one", width=100, height=70)
    masked.add("b.png", "two")
    path = masked.add_mask("a", half(100, 70))
    dataset = masked.built()
    sample, whole = dataset.load(0), dataset.load(1)
    expected = pool_mask(fit_mask(Image.open(path), (100, 70), sample.bucket), (6, 10), 2)
    assert sample.mask.shape == sample.latents.shape[-2:] == expected.shape
    torch.testing.assert_close(sample.mask, expected, rtol=0, atol=5e-4)
    assert whole.mask is None
    (file,) = masked.files("masks")
    assert load_file(file)["mask"].dtype == torch.float16
    masked.identity = "another base"
    masked.built()
    assert masked.files("masks") == [file]


def test_mirrored_images_are_encoded_from_mirrored_pixels(masked):
    path = masked.add("a.png", "a cup", control=True, width=100, height=70)
    masked.add("b.png", "the left cup")
    masked.paint(masked.data / "b_control.png", seed=5)
    masked.options["flip"] = True
    mask = masked.add_mask("a", half(100, 70))
    encode_text, shown_to = masked.encoders.encode_text, []

    def watched(caption, controls):
        (given,) = controls
        plain = open_image(masked.data / "a_control.png")
        turned = plain.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        same = [
            np.array_equal(np.asarray(given), np.asarray(fit_to_bucket(each, Bucket(*given.size))))
            for each in (plain, turned)
        ]
        if any(same):
            shown_to.append((caption, same[1]))
        return encode_text(caption, controls)

    masked.encoders.encode_text = watched
    dataset = masked.built()
    assert [item.flipped is not None for item in dataset.items] == [True, False]
    shown, turned = dataset.load(0), dataset.load(0, MIRRORED)
    image = fit_to_bucket(open_image(path), shown.bucket)
    pixels = to_pixels(image).flip(2)
    assert torch.equal(turned.latents, encoded(masked, pixels))
    assert not torch.equal(turned.latents, shown.latents.flip(2)), "this encoder has no symmetry"
    control = fit_to_bucket(open_image(masked.data / "a_control.png"), shown.bucket)
    seen = to_pixels(control).flip(2)
    assert torch.equal(turned.controls[0], encoded(masked, seen))
    # What the small text encoder gives of a control image is the same of both sides.
    assert [turn for caption, turn in shown_to if caption == "a cup"] == [False, True]
    item = dataset.items[0]
    assert len({item.text, item.empty_text, *item.flipped.texts}) == 4
    assert dataset.items[0].text_of(View(flipped=True)) == item.flipped.texts[0]
    fitted = fit_mask(Image.open(mask), (100, 70), shown.bucket).flip(1)
    torch.testing.assert_close(turned.mask, pool_mask(fitted, (6, 10), 2), rtol=0, atol=5e-4)
    assert torch.equal(dataset.load(1, MIRRORED).latents, dataset.load(1).latents)


def test_mirroring_keeps_what_was_encoded_and_is_part_of_what_is_trained(masked):
    masked.add("a.png", "a cup")
    before = masked.built()
    masked.options["flip"] = True
    after = masked.built()
    assert (after.encoded, after.reused) == (1, 3)
    assert before.identity != after.identity
    assert before.source != after.source


def test_a_black_mask_is_told_and_with_weight_0_refused_even_from_a_finished_cache(masked):
    masked.add("a.png", "one")
    masked.add("b.png", "two")
    masked.add_mask("a", 0 * half())
    masked.add_mask("b", half())
    masked.options["flip"] = True
    first = masked.built()
    (told,) = first.problems
    assert "mask of a.png" in told
    assert "black" in told
    masked.options["mask"] = MaskSection(background=0.0)
    with pytest.raises(DatasetError, match=r"nothing of a.png counts.*masks.a.png") as error:
        masked.built()
    assert "dataset.mask.background" in str(error.value)
    masked.options["unreadable"] = "skip"
    left = masked.built()
    assert left.names == ("b.png",)
    assert "left out: a.png" in left.problems[0]
