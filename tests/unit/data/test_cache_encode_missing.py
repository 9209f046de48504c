"""How a cache is made: in batches, in a format, by processes that are killed."""

import os
import random
import shutil
import signal
from pathlib import Path

import pytest
import torch

from tests.fixtures.cache_world import TinyEncoders, World, same
from trainer_core.config import CacheSection
from trainer_core.data.cache.cached_dataset import CachedDataset
from trainer_core.data.cache.cached_item import CachedItem, Mirrored
from trainer_core.data.cache.item_columns import ItemColumns
from trainer_core.errors import DatasetError
from trainer_core.types import Bucket


class CountingEncoders(TinyEncoders):
    """Encoders that write down each call, also for those who come after a kill.

    Args:
        journal: Where calls are written down.
    """

    def __init__(self, journal: Path) -> None:
        super().__init__()
        self.journal = journal
        self.last: int | None = None
        """The call at which the process is killed, if at any."""

    def note(self, kind: str, count: int) -> None:
        with self.journal.open("a") as file:
            file.write(f"{kind}\n" * count)
        if self.last is not None and calls_of(self.journal) >= self.last:
            os.kill(os.getpid(), signal.SIGKILL)

    def encode_image(self, pixels):
        self.note("image", len(pixels))
        # No arithmetic that a forked process could wait for.
        return pixels[:, :1, ::8, ::8].clone()

    def encode_text(self, caption, controls):
        self.note("text", 1)
        return {"text_embeddings": self.table[torch.tensor([256, *caption.encode()])]}


def calls_of(journal: Path) -> int:
    return len(journal.read_text().splitlines()) if journal.exists() else 0


def killed_after(world: World, calls: int, batch: int) -> bool:
    """Build in a process of its own, which dies at so many calls; True when it was not done."""
    plan = world.plan()
    child = os.fork()
    if child == 0:
        world.encoders.last = calls_of(world.encoders.journal) + calls
        code = 1
        try:
            world.build(plan, options=CacheSection(batch_size=batch))
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes that fork")
def test_killed_builds_lose_a_batch_at_most(world, tmp_path):
    rounds, batch, samples = 8, 2, 16
    for number in range(samples):
        world.add(f"{number:02}.png", f"caption {number}", width=64 + 16 * (number % 2))
    journal = tmp_path / "journal"
    world.encoders = CountingEncoders(journal)
    needed, killed = 2 * samples + 1, 0
    for number in range(rounds):
        before = len(list(world.cache.glob("*/*.safetensors")))
        calls = random.Random(number).randint(1, needed // rounds)
        killed += killed_after(world, calls, batch)
        assert len(list(world.cache.glob("*/*.safetensors"))) >= before
    # What the last one left at a key that nobody asks for is cleared, too.
    left = next((world.cache / "claims").glob("[0-9a-f]*"))
    shutil.copy(left, left.with_name("ab" * 32))
    dataset = world.build(options=CacheSection(batch_size=batch))
    calls = calls_of(journal)
    assert killed > rounds // 2
    assert needed <= calls <= needed + killed * batch
    assert dataset.encoded + dataset.reused == needed
    assert not list((world.cache / "claims").glob("[0-9a-f]*"))
    once = World(world.data.parent, world.captioned, world.paint)
    once.cache, once.encoders = tmp_path / "once", CountingEncoders(tmp_path / "other")
    assert same(dataset, once.build())


def test_numbers_that_fp16_cannot_hold_are_refused_by_name(world):
    world.add("a.png")
    world.encoders.kernel *= 1e6
    with pytest.raises(DatasetError, match=r"(?s)a\.png.*cache\.dtype is fp16.*bf16"):
        world.build(options=CacheSection(dtype="fp16"))
    world.build(options=CacheSection(dtype="bf16"))


def everything(folder) -> CachedItem:
    from trainer_core.data.cache.cache_file import make_entry

    def entry(kind: str, number: int):
        return make_entry(folder, kind, number)

    many = tuple(entry("text", number) for number in range(3))
    return CachedItem(
        *("dir/ü.png", Bucket(64, 96), (Bucket(32, 48),), entry("latents", 0)),
        *((entry("latents", 1),), entry("text", 5), entry("text", 6), True, "ab" * 32),
        *((entry("latents", 2),), many, many[:2], entry("masks", 0)),
        Mirrored(entry("latents", 3), (entry("latents", 4),), many[:1], entry("masks", 1), many),
        *(True, 3, 7, 0.3),
    )


def test_columns_give_back_what_they_were_made_of(tmp_path):
    full = everything(tmp_path)
    plain = CachedItem(
        "a.png", full.bucket, (), full.latents, (), full.text, full.empty_text, weight=0.1
    )
    bare = CachedItem(
        *("\udcff.png", Bucket(32, 32), (), full.latents, (), full.text, full.empty_text),
        flipped=Mirrored(full.latents),
    )
    columns = ItemColumns.of([full, plain, bare, full])
    assert list(columns) == [full, plain, bare, full]
    assert columns[-1] == full
    assert columns[1:3] == (plain, bare)
    dataset = CachedDataset(columns)
    assert dataset.names == ("dir/ü.png", "a.png", "\udcff.png", "dir/ü.png")
    assert dataset.kinds == tuple(item.kind for item in columns)
    assert [list(keys) for chunk in columns.chunks(3) for keys in chunk] == [
        [entry.key for entry in item.entries] for item in columns
    ]
    with pytest.raises(IndexError):
        columns[4]
