"""Concepts and samples of OneTrainer.

Source: Nerogar/OneTrainer at 23df3832, ``modules/util/config/ConceptConfig.py`` and
``SampleConfig.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .folders import Folder
from .rules import Conversion, Read, Source, Table, UnfitError, flag, number, text, whole
from .vocabulary import set_prompts, set_reading, share_or_keep, sides

_PRIOR = (
    "Its images train as regularization images; dataset.preservation.kind class holds the base "
    "to what it did before."
)
_ROLES = {"STANDARD": "train", "VALIDATION": "validation", "PRIOR_PREDICTION": "regularization"}


def sizes_of(value: Any) -> list[int]:
    """A reader of sizes parted by commas, such as ``512,1024x768``: the largest first."""
    parts = [part.strip().split("x") for part in text(value).split(",") if part.strip()]
    if not parts:
        raise UnfitError("a resolution such as 1024 or 512x768")
    return sorted({sides([whole(side) for side in part]) for part in parts}, reverse=True)


def concept_folder(source: Source, prompts: Sequence[str] | None, tags: Table) -> Folder:
    """One concept as a folder.

    Args:
        prompts: The lines of ``text.prompt_path``; None where it cannot be read.
        tags: Rules of keys that hold where tags are shuffled.
    """
    to = Conversion()
    source.apply(to)
    key = source.prefix
    path = source.read("path", text, "")
    if path:
        to.say("dataset.path", path, f"{key}path", path)
    _repeats(source, to)
    _captions(source, prompts, tags, to)
    if source.read("image.enable_resolution_override", flag, False):
        shown = source.read("image.resolution_override", text, "512")
        found = source.read("image.resolution_override", sizes_of, [512])
        near = "One size of several." if found[1:] else ""
        to.say("dataset.resolution", found[0], f"{key}image.resolution_override", shown, near)
    kind = source.read("type", text, "STANDARD")
    role = _ROLES.get(kind, "train")
    if kind not in _ROLES:
        to.lack(f"{key}type", kind, "There is no such type here; the folder is trained.")
    elif role != "train":
        near = _PRIOR if role == "regularization" else ""
        to.tell("dataset.folders", f"{key}type", kind, near)
    weight = source.read("loss_weight", number, 1.0)
    if weight != 1:
        to.tell("dataset.folders", f"{key}loss_weight", weight)
    return Folder(to, role, weight, key.rstrip("."))


def _repeats(source: Source, to: Conversion) -> None:
    key, value = f"{source.prefix}balancing", source.read("balancing", number, 1.0)
    if source.read("balancing_strategy", text, "REPEATS") == "SAMPLES":
        to.lack(key, value, "An epoch takes all images; set dataset.num_repeats.")
    elif value < 1:
        to.lack(key, value, "An epoch takes all images; give the others more repeats.")
    else:
        near = "" if value == int(value) else "Rounded to whole repeats."
        source.say(to, "dataset.num_repeats", round(value), "balancing", value, near)


def _captions(source: Source, prompts: Sequence[str] | None, tags: Table, to: Conversion) -> None:
    key, kind = f"{source.prefix}text.", source.read("text.prompt_source", text, "sample")
    if kind == "filename":
        to.say("dataset.missing_caption", kind, f"{key}prompt_source", kind)
    if kind in {"filename", "concept"}:
        to.values["dataset.captions.read_files"] = False
    if kind == "sample":
        source.say(to, "dataset.captions.variants", "lines", "text.prompt_source", kind)
        source.off(to, "text.prompt_path", why="Captions lie beside the images.")
    elif kind == "concept" and prompts:
        source_of = source.values.get("text.prompt_path")
        found = "\n".join(prompts)
        to.say("dataset.captions.default", found, f"{key}prompt_path", source_of)
        to.say("dataset.captions.variants", "lines", f"{key}prompt_source", kind)
    elif kind == "concept":
        path = source.values.get("text.prompt_path")
        to.lack(f"{key}prompt_path", path, "It cannot be read; set dataset.captions.default.")
        to.say("dataset.missing_caption", "error", f"{key}prompt_path", path)
    lines = kind != "filename"
    set_reading(to, f"{source.prefix}path", missing_caption="empty", lines=lines, masks=True)
    shuffled = source.read("text.enable_tag_shuffling", flag, False)
    if shuffled:
        near = "Another order in each of 8 epochs."
        to.say("dataset.captions.shuffle", 8, f"{key}enable_tag_shuffling", True, near)
    source.when(shuffled, to, tags)


_OF_ALL: tuple[tuple[str, str, Read], ...] = (
    ("negative_prompt", "negative_prompt", text),
    ("width", "width", whole),
    ("height", "height", whole),
    ("seed", "seed", whole),
    ("diffusion_steps", "steps", whole),
    ("cfg_scale", "guidance", number),
)


def set_samples(sources: Sequence[Source], to: Conversion) -> None:
    """Turn samples into previews; what differs stands behind its prompt."""
    kept = [each for each in sources if each.read("enabled", flag, True)]
    for each in kept:
        each.apply(to)
    prompts = [each.read("prompt", text, "") for each in kept]
    if not prompts:
        return
    own: list[dict[str, Any]] = [{} for _ in kept]
    for key, setting, read in _OF_ALL:
        values = [each.read(key, read) for each in kept]
        if values[0] is not None:
            share_or_keep(to, setting, values, f"samples ({key})", own)
    set_prompts(to, prompts, own, ("samples (prompt)", prompts))
