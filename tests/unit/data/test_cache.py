"""What a cache encodes, what it reuses, and what it gives back."""

import os
from dataclasses import replace

import pytest
import torch
from PIL import Image

from trainer_core.data import file_memory
from trainer_core.data.crop import fit_to_bucket
from trainer_core.data.image import open_image, to_pixels
from trainer_core.filesystem.record_table import RecordTable
from trainer_core.types import Bucket, View


def test_cached_samples_equal_a_direct_encoding(world):
    path = world.add("a.png", "hello", width=100, height=70)
    world.add("b.jpg", "", exif=Image.Exif())
    world.options["missing_caption"] = "empty"
    dataset = world.build()
    assert len(dataset) == 2
    assert dataset.names == ("a.png", "b.jpg")
    sample = dataset.load(0)
    assert sample.name == "a.png"
    assert sample.bucket == dataset.buckets[0] == Bucket(80, 48)
    pixels = to_pixels(fit_to_bucket(open_image(path), sample.bucket))
    with torch.no_grad():
        expected = world.encoders.encode_image(pixels[None])[0]
    assert torch.equal(sample.latents, expected)
    text = world.encoders.encode_text("hello", [])
    assert torch.equal(sample.conditioning["text_embeddings"], text["text_embeddings"])
    assert sample.conditioning["text_mask"].dtype == torch.bool
    empty = dataset.load(0, View(caption=None)).conditioning
    assert empty["text_embeddings"].shape == (1, 6)
    assert dataset.control_buckets == ((), ())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda w: (w.data / "a.txt").write_text("other"), (1, 0, 1)),
        (lambda w: w.paint(w.data / "a.png", seed=77), (1, 1, 0)),
        (lambda w: w.add("c.png", "two"), (1, 1, 0)),
        (lambda w: w.add("c.png", "three"), (1, 1, 1)),
        (lambda w: [(w.data / "a").with_suffix(s).unlink() for s in (".png", ".txt")], (0, 0, 0)),
        (lambda w: (w.data / "a.png").rename(w.data / "a.PNG"), (0, 0, 0)),
        (lambda w: w.data.rename(w.data.with_name("moved")), (0, 0, 0)),
        (lambda w: os.utime(w.data / "a.png"), (0, 0, 0)),
        (lambda w: w.options.update(trigger_word="ohwx"), (1, 0, 2)),
        (lambda w: w.options.update(num_repeats=3, caption_dropout=0.5), (0, 0, 0)),
        (lambda w: w.options.update(resolution_change=48), (1, 2, 0)),
        (lambda w: setattr(w, "identity", "other encoders"), (1, 2, 3)),
    ],
)
def test_only_what_changed_is_encoded_again(world, change, expected):
    world.add("a.png", "one")
    world.add("b.png", "two")
    world.build()
    world.encoders.counts()
    change(world)
    if not world.data.exists():
        world.data = world.data.with_name("moved")
    plan = None
    if world.options.pop("resolution_change", None):
        plan = world.plan()
        samples = tuple(replace(each, bucket=Bucket(48, 48)) for each in plan.samples)
        plan = replace(plan, samples=samples)
    world.build(plan)
    assert world.encoders.counts() == expected


def test_progress_counts_what_is_missing_and_an_interrupt_keeps_what_is_done(world):
    for number in range(4):
        world.add(f"{number}.png", f"caption {number}")
    seen = []

    def stop_at_five(done: int, total: int) -> None:
        seen.append((done, total))
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.build(notify=stop_at_five)
    assert seen == [(done, 9) for done in range(6)]
    seen.clear()
    world.build(notify=lambda done, total: seen.append((done, total)))
    assert seen == [(done, 4) for done in range(5)]
    seen.clear()
    world.build(notify=lambda done, total: seen.append((done, total)))
    assert seen == []


@pytest.mark.usefixtures("old_images")
def test_the_cache_tells_neither_paths_nor_names_nor_captions(world):
    world.add("secret_name.png", "secret caption", control=True)
    world.build()
    for _ in range(2):
        world.build()
    content = b"".join(path.read_bytes() for path in world.cache.rglob("*") if path.is_file())
    assert list((world.cache / "index").glob("images*"))
    for secret in (b"secret_name", b"secret caption", str(world.data).encode()):
        assert secret not in content


@pytest.fixture
def old_images(monkeypatch):
    """Images are older than a file system's tick as soon as they are written."""
    monkeypatch.setattr(file_memory, "_TICK_NS", -(10**18))


@pytest.mark.usefixtures("old_images")
def test_remembered_hashes_are_used_and_never_trusted_over_a_changed_file(world):
    path = world.add("a.png", width=64, height=64)
    first = world.build()
    fields = [*file_memory._KEY, *file_memory._OF_IMAGES]
    assert len(RecordTable(world.cache / "index", "images", fields, 1).read()) == 1
    # An image of the same size in bytes and the same modification time, but another content.
    stamp = path.stat()
    data = bytearray(Image.new("RGB", (64, 64), "red").tobytes())
    Image.frombytes("RGB", (64, 64), bytes(data)).save(path)
    data = path.read_bytes()
    path.write_bytes(data + b"\0" * (stamp.st_size - len(data)))
    while path.stat().st_ctime_ns == stamp.st_ctime_ns or path.stat().st_mtime != stamp.st_mtime:
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert path.stat().st_size == stamp.st_size
    assert path.stat().st_mtime_ns == stamp.st_mtime_ns
    world.encoders.counts()
    second = world.build()
    assert world.encoders.counts() == (1, 1, 0)
    assert not torch.equal(first.load(0).latents, second.load(0).latents)


def test_the_datasets_identity_follows_content_and_order_and_not_names(world):
    world.add("a.png", "one")
    world.add("b.png", "two")
    first = world.build().identity
    world.data.rename(world.data.with_name("moved"))
    world.data = world.data.with_name("moved")
    assert world.build().identity == first
    for suffix in (".png", ".txt"):
        (world.data / "a").with_suffix(suffix).rename((world.data / "c").with_suffix(suffix))
    swapped = world.build().identity
    assert swapped != first
    (world.data / "b.txt").write_text("three")
    assert world.build().identity not in {first, swapped}
