"""What several programs say alike: captions, sizes, masks, previews, text encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath, PureWindowsPath
from typing import Any

from ..config.preview import prompt_line
from ..families.registry import FAMILIES, get_family
from .optimizers import Said
from .program import Given
from .readers import Read, number, text
from .rules import Conversion, Source

NOT_HERE = "It is not here: give it behind the other file, with a second --from."
ONE_SIZE = "There one size is chosen for each image, here it is trained at all."
EIGHT_ORDERS = "Another order in each of 8 epochs; there in each step."
LIKE_UNIFORM = 1.81
"""Standard deviation of a logistic variable, which the logit of a uniform sigma is: pi / sqrt 3."""
AS_LOGIT = (
    "The uniform density, moved by the base's own shift; a normal logit of the same spread is the "
    "nearest."
)


def set_base_shift_of_uniform(source: Source, to: Conversion, key: str) -> None:
    """Say the nearest to a uniform density that the base's own scheduler moves."""
    for setting, value in (("density", "shifted"), ("std", LIKE_UNIFORM)):
        source.say(to, f"training.sigma.{setting}", value, key, source.word(key), AS_LOGIT)


def say_family_of_datasets(files: Given, to: Conversion, key: str) -> None:
    """Say the family where only datasets were given.

    Args:
        key: The program's for the model.
    """
    if files.family:
        to.say("family", files.family, "family", files.family)
    else:
        to.lack(key, "", "A file of datasets alone names no model: set family and base.path.")


def set_text_encoder(to: Conversion, source: Source, train: str, rate: str, near: str = "") -> None:
    """Say whether it is trained, at which rate, and of which rank: that of the adapter.

    Args:
        to: Gets the settings; family, rank and learning rate are in it.
        train: The key that says whether it is trained.
        rate: The key of its learning rate; where it is unset, that of the denoiser counts.
        near: How ours differs; empty for an exact counterpart.
    """
    family, why = to.values["family"], "Its bases have no text encoder that is trained here."
    if not source.on(train):
        source.off(to, train, rate, why="The text encoder stays as it is.")
    elif family not in FAMILIES or not get_family(family).text.trainable:
        to.lack(source.name(train), True, why)
        source.off(to, rate, why=why)
    else:
        section = "training.text_encoder"
        usual = to.values.get("training.optimizer.learning_rate", 1e-4)
        source.say(to, f"{section}.train", True, train, True, near)
        source.say(to, f"{section}.learning_rate", source.read(rate, number, usual), rate)
        if rank := to.values.get("adapter.rank"):
            source.say(to, f"{section}.rank", rank, train)


def set_prompts(
    to: Conversion, prompts: Sequence[str], own: Sequence[Mapping[str, Any]], entry: Said
) -> None:
    """Say what previews are made of.

    Args:
        own: What each says beside its text, which stands behind it.
        entry: The key of the prompts, and what it says.
    """
    lines = [prompt_line(each, row) for each, row in zip(prompts, own, strict=True)]
    to.say("preview.prompts", lines, *entry)


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


def set_samples(
    source: Source,
    to: Conversion,
    samples: Sequence[Mapping[str, Any]],
    settings: Mapping[str, tuple[str, Read]],
    place: str,
    skipped: Sequence[str] = (),
) -> None:
    """Say what previews are made of, from a list of names with values.

    Args:
        settings: Names that previews have, to ours of the section ``preview`` and a reader.
        place: What the list is called there.
        skipped: Names that say something else.
    """

    def read(sample: Mapping[str, Any], name: str, reader: Read) -> Any:
        value = sample.get(name)
        return None if value is None else source.check(f"{place} ({name})", value, reader)

    prompts = [read(each, "prompt", text) or "" for each in samples]
    own: list[dict[str, Any]] = [{} for _ in samples]
    for name in dict.fromkeys(name for each in samples for name in each):
        key = f"{place} ({name})"
        if name in settings:
            setting, reader = settings[name]
            values = [read(each, name, reader) for each in samples]
            if any(each is not None for each in values):
                share_or_keep(to, setting, values, key, own)
        elif name not in ("prompt", *skipped):
            to.lack(key, next(each[name] for each in samples if name in each), NO_PREVIEW)
    set_prompts(to, prompts, own, (f"{place} (prompt)", prompts))


NO_PREVIEW = "Previews have no such setting here."


def set_image_folder(source: Source, to: Conversion, key: str, *controls: str) -> None:
    """Say which folder is trained, and where its control images lie.

    Args:
        key: Of the images' folder.
        controls: Those of the folders of control images; each may name several.
    """
    path = source.read(key, text, "")
    named: list[Said] = []
    for control in filter(source.has, controls):
        found = source.values[control]
        several = found if isinstance(found, list) else [found]
        named += [(control, source.check(control, each, text)) for each in several if each]
    place = PurePath(path)
    pair = place.parent / "control_images"
    if len(named) == 1 and place.name == "training_images" and PurePath(named[0][1]) == pair:
        source.say(to, "dataset.path", str(place.parent), key, path)
        source.say(to, "dataset.layout", "paired", *named[0])
    elif path:
        source.say(to, "dataset.path", path, key)
        for at, (control, value) in enumerate(named, 1):
            folders = [each for _, each in named[:at]]
            source.say(to, "dataset.control_folders", folders, control, value)


def set_list_of_images(source: Source, to: Conversion, key: str, path: str) -> None:
    """Say which file lists the images."""
    table = PureWindowsPath(path) if "\\" in path else PurePath(path)
    near = "The images it lists have to lie in its folder."
    source.say(to, "dataset.path", str(table.parent), key, path, near)
    source.say(to, "dataset.metadata", table.name, key, path, near)


def set_sizes(
    source: Source, to: Conversion, key: str, sizes: Sequence[int], near: str = ""
) -> None:
    """Say the sizes of images: each is trained at all of them, the largest first.

    Args:
        near: How several sizes differ there.
    """
    largest_first = sorted(set(sizes), reverse=True)
    if largest_first:
        source.say(to, "dataset.resolution", largest_first[0], key, source.values.get(key))
    if largest_first[1:]:
        source.say(to, "dataset.more_resolutions", largest_first[1:], key, source.values[key], near)
