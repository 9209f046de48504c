"""Clips in the cache: what their files depend on, and what comes out of them."""

import pytest
import torch
from comfyui.clip_files import write_clip as write_tone

from tests.fixtures.cache_world import same
from tests.fixtures.clip_files import write_clip
from trainer_core.data.base_requirements import require_endpoints
from trainer_core.data.cache.cache_file import make_entry
from trainer_core.data.cache.entry_keys import SizedImage
from trainer_core.data.clips import read_frames
from trainer_core.data.crop import crop_and_focus, fit_to_bucket
from trainer_core.data.file_memory import FileMemory
from trainer_core.data.image import to_pixels
from trainer_core.data.load_batch import make_batch
from trainer_core.errors import ConfigError, DatasetError
from trainer_core.training.prepare.cache_manifest import Manifest, read_manifest, write_manifest
from trainer_core.types import ENDS, START, Bucket, ClipPart, FrameGrid, View

pytest.importorskip("av")

PART = ClipPart(0.0, 33, 16.0)
CONTENT = "ab" * 32


@pytest.fixture
def clips(world):
    """A world of two equal clips of a second, one of two seconds, and an image."""
    world.grid = FrameGrid(4, 16.0)
    world.add("d.png", "an image")
    for name, frames in (("a", 24), ("b", 24), ("c", 50)):
        write_clip(world.data / f"{name}.mp4", frames, size=(96, 64))
        (world.data / f"{name}.txt").write_text(name)
    return world


def source(**changes):
    clip = {"clip": PART, "bucket": Bucket(64, 48, 33), **changes}
    return SizedImage(path=None, exact=False, channels=3, **clip).parts(CONTENT)


def test_the_key_of_an_image_is_what_it_was_before_there_were_clips(tmp_path):
    parts = source(clip=None, bucket=Bucket(64, 48))
    # Made by the release before.
    key = "ecc193febbd7a15562fcb1f52413e866406a8d7b24d20be4e1fbf07189009be4"
    assert make_entry(tmp_path, "latents", "tiny", *parts).key == key


@pytest.mark.parametrize(
    "change",
    [
        {"clip": None},
        {"clip": ClipPart(1.0, 33, 16.0)},
        {"clip": ClipPart(0.0, 29, 16.0)},
        {"clip": ClipPart(0.0, 33, 24.0)},
        {"bucket": Bucket(48, 64, 33)},
        {"flipped": True},
        {"endpoints": (START,)},
        {"endpoints": (START, ENDS)},
    ],
    ids=str,
)
def test_the_key_of_a_clip_has_all_that_it_is_made_from(change):
    assert source(**change) != source()
    assert source() == source()


def expected(world, name, part, flipped=False, focus=None):
    """What the encoders make of a clip whose frames are cut alike, one by one."""
    crop = crop_and_focus("center", focus)
    frames = [
        fit_to_bucket(image, Bucket(64, 64), *crop)
        for image in read_frames(world.data / name, part)
    ]
    pixels = torch.stack([to_pixels(each, 3) for each in frames])
    with torch.no_grad():
        return world.encoders.encode_clip(
            ((pixels.flip(3) if flipped else pixels) * 127.5 + 127.5).round().byte()
        )


def test_a_cache_of_clips_is_made_once_and_tells_parts_rates_and_lengths_apart(clips):
    first = clips.build()
    assert (first.encoded, first.usual_frames) == (3 + 5, 13)
    assert same(first, clips.build(verify=True))
    clips.encoders.counts()
    assert clips.build().encoded == 0
    assert clips.encoders.counts() == (0, 0, 0)
    identities = {first.identity}
    for options in ({"frames": 9}, {"fps": 12.0}, {"frames": 9, "max_clips": 1}):
        clips.options = options
        identities.add(clips.build().identity)
    assert len(identities) == 4


def test_a_list_of_cached_clips_keeps_their_lengths(clips):
    dataset = clips.build(preserved_prompts=["a thing"])
    path = clips.cache / "all.cache.json"
    write_manifest(path, Manifest("tiny", "generate", dataset, ()))
    read = read_manifest(path).dataset
    assert [each.frames for each in read.buckets] == [13, 13, 33, 1]
    assert [each.bucket for each in read.preserved] == [each.bucket for each in dataset.preserved]
    assert {each.bucket.frames for each in read.preserved} == {13}
    assert (read.identity, read.names) == (dataset.identity, dataset.names)
    assert same(dataset, read)


