"""The field's words for schedules, sizes and previews, and what they are called here."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath, PureWindowsPath
from typing import Any

from ..config.preview import prompt_line
from .rules import (
    Conversion,
    Source,
    Table,
    UnfitError,
    flag,
    number,
    numbers,
    text,
    texts,
    whole,
    word_of,
)

Said = tuple[str, Any]
"""A key with what it says there."""

ENCODED = "Images and captions are always encoded once, and kept on disk."
AUGMENTED = "Images are only mirrored and cropped here: all views are encoded once."
"""Why what several programs have is left out."""

_SCHEDULES = {
    "constant": "constant",
    "constant_with_warmup": "constant",
    "linear": "linear",
    "cosine": "cosine",
    "cosine_annealing": "cosine",
    "cosine_with_restarts": "cosine_restarts",
    "cosine_with_hard_restarts": "cosine_restarts",
    "cosine_with_min_lr": "cosine",
    "polynomial": "polynomial",
    "warmup_stable_decay": "warmup_stable_decay",
    "rex": "rex",
    "one_cycle": "one_cycle",
}


_REX = "There the rate stays high for longer: (1 - p) / (1 - 0.9 p), here the paper's half of p."


def set_schedule(
    to: Conversion,
    name: Said,
    *,
    cycles: Said | None = None,
    power: Said | None = None,
    min_ratio: Said | None = None,
    decay_share: Said | None = None,
    near: str = "",
    named: bool = True,
) -> str:
    """Say which schedule, and those of its numbers that mean something with it.

    Args:
        name: Its key and its name, as Diffusers or Transformers call it.
        cycles: How often it restarts.
        min_ratio: Last learning rate over the highest.
        decay_share: Share of the run in which warmup_stable_decay falls.
        near: How the schedule of that name differs there.
        named: Whether the file says its name.

    Returns:
        Its name here.
    """
    key, value = name
    ours = _SCHEDULES.get(str(value).lower())
    if ours is None:
        to.lack(key, value, "There is no such schedule here; the learning rate stays constant.")
        return "constant"
    if ours == "cosine_restarts" and (cycles is None or cycles[1] <= 1):
        ours, cycles = "cosine", None
    near = _REX if ours == "rex" else near
    to.say("training.schedule.name", ours, key, value, near, stated=named)
    section = "training.schedule"
    if ours == "cosine_restarts" and cycles is not None:
        to.say(f"{section}.cycles", int(cycles[1]), *cycles)
    if ours == "polynomial" and power is not None:
        to.say(f"{section}.power", power[1], *power)
    if ours == "warmup_stable_decay" and decay_share is not None:
        to.say(f"{section}.decay_share", decay_share[1], *decay_share)
    if ours != "constant" and min_ratio is not None and min_ratio[1]:
        to.say(f"{section}.min_ratio", min_ratio[1], *min_ratio)
    return ours


def set_warmup(source: Source, to: Conversion, key: str, schedule: str) -> None:
    """Say how long the rate rises, where a schedule of Diffusers' names has that."""
    if schedule == "constant" and source.read(key, whole, 0):
        source.off(to, key, why="The schedule constant has no warm-up there.")
    else:
        source.take(to, key, "training.schedule.warmup_steps", whole)


def set_prompts(
    to: Conversion,
    prompts: Sequence[str],
    own: Sequence[Mapping[str, Any]],
    entry: Said,
    controls: Sequence[Sequence[str]] = (),
    key: str = "",
) -> None:
    """Say what previews are made of.

    Args:
        own: What each says beside its text, which stands behind it.
        entry: The key of the prompts, and what it says.
        controls: Files of control images, of each.
        key: That of the control images.
    """
    lines = [prompt_line(each, row) for each, row in zip(prompts, own, strict=True)]
    to.say("preview.prompts", lines, *entry)
    if any(controls):
        to.say("preview.controls", controls, key, controls)


LIKE_UNIFORM = 1.81
"""Standard deviation of a logistic variable, which the logit of a uniform sigma is: pi / sqrt 3."""

