"""What is removed of a cache that is too large, and what never is."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from trainer_core.data.cache.collect import Collected, collect
from trainer_core.data.cache.columns import hex_keys

NOTHING = np.zeros((0, 32), np.uint8)


@pytest.fixture
def three(world):
    """Three samples of a cache, the first used last."""
    for name in "abc":
        world.add(f"{name}.png", name)
    dataset = world.build()
    dataset.mark.release()
    for path in (world.cache / "uses").glob("*.use"):
        path.unlink()
    now = time.time()
    for age, item in enumerate(dataset.items):
        for path in (item.latents.path, item.text.path):
            os.utime(path, (now - 100 * age, now - 100 * age))
        os.utime(item.empty_text.path)
    return dataset


def there(dataset) -> list[bool]:
    return [item.latents.path.exists() for item in dataset.items]


def total(world) -> int:
    return sum(path.stat().st_size for kind in ("latents", "text") for path in world.files(kind))


def test_what_was_unused_for_longest_goes_first(world, three):
    size = total(world)
    done = collect(world.cache, size - 1, NOTHING)
    assert done.removed == 1
    assert done.kept == size - done.freed == total(world)
    oldest = three.items[2]
    assert not (oldest.latents.path.exists() and oldest.text.path.exists())
    assert collect(world.cache, size, NOTHING) == Collected(0, 0, done.kept, 0, size, False)
    assert collect(world.cache, 0, NOTHING).kept == 0
    assert there(three) == [False, False, False]


def test_a_dry_run_removes_nothing_and_says_the_same(world, three):
    size = total(world)
    dry = collect(world.cache, size // 2, NOTHING, dry=True)
    assert dry.removed > 0
    assert total(world) == size
    wet = collect(world.cache, size // 2, NOTHING)
    assert (wet.removed, wet.freed, wet.kept) == (dry.removed, dry.freed, dry.kept)
    assert "would be removed" in str(dry)
    assert "were removed" in str(wet)
    assert "nothing has to be removed" in str(collect(world.cache, size, NOTHING, dry=True))


def test_what_is_needed_stays(world, three):
    needed = hex_keys(entry.key for entry in three.items[2].entries)
    done = collect(world.cache, 0, needed)
    assert there(three) == [False, False, True]
    assert done.kept == done.needed == total(world) > 0
    assert "more than cache.max_gb=0" in str(done)


@pytest.mark.parametrize("damage", ["", "{"])
def test_what_a_manifest_names_stays(world, three, damage):
    item = three.items[1]
    text = "".join(entry.key for entry in item.entries)
    (world.cache / "run-0.cache.json").write_text(f'{damage}{{"samples": {{"keys": "{text}"}}}}')
    collect(world.cache, 0, NOTHING)
    assert there(three) == [False, True, False]
    assert item.text.path.exists()


def test_what_a_process_at_work_uses_stays_until_it_ends(world, three):
    code = (
        "import sys, time; from pathlib import Path; from trainer_core.data.cache.collect import *;"
        "from trainer_core.data.cache.columns import hex_keys;"
        "mark = UseMark(Path(sys.argv[1]), hex_keys(sys.argv[2:])); print('ready', flush=True);"
        "time.sleep(60)"
    )
    keys = [entry.key for entry in three.items[2].entries]
    command = [sys.executable, "-c", code, str(world.cache), *keys]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout.readline() == "ready\n"
        collect(world.cache, 0, NOTHING)
        assert there(three) == [False, False, True]
        user.kill()
    collect(world.cache, 0, NOTHING)
    assert there(three) == [False, False, False]
    assert not list((world.cache / "uses").glob("*"))


def test_a_use_counts_from_when_it_was_last(world, three):
    for name in "bc":
        (world.data / f"{name}.png").unlink()
        (world.data / f"{name}.txt").unlink()
    now = time.time()
    for item in three.items:
        for entry in item.entries:
            os.utime(entry.path, (now - 10**6, now - 10**6))
    used = world.build()
    used.mark.release()
    needed = sum(entry.path.stat().st_size for entry in set(three.items[0].entries))
    collect(world.cache, needed, NOTHING)
    assert there(three) == [True, False, False]
