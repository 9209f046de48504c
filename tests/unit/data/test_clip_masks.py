"""Masks of clips: a still one holds for all frames, one that moves for each."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.fixtures.clip_files import write_clip
from trainer_core.config import MaskSection
from trainer_core.data.clips import read_frames
from trainer_core.data.load_batch import make_batch
from trainer_core.types import START, ClipPart, FrameGrid, View

pytest.importorskip("av")

WIDE, HIGH, FRAMES = 96, 64, 40
EXACT = {"codec": "ffv1", "pixels": "bgr0", "rate": 16.0, "size": (WIDE, HIGH)}


def moving(frames=FRAMES):
    """Masks of a white square that moves to the right, `[T, H, W]`."""
    masks = np.zeros((frames, HIGH, WIDE), np.uint8)
    for number, mask in enumerate(masks):
        mask[20:41, 2 * number : 2 * number + 21] = 255
    return masks


def write_mask(path, masks):
    images = [np.repeat(mask[..., None], 3, 2) for mask in masks]
    write_clip(path, len(masks), images=images, **EXACT)


@pytest.fixture
def clips(world):
    """A world of clips a with a mask that moves, b with a still one, c with none."""
    world.grid, world.options = FrameGrid(4, 16.0), {"frames": 17}
    for name in "abc":
        write_clip(world.data / f"{name}.mkv", FRAMES, **EXACT)
        (world.data / f"{name}.txt").write_text(name)
    write_mask(world.data / "a_mask.mkv", moving())
    Image.fromarray(moving()[0]).save(world.data / "b_mask.png")

    def built(**options):
        options = {"grid": lambda w, h: (h // 8, w // 8, 2), "clips": world.grid, **options}
        return world.build(**options)

    world.built = built
    return world


def sized(mask, bucket):
    """A mask cut in its middle to the shape of a bucket, and resized by means of pixels."""
    scale = max(bucket.width / WIDE, bucket.height / HIGH)
    wide, high = bucket.width / scale, bucket.height / scale
    box = ((WIDE - wide) / 2, (HIGH - high) / 2, (WIDE + wide) / 2, (HIGH + high) / 2)
    image = Image.fromarray(mask.astype(np.float32) / 255)
    return np.asarray(image.resize((bucket.width, bucket.height), Image.Resampling.BOX, box=box))


def on_latents(masks, bucket, every):
    """The textbook: means over 8 x 8 pixels and the frames of a latent, largest of 2 x 2."""
    frames = np.stack([sized(mask, bucket) for mask in masks])
    first, *rest = frames
    groups = [first[None], *np.split(np.stack(rest), len(rest) // every)]
    found = []
    for group in groups:
        cells = group.mean(0).reshape(bucket.height // 8, 8, bucket.width // 8, 8).mean((1, 3))
        high, wide = cells.shape
        tokens = cells.reshape(high // 2, 2, wide // 2, 2).max((1, 3))
        found.append(tokens.repeat(2, 0).repeat(2, 1))
    return torch.from_numpy(np.stack(found)).float()


@pytest.mark.parametrize("every", [4, 8])
@pytest.mark.parametrize(
    "change", [{}, {"flip": True, "flip_except": []}, {"mask": MaskSection(invert=True)}]
)
def test_a_mask_that_moves_is_kept_frame_by_frame_of_the_latents(clips, every, change):
    clips.grid = FrameGrid(every, 16.0)
    clips.options |= change
    flipped, inverted = "flip" in change, "mask" in change
    dataset = clips.built()
    for part in (1, 2):
        place = dataset.names.index(f"a.mkv #{part}")
        masks = moving()[17 * (part - 1) : 17 * part]
        masks = 255 - masks if inverted else masks
        expected = on_latents(masks, dataset.buckets[place], every)
        found = dataset.load(place, View(flipped=flipped)).mask
        assert found.shape == ((17 - 1) // every + 1, *expected.shape[1:])
        expected = expected.flip(2) if flipped else expected
        torch.testing.assert_close(found, expected, rtol=0, atol=5e-4)


def test_frames_that_are_given_carry_no_loss_and_the_others_mean_1(clips):
    dataset = clips.built(endpoints=(START,))
    samples = [dataset.load(dataset.names.index(f"{name}.mkv #1")) for name in "abc"]
    found = make_batch(samples, (0, 1, 2)).masks
    assert not found[:, :, 0].any()
    torch.testing.assert_close(found[:, 0].mean((1, 2, 3)), torch.ones(3))
    shares = samples[0].mask[1:].double() * 0.9 + 0.1
    ratio = found[0, 0, 1:].double() / shares
    torch.testing.assert_close(ratio, torch.full_like(ratio, 5 / 4 / shares.mean().item()))


def test_a_still_mask_says_what_of_all_frames_is_kept(clips):
    (clips.data / "a_mask.mkv").unlink()
    mask = np.zeros((HIGH, WIDE), np.uint8)
    mask[:, 80:] = 255
    Image.fromarray(mask).save(clips.data / "b_mask.png")
    clips.options |= {"crop": "mask", "max_aspect_ratio": 1.0}
    dataset = clips.built()
    found = dataset.load(dataset.names.index("b.mkv #1"))
    frames = read_frames(clips.data / "b.mkv", ClipPart(0.0, 17, 16.0))
    right = [np.asarray(each)[:, WIDE - HIGH :].copy() for each in frames]
    with torch.no_grad():
        wanted = clips.encoders.encode_clip(torch.from_numpy(np.stack(right)).permute(0, 3, 1, 2))
    assert torch.allclose(found.latents, wanted, atol=1e-4)
    assert found.mask[0].tolist() == [0.0] * 6 + [1.0] * 2
