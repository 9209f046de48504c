import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from trainer_core.config import DatasetSection
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.cache import build_cache
from trainer_core.data.cached import CachedDataset
from trainer_core.data.folder import scan
from trainer_core.data.image import fit_to_bucket, open_picture, resize_exact, to_pixels
from trainer_core.errors import DatasetError, StorageError
from trainer_core.types import Bucket

ROOT = Path(__file__).parents[3]


class TinyEncoders(torch.nn.Module):
    """A small real encoder pair: a convolution, and an embedding of the caption's bytes."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.kernel = torch.randn(4, 3, 8, 8, generator=generator).to(dtype)
        self.table = torch.randn(257, 6, generator=generator).to(dtype)
        self.pictures = 0
        self.texts: list[tuple[str, tuple[tuple[int, int], ...]]] = []
        self.opened = 0

    def open(self) -> "TinyEncoders":
        self.opened += 1
        return self

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        assert not torch.is_grad_enabled()
        self.pictures += 1
        return torch.nn.functional.conv2d(pixels.to(self.kernel.dtype), self.kernel, stride=8)

    def encode_text(self, caption, controls):
        self.texts.append((caption, tuple(control.size for control in controls)))
        ids = torch.tensor([256, *caption.encode()])
        seen = [to_pixels(control).mean((1, 2)) for control in controls]
        found = {"text_embeddings": self.table[ids], "text_mask": ids > 0}
        return found | {"seen": torch.stack(seen)} if seen else found

    def counts(self) -> tuple[int, int, int]:
        result = self.opened, self.pictures, len(self.texts)
        self.opened, self.pictures, self.texts = 0, 0, []
        return result


class World:
    """A dataset folder, its settings and its cache."""

    def __init__(self, root: Path, captioned, paint) -> None:
        self.data, self.cache = root / "data", root / "cache"
        self.captioned, self.paint = captioned, paint
        self.encoders = TinyEncoders()
        self.options = {}
        self.identity = "tiny"
        self.seed = 0

    def add(self, name: str, caption: str = "a thing", control: bool = False, **options) -> Path:
        self.seed += 1
        path = self.captioned(self.data / name, caption, seed=self.seed, **options)
        if control:
            self.paint(path.with_name(f"{path.stem}_control.png"), seed=100 + self.seed)
        return path

    def settings(self) -> DatasetSection:
        return DatasetSection(path=str(self.data), resolution=64, **self.options)

    def plan(self, control_size=lambda width, height, area: (32, 32)):
        return plan_buckets(scan(self.settings()).samples, self.settings(), 16, control_size)

    def build(self, plan=None, **options) -> CachedDataset:
        return build_cache(
            plan or self.plan(), self.cache, self.identity, self.encoders.open, self.settings(),
            **options,
        )  # fmt: skip

    def files(self, kind: str) -> list[Path]:
        return sorted((self.cache / kind).glob("*"))


@pytest.fixture
def world(tmp_path, captioned, paint) -> World:
    return World(tmp_path, captioned, paint)


def same(one: CachedDataset, two: CachedDataset) -> bool:
    def flat(sample):
        texts = (sample.conditioning, sample.empty_conditioning)
        named = [text[name] for text in texts for name in sorted(text)]
        return [sample.latents, *sample.controls, *named]

    return one.names == two.names and all(
        torch.equal(a, b)
        for index in range(len(one))
        for a, b in zip(flat(one.load(index)), flat(two.load(index)), strict=True)
    )


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
    pixels = to_pixels(fit_to_bucket(open_picture(path), sample.bucket))
    with torch.no_grad():
        expected = world.encoders.encode_image(pixels[None])[0]
    assert torch.equal(sample.latents, expected)
    text = world.encoders.encode_text("hello", [])
    assert torch.equal(sample.conditioning["text_embeddings"], text["text_embeddings"])
    assert sample.conditioning["text_mask"].dtype == torch.bool
    assert sample.empty_conditioning["text_embeddings"].shape == (1, 6)
    assert dataset.control_buckets == ((), ())


def test_low_precision_is_kept_on_disk_and_read_as_float32(world):
    world.encoders = TinyEncoders(torch.bfloat16)
    world.add("a.png")
    dataset = world.build()
    assert dataset.load(0).latents.dtype == torch.float32
    assert load_file(world.files("latents")[0])["latents"].dtype == torch.bfloat16


def test_everything_is_encoded_once_and_then_reused_without_opening_encoders(world):
    world.add("a.png", "one")
    world.add("b.png", "two")
    first = world.build()
    assert world.encoders.counts() == (1, 2, 3)
    assert (first.encoded, first.reused) == (5, 0)
    second = world.build()
    assert world.encoders.counts() == (0, 0, 0)
    assert (second.encoded, second.reused) == (0, 5)
    assert same(first, second)


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


def test_equal_pictures_and_captions_are_encoded_once(world):
    world.add("a.png", "same")
    shutil.copy(world.data / "a.png", world.data / "b.png")
    shutil.copy(world.data / "a.txt", world.data / "b.txt")
    dataset = world.build()
    assert world.encoders.counts() == (1, 1, 2)
    assert torch.equal(dataset.load(0).latents, dataset.load(1).latents)


def test_controls_are_sized_like_their_target_and_seen_by_the_text_encoder(world):
    world.add("a.png", "edit", control=True, width=130, height=70)
    dataset = world.build()
    sample = dataset.load(0)
    size = (sample.bucket.width, sample.bucket.height)
    assert world.encoders.texts == [("edit", (size,)), ("", (size,))]
    control = fit_to_bucket(open_picture(world.data / "a_control.png"), sample.bucket)
    with torch.no_grad():
        expected = world.encoders.encode_image(to_pixels(control)[None])[0]
    assert torch.equal(sample.controls[0], expected)
    assert torch.equal(sample.empty_conditioning["seen"][0], to_pixels(control).mean((1, 2)))
    assert dataset.control_buckets == ((sample.bucket,),)


def test_controls_with_an_area_of_their_own_are_resized_whole(world):
    world.options["control_area"] = 1024
    world.add("a.png", "edit", control=True)
    world.paint(world.data / "a_control.png", width=100, height=40, seed=5)
    dataset = world.build()
    control = resize_exact(open_picture(world.data / "a_control.png"), 32, 32)
    with torch.no_grad():
        expected = world.encoders.encode_image(to_pixels(control)[None])[0]
    assert torch.equal(dataset.load(0).controls[0], expected)
    assert dataset.control_buckets == ((Bucket(32, 32),),)


def test_a_changed_control_costs_its_latents_and_both_texts(world):
    world.add("a.png", "edit", control=True)
    world.add("b.png", "edit", control=True)
    world.build()
    world.encoders.counts()
    world.paint(world.data / "a_control.png", seed=999)
    world.build()
    assert world.encoders.counts() == (1, 1, 2)


def damage_truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 300)


def damage_shape(path: Path) -> None:
    """A well-formed file with this entry's own header, but other shapes."""
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = {name: value[..., :1].contiguous() for name, value in load_file(path).items()}
    save_file(tensors, path, metadata)


