"""What goes wrong around a cache: a disk that is full or read-only, a damaged index, long paths."""

import subprocess

import pytest

from tests.fixtures.cache_world import World, same
from tests.fixtures.small_disk import fill
from trainer_core.errors import StorageError


@pytest.fixture
def filled(world: World) -> World:
    for number in range(6):
        world.add(f"{number}.png", f"caption {number}")
    return world


def test_a_disk_that_fills_up_while_encoding_keeps_what_is_whole(filled, small_disk, tmp_path):
    filled.cache = small_disk / "cache"

    def stop(done: int, total: int) -> None:
        if done == 5:
            fill(small_disk)

    with pytest.raises(StorageError, match="disk is full"):
        filled.build(notify=stop)
    opened, images, texts = filled.encoders.counts()
    assert (opened, images, texts) == (1, 6, 0), "the sixth image found no room"
    assert len(filled.files("latents")) == 5
    assert not list(filled.cache.rglob(".writing-*"))
    (small_disk / "filler").unlink()
    whole = filled.build(verify=True)
    assert (whole.encoded, whole.reused, whole.damaged) == (8, 5, ())
    filled.cache = tmp_path / "roomy"
    assert same(whole, filled.build())


def test_a_read_only_cache_is_read_and_what_it_lacks_is_an_error(filled, small_disk):
    filled.cache = small_disk / "cache"
    first = filled.build()
    filled.encoders.counts()
    options = ["mount", "-o", "remount,ro,size=2m", str(small_disk)]
    if subprocess.run(options, capture_output=True, check=False).returncode:
        pytest.skip("this machine cannot mount a disk for reading alone")
    assert same(filled.build(), first)
    assert same(filled.build(verify=True), first)
    assert filled.encoders.counts() == (0, 0, 0)
    filled.add("new.png", "one more")
    with pytest.raises(StorageError) as caught:
        filled.build()
    assert "cache" in caught.value.found
    assert caught.value.remedy
