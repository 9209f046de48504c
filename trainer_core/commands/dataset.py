"""``dataset``: report a folder of pictures before anything is encoded or trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ..config import RunConfig
from ..errors import ConfigError, DatasetError, InputError
from ..families.run_files import load_config
from ..filesystem.storage import given_path
from ..types import Sample
from .arguments import Arguments
from .console import show_report
from .local_base import local_text_limit


def run(arguments: Arguments) -> int:
    """Report a dataset; returns 2 when `train` would refuse it.

    Raises:
        InputError: When there is no such folder, or a setting is wrong.
    """
    word = arguments.word("a dataset folder or a run file", default="")
    place = given_path(word, "a dataset folder or a run file") if word else None
    if place is not None and place.is_file():
        config = arguments.config()
    else:
        folder = [f"dataset.path={place.absolute()}"] if place is not None else []
        config = load_config(None, [*arguments.settings, *folder])
    report, refusal = dataset_report(config)
    show_report(report, as_json=arguments.json)
    return 2 if refusal else 0


def dataset_report(config: RunConfig) -> tuple[Mapping[str, Any], DatasetError | None]:
    """Describe the dataset that a run file names.

    Args:
        config: The run file; its family decides sizes.

    Returns:
        The report, and why `train` would refuse the dataset, or None.

    Raises:
        ConfigError: When no dataset is named.
        DatasetError: When there is no such folder.
    """
    if not config.dataset.path:
        raise ConfigError(
            "dataset.path is not set",
            "a folder with pictures and captions",
            "Name the folder behind the verb, or set dataset.path.",
        )
    from ..data.buckets import plan_buckets
    from ..data.folder import scan_all
    from ..families.registry import get_family

    family = get_family(config.family)
    found = scan_all(config.dataset, stop=False)
    plan = plan_buckets(found.samples, config.dataset, family.size_multiple, family.control_size)
    captions = [sample.caption for sample in found.samples]
    lengths, long = _caption_tokens(config, found.samples)
    report = {
        "folder": config.dataset.path,
        "samples": len(found.samples),
        "regularization_images": sum(sample.regularization for sample in found.samples),
        "with_captions": sum(bool(caption.strip()) for caption in captions),
        "controls": _counted(len(sample.controls) for sample in found.samples),
        "picture_sizes": _counted(f"{sample.width}x{sample.height}" for sample in found.samples),
        "caption_characters": _spread([len(caption) for caption in captions]),
        "caption_tokens": lengths,
        "buckets": plan.counts(),
        "notes": [*plan.notes, *long],
        "problems": found.problems,
        "train_would_stop": str(found.refusal.found) if found.refusal else None,
    }
    return report, found.refusal


def _caption_tokens(
    config: RunConfig, samples: Sequence[Sample]
) -> tuple[dict[str, int] | None, Sequence[str]]:
    """The tokens of the captions, and what is cut off; nothing where the base is not at hand."""
    from ..data.captions import caption_tokens, long_caption_notes

    try:
        limit = local_text_limit(config, any(sample.controls for sample in samples))
    except InputError:
        return None, ()
    counted = caption_tokens(samples, limit.count)
    spread = _spread(list(counted.values()))
    notes = long_caption_notes(counted, limit.tokens, config.base.text_length)
    return None if spread is None else {**spread, "limit": limit.tokens}, notes


def _counted(values: Any) -> dict[str, int]:
    return {str(value): count for value, count in Counter(values).most_common()}


def _spread(numbers: list[int]) -> dict[str, int] | None:
    if not numbers:
        return None
    ordered = sorted(numbers)
    return {
        "shortest": ordered[0],
        "median": ordered[len(ordered) // 2],
        "longest": ordered[-1],
    }