def damage_foreign(path: Path) -> None:
    """Another entry's file under this entry's name."""
    other = next(each for each in path.parent.iterdir() if each != path)
    shutil.copy(other, path)


def damage_plain(path: Path) -> None:
    save_file(load_file(path), path)


@pytest.mark.parametrize("kind", ["latents", "text"])
@pytest.mark.parametrize(
    "damage",
    [damage_truncate, damage_empty, damage_garbage, damage_shape, damage_foreign, damage_plain,
     Path.unlink],
)  # fmt: skip
def test_a_damaged_file_is_encoded_again_and_only_that(world, kind, damage):
    world.add("a.png", "one")
    world.add("b.png", "two")
    first = world.build()
    world.encoders.counts()
    damage(world.files(kind)[0])
    healed = world.build()
    assert world.encoders.counts() == ((1, 1, 0) if kind == "latents" else (1, 0, 1))
    assert (healed.encoded, healed.reused) == (1, 4)
    assert same(first, world.build())
    assert world.encoders.counts() == (0, 0, 0)


@pytest.mark.parametrize("kind", ["latents", "text"])
def test_changed_bytes_are_noticed_when_read_and_healed_by_verify(world, kind):
    world.add("a.png", "one")
    first = world.build()
    expected = world.build()
    assert same(first, expected)
    world.encoders.counts()
    for path in world.files(kind):
        data = bytearray(path.read_bytes())
        data[-2] ^= 0x10
        path.write_bytes(bytes(data))
    with pytest.raises(StorageError, match="checksum") as caught:
        world.build().load(0)
    assert "cache.verify" in caught.value.remedy
    assert world.encoders.counts() == (0, 0, 0)
    healed = world.build(verify=True)
    assert world.encoders.counts() == ((1, 1, 0) if kind == "latents" else (1, 0, 2))
    assert same(healed, first)


