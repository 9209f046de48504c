"""What a finished cache was made for, compared with what a run asks of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ...config import RunConfig, dataset_folders
from ...config.defaults import preservation_prompts
from ...config.preview import parse_prompt
from ...data.cache.cached_dataset import CachedDataset
from ...data.cache.slider_dataset import slider_mark
from ...errors import ConfigError
from ...families.family import Family
from ...inference.preview_prompts import check_controls
from .cache_manifest import Manifest


def check_finished(config: RunConfig, cache: Manifest, *, edits: bool) -> None:
    """Refuse a finished cache that was made for something else.

    Args:
        edits: Whether its samples have control images.

    Raises:
        ConfigError: When prompts, a slider, or what is held out are others.
    """
    _check_slider(config, cache.dataset)
    _check_preserved(config, cache, edits=edits)
    _check_held_out(config, cache.dataset)
    if config.preview.every > 0:
        _check_previews(config, cache)


def require_from_prompts(config: RunConfig, variant: str) -> None:
    """Refuse to train a slider on a base that needs more than a prompt.

    Args:
        variant: What the base is trained as; never ``auto``.

    Raises:
        ConfigError: When it edits, fills areas, or takes images apart.
    """
    if config.dataset.slider.is_on and variant != "generate":
        raise ConfigError(
            f"dataset.slider.positive is set, and the base is trained as {variant}",
            "a base that generates from a prompt alone",
            "Name such a base in base.path, or leave dataset.slider out.",
        )


def _check_slider(config: RunConfig, dataset: CachedDataset) -> None:
    if dataset.slider == slider_mark(config.dataset.slider):
        return
    encoded = "the prompts of a slider" if dataset.slider else "images"
    slider = config.dataset.slider
    expected = "images"
    if slider.is_on:
        expected = f"a slider on {max(1, len(slider.neutral))} neutral prompt(s)"
    raise ConfigError(
        f"dataset.slider asks for {expected}, and the finished cache has {encoded} of its own",
        "the prompts that were encoded with the cache, and as many images of each",
        "Encode again with these settings, or take them out of the run file.",
    )


def _check_previews(config: RunConfig, cache: Manifest) -> None:
    encoded = [_encoded_texts(prompt.text) for prompt in cache.prompts]
    if encoded != [_encoded_texts(line) for line in config.preview.prompts]:
        raise ConfigError(
            f"preview.prompts has {len(config.preview.prompts)} prompts that are not the "
            f"{len(encoded)} of the finished cache",
            "the prompts that were encoded with the cache, in their order, with their own --n",
            "Encode again with the new prompts, or set preview.every to 0.",
        )


def _encoded_texts(line: str) -> tuple[str, str | None]:
    """A prompt and its own negative prompt: size, seed and steps of a preview are not encoded."""
    text, flags = parse_prompt(line)
    return text, flags.get("negative_prompt")


def _check_preserved(config: RunConfig, cache: Manifest, *, edits: bool) -> None:
    encoded = [item.prompt for item in cache.dataset.preserved]
    wanted = list(preservation_prompts(config, edits=edits))
    settings = config.dataset.preservation
    # A list of our own choice is that of the base it was encoded for.
    chosen = settings.prompts or settings.kind == "class"
    other = chosen and Counter(encoded) - Counter(wanted)
    if wanted and (not encoded or other):
        raise ConfigError(
            f"dataset.preservation asks for {len(wanted)} prompts that are not the {len(encoded)} "
            "of the finished cache",
            "the prompts that were encoded with the cache",
            "Encode again with these settings, or set dataset.preservation.share to 0.",
        )
    word, known = settings.class_word.strip(), cache.dataset.class_word.strip()
    if settings.holds("output") and word != known:
        raise ConfigError(
            f"dataset.preservation.class_word is {word!r}, and the finished cache was encoded with "
            + (repr(known) if known else "none"),
            "captions that were encoded with the class word",
            "Encode again with these settings, or set dataset.preservation.share to 0.",
        )


def _check_held_out(config: RunConfig, dataset: CachedDataset) -> None:
    """Refuse to train what the run file wants held out, and the cache knows as trained."""
    forms, found = dataset.items.forms, ""
    for number, folder in enumerate(dataset_folders(config.dataset)):
        if folder.role == "validation" and any(
            each.folder == number and not each.validation for each in forms
        ):
            found = f"{folder.place} has the role validation"
    share = config.dataset.validation.share
    # Of a single image nothing is held out, whatever the share is.
    if share and not any(each.validation for each in forms) and dataset.own_images > 1:
        found = f"dataset.validation.share is {share:g}"
    if found:
        raise ConfigError(
            f"{found}, and the finished cache was encoded to train these images",
            "a cache that was encoded with what is held out",
            "Encode again with this setting, or take it out of the run file.",
        )


def unmet_settings(config: RunConfig, dataset: CachedDataset) -> Iterator[str]:
    """Which settings have no effect because a finished cache has nothing of them, in words."""
    counts, again = [form.counts for form in dataset.items.forms], "Encode again for it."
    if config.dataset.flip and not any(each[5] for each in counts):
        yield f"dataset.flip is true, and the finished cache has no mirrored image. {again}"
    if config.dataset.mask.source in {"files", "alpha"} and not any(each[2] for each in counts):
        source = config.dataset.mask.source
        yield f"dataset.mask.source is {source}, and the finished cache has no mask. {again}"


def require_variant(config: RunConfig, family: Family, variant: str) -> None:
    """Refuse what a base does not do as the variant that it is trained as; never ``auto``.

    Raises:
        ConfigError: For a slider or a preview that it cannot make.
    """
    require_from_prompts(config, variant)
    check_controls(config.preview, variant, family)