_AS_LOGIT = (
    "The uniform density, moved by the base's own shift; a normal logit of the same spread is the "
    "nearest."
)


def set_base_shift_of_uniform(to: Conversion, entry: Said) -> None:
    """Say the nearest to a uniform density that the base's own scheduler moves."""
    to.say("training.sigma.density", "shifted", *entry, _AS_LOGIT)
    to.say("training.sigma.std", LIKE_UNIFORM, *entry, _AS_LOGIT)


_TRACKERS = {
    "tensorboard": ["tensorboard"],
    "wandb": ["wandb"],
    "all": ["tensorboard", "wandb"],
    "none": [],
}


def set_trackers(source: Source, key: str, to: Conversion, usual: str = "") -> None:
    """Say who gets the numbers of a run, as accelerate calls them.

    Args:
        usual: What holds where the file does not say it; nothing leaves it to our default.
    """
    who = source.read(key, text, usual)
    if who in _TRACKERS:
        source.say(to, "metrics.trackers", _TRACKERS[who], key, who)
    elif who:
        to.lack(source.prefix + key, who, "There is no such tracker here.")


def set_masks(source: Source, to: Conversion, key: str, table: Table, why: str = "") -> None:
    """Say whether masks are read, and what they weigh.

    Args:
        key: What says whether.
        table: Rules of keys that hold with masks.
        why: Said of these keys without masks.
    """
    masked = source.read(key, flag, False)
    origin = "auto" if masked else "none"
    to.say("dataset.mask.source", origin, key, masked, stated=key in source.values)
    source.when(masked, to, table, why)


def share_or_keep(
    to: Conversion, setting: str, values: Sequence[Any], key: str, own: list[dict[str, Any]]
) -> None:
    """Set what previews share, and keep what they do not behind their prompts.

    Args:
        setting: Of the section ``preview``.
        values: Of each preview; None where one says nothing.
    """
    first = next(each for each in values if each is not None)
    # Seeds count up by themselves.
    if len(set(values)) == 1 and (setting != "seed" or len(values) == 1):
        to.say(f"preview.{setting}", first, key, first)
        return
    for row, value in zip(own, values, strict=True):
        row |= {setting: value} if value is not None else {}
    to.tell("preview.prompts", key, first)


def set_image_folder(to: Conversion, images: Said, controls: Sequence[Said] = ()) -> None:
    """Say which folder is trained, and where its control images lie.

    Args:
        images: The key of the images' folder, and its path; an empty one says nothing.
        controls: The same of the folders of control images.
    """
    place = PurePath(images[1])
    if len(controls) == 1 and place.name == "training_images":
        key, control = controls[0]
        if PurePath(control) == place.parent / "control_images":
            to.say("dataset.path", str(place.parent), *images)
            to.say("dataset.layout", "paired", key, control)
            return
    if images[1]:
        to.say("dataset.path", images[1], *images)
        for place, (key, control) in enumerate(controls):
            named = [each for _, each in controls[: place + 1]]
            to.say("dataset.control_folders", named, key, control)


def set_table(to: Conversion, key: str, path: str) -> None:
    """Say which file lists the images."""
    table = PureWindowsPath(path) if "\\" in path else PurePath(path)
    near = "The images it lists have to lie in its folder."
    to.say("dataset.path", str(table.parent), key, path, near)
    to.say("dataset.metadata", table.name, key, path, near)


def set_reading(
    to: Conversion,
    key: str,
    *,
    missing_caption: str,
    lines: bool = False,
    subfolders: bool = False,
    masks: bool = False,
) -> None:
    """Say how a program reads a folder, where nothing else says it.

    Args:
        missing_caption: What becomes of an image without caption.
        lines: Whether each line of a caption file is a caption.
        subfolders: Whether it reads folders below.
        masks: Whether it looks for masks.
    """
    for what, setting, value in (
        # Neither the names of folders nor a metadata file says anything there.
        ("names of folders", "dataset.layout", "flat"),
        ("masks", "dataset.mask.source", "auto" if masks else "none"),
        ("images without caption", "dataset.missing_caption", missing_caption),
        ("captions of a file", "dataset.captions.variants", "lines" if lines else "one"),
        ("folders below", "dataset.subfolders", subfolders),
    ):
        if setting not in to.values:
            to.say(setting, value, f"{key} ({what})", value, stated=False)


