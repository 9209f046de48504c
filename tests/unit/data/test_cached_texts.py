"""Which texts of a sample are encoded: each that can be trained, once, and no other."""

import torch

from tests.fixtures.cache_world import World
from trainer_core.types import View


def wanted(world: World) -> set[tuple[str, tuple[tuple[int, int], ...]]]:
    """By hand: every text of every image, beside its control images and without them."""
    found = set()
    for sample in world.plan().samples:
        for text in (*sample.sample.captions, ""):
            sizes = tuple((each.width, each.height) for each in sample.control_buckets)
            found.add((text, sizes))
            if world.settings().control_dropout and sizes:
                found.add((text, ()))
    return found


def test_every_text_is_encoded_once_and_no_other(world):
    world.options = {"captions": {"shuffle": 4}, "control_dropout": 0.3, "trigger_word": "ohwx"}
    for number in range(3):
        world.add(f"{number}.png", ["a, b, c", "a, b, c", "d, e"][number], control=True)
    dataset = world.build()
    given = list(world.encoders.texts)
    assert set(given) == wanted(world)
    # Beside three control images 4 + 1, 4 + 1 and 2 + 1 texts; without them the two that are alike
    # share theirs, and all share the empty one: 4 + 2 + 1.
    assert len(given) == 5 + 5 + 3 + 7 == len(world.files("text"))
    assert [item.captions for item in dataset.items] == [4, 4, 2]
    assert {len(item.bare_texts) for item in dataset.items} == {5, 3}
    # The list of the files is the folder, to the last one.
    files = {entry.path for item in dataset.items for entry in item.entries}
    assert files == {path for kind in ("text", "latents") for path in world.files(kind)}
    world.encoders.counts()
    world.build()
    assert world.encoders.counts() == (0, 0, 0)


def test_each_view_reads_its_own_text(world):
    world.options = {"captions": {"variants": "lines"}, "control_dropout": 0.3}
    world.add("a.png", "one\ntwo", control=True)
    dataset, encoders = world.build(), world.encoders
    for caption, text in ((0, "one"), (1, "two"), (None, "")):
        for controls in (True, False):
            sample = dataset.load(0, View(caption, controls))
            expected = encoders.table[torch.tensor([256, *text.encode()])]
            assert torch.equal(sample.conditioning["text_embeddings"], expected)
            assert ("seen" in sample.conditioning) == controls
            assert len(sample.controls) == controls