def test_a_file_that_vanished_after_the_build_is_named(world):
    world.add("a.png")
    dataset = world.build()
    shutil.rmtree(world.cache)
    with pytest.raises(StorageError, match="safetensors"):
        dataset.load(0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["kernel", "table"])
def test_numbers_that_are_not_finite_are_refused_and_not_kept(world, part, bad):
    world.add("a.png", "abc")
    getattr(world.encoders, part).fill_(bad)
    with pytest.raises(DatasetError, match=r"a\.png") as caught:
        world.build()
    assert "finite" in caught.value.found
    assert "training.precision" in caught.value.remedy
    assert world.files("latents" if part == "kernel" else "text") == []


@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize("victim", ["b.png", "b_control.png"])
def test_a_picture_whose_pixels_are_broken_follows_the_policy(world, policy, victim):
    world.add("a.png", "one", control=True)
    world.add("b.png", "two", control=True)
    data = (world.data / victim).read_bytes()
    (world.data / victim).write_bytes(data[: len(data) * 2 // 3])
    world.options["unreadable"] = policy
    if policy == "error":
        with pytest.raises(DatasetError, match=victim):
            world.build()
        return
    dataset = world.build()
    assert dataset.names == ("a.png",)
    assert len(dataset.buckets) == 1
    assert victim in dataset.problems[0]
    world.encoders.counts()
    assert world.build().names == ("a.png",)
    assert world.encoders.counts()[0] == 0, "a broken picture must not open the encoders"


def test_a_dataset_of_broken_pictures_is_an_error_even_when_they_are_skipped(world):
    path = world.add("a.png")
    path.write_bytes(path.read_bytes()[:-60])
    world.options["unreadable"] = "skip"
    with pytest.raises(DatasetError, match="no sample is left"):
        world.build()


def test_a_picture_that_vanishes_or_changes_while_encoding_is_named(world):
    world.add("a.png")
    plan = world.plan()
    (world.data / "a.png").unlink()
    with pytest.raises(DatasetError, match=r"a\.png"):
        world.build(plan)
    world.add("a.png")
    world.add("b.png")

    def repaint(done: int, total: int) -> None:
        if done == 0:
            world.paint(world.data / "b.png", seed=555, width=80)

    with pytest.raises(DatasetError, match=r"b\.png changed"):
        world.build(notify=repaint)


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


def test_the_cache_tells_neither_paths_nor_names_nor_captions(world):
    world.add("secret_name.png", "secret caption", control=True)
    world.build()
    for _ in range(2):
        age_pictures(world)
        world.build()
    content = b"".join(path.read_bytes() for path in world.cache.rglob("*") if path.is_file())
    assert (world.cache / "picture_hashes.json").exists()
    for secret in (b"secret_name", b"secret caption", str(world.data).encode()):
        assert secret not in content


def age_pictures(world) -> None:
    """Wait until the pictures are older than a file system's tick."""
    newest = max(path.stat().st_ctime for path in world.data.iterdir())
    time.sleep(max(0.0, newest + 2.05 - time.time()))


def test_remembered_hashes_are_used_and_never_trusted_over_a_changed_file(world):
    path = world.add("a.png", width=64, height=64)
    age_pictures(world)
    first = world.build()
    memory = world.cache / "picture_hashes.json"
    rows = json.loads(memory.read_text())
    assert len(rows) == 1
    # A picture of the same size in bytes and the same modification time, but another content.
    stamp = path.stat()
    data = bytearray(Image.new("RGB", (64, 64), "red").tobytes())
    Image.frombytes("RGB", (64, 64), bytes(data)).save(path)
    data = path.read_bytes()
    path.write_bytes(data + b"\0" * (stamp.st_size - len(data)))
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert path.stat().st_size == stamp.st_size
    assert path.stat().st_mtime_ns == stamp.st_mtime_ns
    world.encoders.counts()
    second = world.build()
    assert world.encoders.counts() == (1, 1, 0)
    assert not torch.equal(first.load(0).latents, second.load(0).latents)


def test_a_false_memory_is_believed_only_without_verify(world):
    world.add("a.png")
    age_pictures(world)
    world.build()
    memory = world.cache / "picture_hashes.json"
    rows = json.loads(memory.read_text())
    false = {name: [*row[:4], "0" * 64] for name, row in rows.items()}
    memory.write_text(json.dumps(false))
    world.encoders.counts()
    world.build(verify=True)
    assert world.encoders.counts() == (0, 0, 0)
    assert json.loads(memory.read_text()) == rows
    memory.write_text(json.dumps(false))
    world.build()
    assert world.encoders.counts() == (1, 1, 0), "the memory is not used at all"


@pytest.mark.parametrize("content", ["", "[1]", "{", '{"a": 3, "b": [1, 2]}'])
def test_a_damaged_memory_is_forgotten(world, content):
    world.add("a.png")
    world.build()
    world.encoders.counts()
    (world.cache / "picture_hashes.json").write_text(content)
    world.build()
    assert world.encoders.counts() == (0, 0, 0)


def test_abandoned_temporary_files_are_removed_and_fresh_ones_left(world):
    world.add("a.png")
    world.build()
    old, fresh = (world.cache / "text" / f".writing-{name}" for name in ("old", "fresh"))
    old.write_bytes(b"x")
    fresh.write_bytes(b"x")
    os.utime(old, (time.time() - 7200,) * 2)
    world.build()
    assert not old.exists()
    assert fresh.exists()


def test_tensors_that_share_memory_can_be_kept(world):
    world.add("a.png", "abc")
    plain = world.encoders.encode_text

    def shared(caption, controls):
        found = plain(caption, controls)
        whole = found["text_embeddings"]
        return {"text_embeddings": whole, "first": whole[:1], "again": whole}

    world.encoders.encode_text = shared
    found = world.build().load(0).conditioning
    assert torch.equal(found["first"], found["again"][:1])


def test_a_cache_folder_that_cannot_be_made_is_named(world):
    world.add("a.png")
    world.cache.write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="cache"):
        world.build()


def test_little_memory_changes_nothing_but_speed(world):
    for number in range(3):
        world.add(f"{number}.png", f"caption {number}")
    dataset = world.build()
    small = CachedDataset(dataset._items, memory_bytes=100)
    assert same(dataset, small)
    assert same(small, dataset)
    assert small._memory._size <= 100


def test_a_second_read_comes_from_memory(world):
    world.add("a.png")
    dataset = world.build()
    first = dataset.load(0)
    shutil.rmtree(world.cache)
    assert torch.equal(dataset.load(0).latents, first.latents)


BUILDER = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("cache_cases", sys.argv[1])
cases = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cases)
world = cases.World(Path(sys.argv[2]), None, None)
plan = world.plan()
Path(sys.argv[3]).touch()
while not all(Path(sys.argv[2], f"ready{n}").exists() for n in (0, 1)):
    time.sleep(0.001)
dataset = world.build(plan)
print(dataset.encoded, dataset.reused, len(dataset))
"""


def test_two_processes_may_build_the_same_cache_at_once(world):
    for number in range(12):
        world.add(f"{number:02}.png", f"caption {number}")
    root = world.data.parent
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", BUILDER, __file__, str(root), str(root / f"ready{number}")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for number in (0, 1)
    ]  # fmt: skip
    for worker in workers:
        output, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
        encoded, reused, length = map(int, output.split())
        assert encoded + reused == 25
        assert length == 12
    shared = world.build(verify=True)
    assert world.encoders.counts() == (0, 0, 0)
    assert not list(world.cache.rglob(".writing-*"))
    world.cache = root / "alone"
    assert same(shared, world.build())


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