def set_sizes(to: Conversion, sizes: Sequence[int], key: str, value: Any, near: str = "") -> None:
    """Say the sizes of images, the largest first: each image is trained at all of them.

    Args:
        value: What the key says.
        near: How several sizes differ there.
    """
    if sizes:
        to.say("dataset.resolution", sizes[0], key, value)
    if sizes[1:]:
        to.say("dataset.more_resolutions", sizes[1:], key, value, near)


ONE_SIZE = "There one size is chosen for each image, here it is trained at all."


def side_of(width: float, height: float) -> int:
    """The resolution whose square has as many pixels as an image."""
    return round(math.sqrt(width * height))


def sides(value: Any) -> int:
    """A reader of ``[width, height]``, or of one side, as a resolution."""
    found = numbers(value) if isinstance(value, list | tuple) else [number(value)] * 2
    if len(found) == 1:
        found *= 2
    if len(found) != 2 or min(found) <= 0:
        raise UnfitError("a number of pixels, or [width, height]")
    return side_of(*found)


_DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16", "bfloat_16"), "bf16"),
    **dict.fromkeys(("fp32", "float", "float32", "float_32", "tfloat_32"), "fp32"),
    **dict.fromkeys(_HALF := ("fp16", "float16", "float_16"), "fp16"),
}
PRECISION = word_of({**_DTYPES, "no": "fp32", **dict.fromkeys(_HALF, "auto")})
"""A reader of the number format that a run computes in; fp16 leaves it to the device."""

PRECISION_NEAR = "fp16 leaves it to the device."
PRECISION_EXACT = ("bf16", "fp32")

FILE_DTYPE = word_of(_DTYPES)
"""A reader of the number format of a file."""


def containing(value: Any) -> list[str]:
    """A reader of parts of layer names, as regular expressions on whole names."""
    return [f".*{re.escape(each.strip())}.*" for each in texts(value) if each.strip()]


def ending(value: Any) -> list[str]:
    """A reader of PEFT's target modules: ends of layer names, at a dot."""
    return [rf"(.*\.)?{re.escape(each.strip())}" for each in texts(value) if each.strip()]


_NONE = "Its bases have no text encoder that is trained here."


def set_text_encoder(to: Conversion, source: Source, train: str, rate: str, near: str = "") -> None:
    """Say whether it is trained, at which rate, and of which rank: that of the adapter.

    Args:
        to: Gets the settings; family, rank and learning rate are in it.
        train: The key that says whether it is trained.
        rate: The key of its learning rate; where it is unset, that of the denoiser counts.
        near: How ours differs; empty for an exact counterpart.
    """
    from ..families.registry import FAMILIES, get_family

    keys = tuple(source.prefix + key for key in (train, rate))
    if not source.read(train, flag, False):
        for key, place in zip((train, rate), keys, strict=True):
            if key in source.values:
                to.off(place, source.values[key], "The text encoder stays as it is.")
        return
    if to.values["family"] not in FAMILIES or not get_family(to.values["family"]).text.trainable:
        to.lack(keys[0], True, _NONE)
        if rate in source.values:
            to.off(keys[1], source.values[rate], _NONE)
        return
    section = "training.text_encoder"
    to.say(f"{section}.train", True, keys[0], True, near)
    usual = to.values.get("training.optimizer.learning_rate", 1e-4)
    value = source.read(rate, number, usual)
    source.say(to, f"{section}.learning_rate", value, rate, source.values.get(rate, usual))
    rank = to.values.get("adapter.rank")
    if rank is not None:
        to.say(f"{section}.rank", rank, keys[0], rank)
