"""The samples of a concept slider: prompts, and images that the base makes before the first step.

There are no files. A sample is an image of a neutral prompt, of which nothing exists yet but its
name and its texts: the neutral prompt, the positive and the negative one. So a slider goes through
batches, epochs and the ledger as a folder of images does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from ...config import CacheSection, DatasetSection, SliderSection
from ...errors import ConfigError
from ...types import Bucket
from ..file_memory import FileMemory
from .build_cache import encoded_as
from .cache_file import is_sound, source_hash
from .cached_dataset import CachedDataset
from .cached_item import CachedItem, PreservedItem
from .encode_missing import Maker
from .encoder_protocols import Encoders
from .entry_keys import Recipes, TextTask
from .file_index import CacheIndex
from .item_columns import ItemColumns, hex_keys
from .remove_unused import UseMark
from .work_claims import Claims


def slider_mark(slider: SliderSection) -> str:
    """The prompts of a slider and how many images it has of each; two alike have the same samples.

    Returns:
        JSON; empty where the slider is off.
    """
    return json.dumps([slider.images, *slider.triples()]) if slider.is_on else ""


def slider_size(resolution: int, multiple: int) -> Bucket:
    """The size of a slider's images: the largest square that a family can train.

    Args:
        resolution: ``dataset.resolution``, in pixels.
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
    settings: DatasetSection,
    size: Bucket,
    folder: Path,
    identity: str,
    open_encoders: Callable[[], Encoders],
    notify: Callable[[int, int], None],
    *,
    preserved_prompts: Sequence[str] = (),
    options: CacheSection | None = None,
    memory: FileMemory | None = None,
) -> CachedDataset:
    """Encode the prompts of a slider that are not encoded yet.

    Args:
        size: Of the images that the base is to make.
        identity: Names the encoders and their settings, as for `build_cache`.
        open_encoders: Loads the encoders; called at most once, and only if a text is missing.
        notify: Called with texts done and texts missing; what it raises stops the work.
        preserved_prompts: What the base is held to beside.
        options: Number format, batch size, and whether files are read before they are believed.
        memory: As for `build_cache`; of images, which are not read here.

    Returns:
        One sample for each image that is to be made, in the order of the neutral prompts.

    Raises:
        DatasetError: When a prompt does not encode to finite numbers.
        StorageError: When the cache cannot be written.
    """
    options = options or CacheSection()
    known = memory or FileMemory(folder, trust=True)
    naming = Recipes(
        folder, encoded_as(identity, options), settings, 3, fills=False, shown=False, hashes=known
    )
    prompts = [each for triple in settings.slider.triples() for each in triple]
    texts = {
        text: naming.of_text(text, f"the prompt {text!r}")
        for text in ("", *prompts, *preserved_prompts)
    }
    items = ItemColumns.of(_items(settings.slider, size, texts))
    preserved = [PreservedItem(each, size, (), texts[each].entry) for each in preserved_prompts]
    # Before it is looked what is there: from here on nobody removes it.
    mark = UseMark(folder, hex_keys(task.entry.key for task in texts.values()))
    encoded = _encoded(naming, open_encoders, notify, options, list(texts.values()))
    dataset = CachedDataset(items, encoded, len(texts) - encoded, preserved=preserved)
    dataset.mark, dataset.slider = mark, slider_mark(settings.slider)
    return dataset


def _encoded(
    naming: Recipes,
    open_encoders: Callable[[], Encoders],
    notify: Callable[[int, int], None],
    options: CacheSection,
    texts: Sequence[TextTask],
) -> int:
    """Encode the texts that are missing; how many they were."""
    missing = {
        task.entry.key for task in texts if not is_sound(task.entry, thorough=options.verify)
    }
    index = CacheIndex(naming.folder)
    with Claims(naming.folder) as claims:
        settings = (options.batch_size, options.dtype, options.verify)
        maker = Maker(naming, open_encoders, notify, index, claims, *settings)
        try:
            maker.begin(missing)
            maker.make(texts)
        finally:
            index.close()
    return maker.encoded


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
