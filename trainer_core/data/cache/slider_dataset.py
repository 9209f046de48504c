"""The samples of a concept slider: prompts, and images that the base makes before the first step.

There are no files. A sample is an image of a neutral prompt, of which nothing exists yet but its
name and its texts: the neutral prompt, the positive and the negative one. So a slider goes through
batches, epochs and the ledger as a folder of images does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import torch

from ...config import CacheSection, SliderSection
from ...errors import ConfigError
from ...types import Bucket
from .cache_file import is_sound, source_hash
from .cached_dataset import CachedDataset
from .cached_item import CachedItem, PreservedItem
from .encode_missing import opened_maker
from .encoder_protocols import Encoders
from .entry_keys import EntryKeys, TextTask
from .item_columns import ItemColumns, hex_keys
from .remove_unused import UseMark


def slider_mark(slider: SliderSection) -> str:
    """The prompts of a slider and how many images it has of each; two alike have the same samples.

    Returns:
        JSON; empty where the slider is off.
    """
    return json.dumps([slider.images, *slider.triples()]) if slider.is_on else ""


def slider_size(resolution: int, multiple: int) -> Bucket:
    """The size of a slider's images: the largest square that a family can train.

    Args:
        multiple: Both sides are multiples of this many pixels.

    Raises:
        ConfigError: When the resolution is below one multiple.
    """
    side = resolution // multiple * multiple
    if not side:
        raise ConfigError(
            f"dataset.resolution is {resolution}",
            f"at least {multiple} for this base",
            "Raise dataset.resolution.",
        )
    return Bucket(side, side)


@torch.no_grad()
def build_slider(
    keys: EntryKeys,
    size: Bucket,
    open_encoders: Callable[[], Encoders],
    notify: Callable[[int, int], None],
    *,
    preserved_prompts: Sequence[str] = (),
    options: CacheSection | None = None,
) -> CachedDataset:
    """Encode missing prompts of a slider; one sample for each image to make, by neutral prompt.

    Args:
        size: Of the images that the base is to make.
        open_encoders: Loads the encoders; called at most once, and only if a text is missing.
        notify: Called with texts done and texts missing; what it raises stops the work.
        preserved_prompts: What the base is held to beside.

    Raises:
        DatasetError: When a prompt does not encode to finite numbers.
        StorageError: When the cache cannot be written.
    """
    options, slider = options or CacheSection(), keys.settings.slider
    prompts = [each for triple in slider.triples() for each in triple]
    texts = {
        text: keys.of_text(text, f"the prompt {text!r}")
        for text in ("", *prompts, *preserved_prompts)
    }
    items = ItemColumns.of(_items(slider, size, texts))
    preserved = [PreservedItem(each, size, (), texts[each].entry) for each in preserved_prompts]
    # Before it is looked what is there: from here on nobody removes it.
    mark = UseMark(keys.folder, hex_keys(task.entry.key for task in texts.values()))
    tasks = list(texts.values())
    missing = {
        task.entry.key for task in tasks if not is_sound(task.entry, thorough=options.verify)
    }
    with opened_maker(keys, open_encoders, notify, options) as maker:
        maker.begin(missing)
        maker.make(tasks)
    count = maker.encoded
    dataset = CachedDataset(items, count, len(texts) - count, preserved=preserved)
    dataset.mark, dataset.slider = mark, slider_mark(slider)
    return dataset


def _items(slider: SliderSection, size: Bucket, texts: dict[str, TextTask]) -> list[CachedItem]:
    return [
        CachedItem(
            name=f"slider: {neutral!r} {number}",
            bucket=size,
            control_buckets=(),
            latents=texts[neutral].entry,
            controls=(),
            text=texts[neutral].entry,
            empty_text=texts[""].entry,
            source=source_hash(neutral, positive, negative, size.width, size.height, number),
            class_texts=(texts[positive].entry, texts[negative].entry),
        )
        for neutral, positive, negative in slider.triples()
        for number in range(1, slider.images + 1)
    ]
