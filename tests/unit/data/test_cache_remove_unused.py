"""What is removed of a cache that is too large, and what never is."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from trainer_core.data.cache.item_columns import hex_keys
from trainer_core.data.cache.remove_unused import Collected, remove_unused

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
    done = remove_unused(world.cache, size - 1, NOTHING)
    assert done.removed == 1
    assert done.kept == size - done.freed == total(world)
    oldest = three.items[2]
    assert not (oldest.latents.path.exists() and oldest.text.path.exists())
    assert remove_unused(world.cache, size, NOTHING) == Collected(0, 0, done.kept, 0, size, False)
    assert remove_unused(world.cache, 0, NOTHING).kept == 0
    assert there(three) == [False, False, False]


def test_what_is_needed_stays(world, three):
    needed = hex_keys(entry.key for entry in three.items[2].entries)
    done = remove_unused(world.cache, 0, needed)
    assert there(three) == [False, False, True]
    assert done.kept == done.needed == total(world) > 0
    assert "more than cache.max_gb=0" in str(done)


@pytest.mark.parametrize("damage", ["", "{"])
def test_what_a_manifest_names_stays(world, three, damage):
    item = three.items[1]
    text = "".join(entry.key for entry in item.entries)
    (world.cache / "run-0.cache.json").write_text(f'{damage}{{"samples": {{"keys": "{text}"}}}}')
    remove_unused(world.cache, 0, NOTHING)
    assert there(three) == [False, True, False]
    assert item.text.path.exists()


@pytest.mark.exhaustive
def test_what_a_process_at_work_uses_stays_until_it_ends(world, three):
    code = (
        "import sys, time; from pathlib import Path;"
        "from trainer_core.data.cache.remove_unused import *;"
        "from trainer_core.data.cache.item_columns import hex_keys;"
        "mark = UseMark(Path(sys.argv[1]), hex_keys(sys.argv[2:])); print('ready', flush=True);"
        "time.sleep(60)"
    )
    keys = [entry.key for entry in three.items[2].entries]
    command = [sys.executable, "-c", code, str(world.cache), *keys]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout.readline() == "ready\n"
        remove_unused(world.cache, 0, NOTHING)
        assert there(three) == [False, False, True]
        user.kill()
    remove_unused(world.cache, 0, NOTHING)
    assert there(three) == [False, False, False]
    assert not list((world.cache / "uses").glob("*"))
