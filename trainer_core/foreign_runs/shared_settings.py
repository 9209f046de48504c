"""What several programs say alike: captions, sizes, masks, previews, text encoders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath, PureWindowsPath
from typing import Any

from ..config.preview import prompt_line
from ..families.registry import FAMILIES, get_family
from .conversion import Conversion, Source
from .optimizers import Said
from .program import ConversionInput
from .value_readers import Read, UnfitError, number, text, texts, whole

NOT_HERE = "It is not here: give it behind the other file, with a second --from."
ONE_SIZE = "There one size is chosen for each image, here it is trained at all."


def say_family_of_datasets(files: ConversionInput, to: Conversion, key: str) -> None:
    """Say the family where only datasets were given."""
    if files.family:
        to.set("family", files.family, "family", files.family)
    else:
        to.missing(key, "", "A file of datasets alone names no model: set family and base.path.")


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
        source.unused(to, train, rate, why="The text encoder stays as it is.")
    elif family not in FAMILIES or not get_family(family).text.trainable:
        to.missing(source.name(train), True, why)
        source.unused(to, rate, why=why)
    else:
        section = "training.text_encoder"
        usual = to.values.get("training.optimizer.learning_rate", 1e-4)
        source.set(to, f"{section}.train", True, train, True, near)
        source.set(to, f"{section}.learning_rate", source.read(rate, number, usual), rate)
        if rank := to.values.get("adapter.rank"):
            source.set(to, f"{section}.rank", rank, train)


_OF_PREVIEWS: Mapping[str, tuple[Read, Sequence[str]]] = {
    "width": (whole, ("w", "width")),
    "height": (whole, ("h", "height")),
    "seed": (whole, ("d", "seed")),
    "steps": (whole, ("s", "steps", "sample_steps", "diffusion_steps", "num_inference_steps")),
    "guidance": (number, ("l", "g", "cfg", "cfg_scale", "guidance_scale", "scale")),
    "negative_prompt": (text, ("n", "neg", "negative_prompt")),
    "frames": (whole, ("f", "frame_count")),
}
"""Our settings of the section ``preview``, to a reader and what samples call them."""
_CONTROLS = ("ci", "images", "ctrl_img", "ctrl_img_1", "ctrl_img_2", "ctrl_img_3")


def set_previews(
    source: Source,
    to: Conversion,
    samples: Sequence[Mapping[str, Any]],
    place: str,
    names: Sequence[str],
) -> None:
    """Say what previews are made of: what all share, and the rest behind each prompt.

    Args:
        names: What the program reads of a sample beside its prompt.
    """
    key = f"{place} (prompt)"
    prompts = [source.check(key, each.get("prompt") or "", text) for each in samples]
    own: list[dict[str, Any]] = [{} for _ in samples]
    for setting, (_, words) in _OF_PREVIEWS.items():
        known = [each for each in words if each in names]
        values = [next((e[n] for n in known if e.get(n) is not None), None) for e in samples]
        stated = [n for n in known if any(each.get(n) is not None for each in samples)]
        if stated:
            _set_option(to, setting, values, f"{place} ({', '.join(stated)})", own=own)
    for name in dict.fromkeys(name for each in samples for name in each):
        if name not in ("prompt", *names):
            value = next(each[name] for each in samples if name in each)
            to.missing(f"{place} ({name})", value, "Previews have no such setting here.")
    lines = [prompt_line(each, row) for each, row in zip(prompts, own, strict=True)]
    to.set("preview.prompts", lines, key, prompts)
    keys = [each for each in _CONTROLS if each in names]
    controls = [
        [path for key in keys if each.get(key) for path in source.check(place, each[key], texts)]
        for each in samples
    ]
    if any(controls):
        to.set("preview.controls", controls, f"{place} (control images)", controls)


def _set_option(
    to: Conversion, setting: str, values: Sequence[Any], key: str, own: list[dict[str, Any]]
) -> None:
    """Set what previews share, and keep what they do not for the line of each prompt."""
    read, _ = _OF_PREVIEWS[setting]
    try:
        found = [None if each is None else read(each) for each in values]
    except UnfitError as error:
        to.missing(key, values, f"It is not {error}.")
        return
    first = next(each for each in found if each is not None)
    shared = len(set(found)) == 1
    # Seeds count up by themselves.
    if setting == "frames" or (shared and (setting != "seed" or len(found) == 1)):
        to.set(f"preview.{setting}", first, key, first, "" if shared else "All have one length.")
        return
    for row, value in zip(own, found, strict=True):
        row |= {setting: value} if value is not None else {}
    to.applied("preview.prompts", key, first)


def set_image_folder(source: Source, to: Conversion, key: str, *controls: str) -> None:
    """Say which folder is trained, and where its control images lie.

    Args:
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
        source.set(to, "dataset.path", str(place.parent), key, path)
        source.set(to, "dataset.layout", "paired", *named[0])
    elif path:
        source.set(to, "dataset.path", path, key)
        for at, (control, value) in enumerate(named, 1):
            folders = [each for _, each in named[:at]]
            source.set(to, "dataset.control_folders", folders, control, value)


def set_list_of_images(source: Source, to: Conversion, key: str, path: str) -> None:
    """Say which file lists the images."""
    table = PureWindowsPath(path) if "\\" in path else PurePath(path)
    near = "The images it lists have to lie in its folder."
    source.set(to, "dataset.path", str(table.parent), key, path, near)
    source.set(to, "dataset.metadata", table.name, key, path, near)


def set_sizes(
    source: Source, to: Conversion, key: str, sizes: Sequence[int], near: str = ""
) -> None:
    """Say the sizes of images: each is trained at all of them, the largest first."""
    largest_first = sorted(set(sizes), reverse=True)
    if largest_first:
        source.set(to, "dataset.resolution", largest_first[0], key, source.values.get(key))
    if largest_first[1:]:
        source.set(to, "dataset.more_resolutions", largest_first[1:], key, source.values[key], near)
