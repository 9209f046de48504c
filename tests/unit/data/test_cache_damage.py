"""What goes wrong around a cache: damaged files, broken images, two builders at once."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.fixtures.cache_world import same
from tests.fixtures.clip_files import write_clip
from trainer_core.errors import DatasetError, StorageError
from trainer_core.types import FrameGrid

ROOT = Path(__file__).parents[3]


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


DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\xff" * 300),
    "shape": damage_shape,
    "foreign": damage_foreign,
    "plain": lambda path: save_file(load_file(path), path),
    "gone": Path.unlink,
}


@pytest.mark.parametrize(
    ("kind", "name"), [("text", "truncated"), *(("latents", each) for each in DAMAGES)]
)
def test_a_damaged_file_is_encoded_again_and_only_that(world, kind, name):
    world.add("a.png", "one")
    world.add("b.png", "two")
    first = world.build()
    world.encoders.counts()
    DAMAGES[name](world.files(kind)[0])
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


@pytest.mark.parametrize(("part", "bad"), [("kernel", float("inf")), ("table", float("nan"))])
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
def test_an_image_whose_pixels_are_broken_follows_the_policy(world, policy, victim):
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
    assert world.encoders.counts()[0] == 0, "a broken image must not open the encoders"


BUILDER = """
import sys, time
from pathlib import Path
from tests.fixtures.cache_world import World
from trainer_core.types import FrameGrid
world = World(Path(sys.argv[1]), None, None)
world.grid = FrameGrid(4, 16.0)
plan = world.plan()
Path(sys.argv[2]).touch()
while not all(Path(sys.argv[1], f"ready{n}").exists() for n in (0, 1)):
    time.sleep(0.001)
dataset = world.build(plan)
print(dataset.encoded, dataset.reused, len(dataset))
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("clips", [False, True], ids=["images", "clips"])
def test_two_processes_may_build_the_same_cache_at_once(world, clips):
    for number in range(12):
        image = world.add(f"{number:02}.png", f"caption {number}")
        if clips and number % 2:
            write_clip(image.with_suffix(".mp4"), 30 + number)
            image.unlink()
    root = world.data.parent
    world.grid = FrameGrid(4, 16.0)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", BUILDER, str(root), str(root / f"ready{number}")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for number in (0, 1)
    ]  # fmt: skip
    total = 0
    for worker in workers:
        output, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
        encoded, reused, length = map(int, output.split())
        assert encoded + reused == 25
        assert length == 12
        total += encoded
    assert total == 25, "both encoded the same file"
    shared = world.build(verify=True)
    assert world.encoders.counts() == (0, 0, 0)
    assert not list(world.cache.rglob(".writing-*"))
    world.cache = root / "alone"
    assert same(shared, world.build())