def test_sound_is_cached_beside_the_clips_that_have_one(world):
    world.grid, world.options = FrameGrid(4, 16.0), {"flip": True, "flip_except": []}
    for name, tone in (("a", 440), ("b", None)):
        write_tone(world.data, 64, 24, 16, name, tone=tone)
    silent = world.build()
    dataset = world.build(sounds="an ear")
    # The frames are those of the run without sound.
    assert (dataset.encoded, dataset.reused) == (1, silent.encoded)
    assert dataset.identity != silent.identity
    heard, still = (dataset.load(dataset.names.index(name)) for name in ("a.mp4", "b.mp4"))
    assert heard.sound.shape == (2, 10)
    assert still.sound is None
    assert len(set(dataset.kinds)) == 2
    path = world.cache / "all.cache.json"
    write_manifest(path, Manifest("tiny", "generate", dataset, ()))
    read = read_manifest(path).dataset
    assert (read.identity, read.kinds) == (dataset.identity, dataset.kinds)
    assert torch.equal(read.load(0, View(flipped=True)).sound, heard.sound)


@pytest.mark.parametrize("name", ["c.mp4", "d.png"])
def test_a_file_that_changes_before_it_is_read_is_noticed(clips, name):
    hashes, path = FileMemory(clips.cache, trust=True), clips.data / name
    hashes.of(path)
    write_clip(path, 12) if path.suffix == ".mp4" else clips.paint(path, seed=99)
    with pytest.raises(DatasetError, match=f"{name} changed while"):
        clips.build(memory=hashes)


def test_a_folder_of_frames_is_encoded_once_and_again_where_one_changes(clips):
    folder = clips.data / "f.frames"
    for number in range(9):
        clips.paint(folder / f"{number}.png", seed=number)
    (clips.data / "f.txt").write_text("f")
    first = clips.build()
    assert clips.build().encoded == 0
    place = first.names.index("f.frames")
    found = first.load(place).latents
    assert torch.equal(found, expected(clips, "f.frames", ClipPart(0.0, 9, 16.0)))
    clips.paint(folder / "4.png", seed=99)
    assert clips.build().encoded == 1


def test_the_first_and_last_frame_of_a_clip_are_given_and_carry_no_loss(clips):
    clips.options = {"flip": True, "flip_except": []}
    dataset = clips.build(endpoints=(START, ENDS))
    place = dataset.names.index("c.mp4")
    frames = list(read_frames(clips.data / "c.mp4", PART))
    for flipped in (False, True):
        shown = [fit_to_bucket(frames[at], dataset.buckets[place]) for at in (0, -1)]
        pixels = [(to_pixels(each, 3) * 127.5 + 127.5).round().byte() for each in shown]
        pixels = [each.flip(2) if flipped else each for each in pixels]
        for kind, last in ((START, None), (ENDS, pixels[1])):
            sample = dataset.load(place, View(flipped=flipped, endpoints=kind))
            with torch.no_grad():
                wanted = clips.encoders.encode_endpoints(pixels[0], last, 33)["frames"]
            found = sample.conditioning[f"{kind}.frames"]
            assert torch.equal(found, wanted)
            weights = make_batch([sample], (0,)).masks
            assert weights is not None
            assert weights.flatten().tolist() == [0.0, *[1.125] * 8]
    bare = dataset.load(place, View(endpoints=""))
    assert bare.clean is None
    assert not [name for name in bare.conditioning if "frames" in name]
    image = dataset.load(dataset.names.index("d.png"))
    assert image.clean is None
    assert make_batch([bare], (0,)).masks is None


def test_a_list_of_clips_that_lack_what_is_given_is_refused(clips):
    require_endpoints((START,), clips.build(endpoints=(START,)).items)
    with pytest.raises(ConfigError, match=r"dataset\.end_frame asks for frames"):
        require_endpoints((START, ENDS), clips.build(endpoints=(START,)).items)
    with pytest.raises(ConfigError, match=r"dataset\.start_frame asks for frames"):
        require_endpoints((START,), clips.build().items)
    require_endpoints((), clips.build().items)
