"""Finds the frozen base: of which family it is, and whether it is whole, before anything loads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ..config import BaseSection
from ..config.base_path import (
    DENOISERS,
    base_file,
    local_folder,
    looks_like_file,
    names_hub,
    split_denoiser,
    split_hub,
)
from ..errors import BaseModelError, ConfigError
from ..families.registry import FAMILIES, embedded_family
from ..weights.base_location import EMBEDDED, BaseLocation, folder_identity
from ..weights.diffusers_folder import check_part, class_name, is_whole, read_json
from ..weights.header import WeightFile, check_formats, open_weights
from .distilled import refuse_distilled
from .read_base_adapters import outline_base_adapters

if TYPE_CHECKING:
    from ..families.family import Family
    from ..families.graph_model_denoiser import LentDenoiser

_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")


def locate_base(
    settings: BaseSection,
    family: Family,
    has_controls: bool,
    needs_encoders: bool = True,
    to_train: bool = True,
) -> BaseLocation:
    """Find the base, check that it is whole and of the family, and settle the variant.

    Args:
        settings: The run file's ``base`` section.
        family: The architecture that it has to be of.
        has_controls: Whether the samples have control images.
        needs_encoders: Whether text encoders and VAE are loaded from the base. Without, nothing
            about them is checked, and the identity does not know them.
        to_train: Whether it is to be trained, so that a distilled base needs what makes it right,
            and adapters of the base are looked at.

    Returns:
        The checked base. Nothing is loaded. The network is only used when ``base.path`` looks like
        a hub id and there is no such folder here.

    Raises:
        BaseModelError: When the base is missing, incomplete, of another architecture, in a number
            format that is not read, or distilled (`refuse_distilled`), or an adapter of it is not
            one of the family.
        ConfigError: When ``base.variant`` does not fit the family or the dataset.
    """
    if family.lent is not None:
        return _lent_location(settings, family, family.lent, has_controls, to_train=to_train)
    file = base_file(settings.path)
    if file is not None:
        folder, variant = _open_file(file, settings, family, has_controls)
        part = ""
    else:
        folder, part = _base_folder(settings, family, needs_encoders)
        _check_transformer(folder, part, settings.path, family)
        made_for = family.files.folder.pipelines[_pipeline(folder)] or ""
        edits = partial(_folder_variant, family, folder)
        variant = _settle_variant(
            settings.variant, family, has_controls, edit_variant=edits, made_for=made_for
        )
    encoders = local_folder(settings.encoders, "base.encoders") if settings.encoders else folder
    if not is_whole(folder, "scheduler"):
        check_part(encoders, "scheduler", "base.path")
    parts = family.files.folder.encoder_parts if needs_encoders else ()
    if parts and variant != "generate":
        parts = (*parts, *family.files.folder.edit_parts)
    part = part or DENOISERS[0]
    if parts and family.files.folder.sees(file, folder / part):
        parts = (*parts, *family.files.folder.seeing_parts)
    _check_parts(settings, family, file, encoders=encoders, parts=parts)
    text_length = settings.text_length or family.text.length
    location = BaseLocation(
        folder=folder,
        encoders=encoders,
        variant=variant,
        text_length=text_length,
        identity=folder_identity(encoders, parts, (family.name, variant, str(text_length))),
        embedded=settings.path == EMBEDDED,
        file=file,
        part=part,
    )
    if to_train:
        refuse_distilled(settings, family, location)
        outline_base_adapters(settings, family)
    return location


def _lent_location(
    settings: BaseSection,
    family: Family,
    denoiser: LentDenoiser,
    has_controls: bool,
    *,
    to_train: bool,
) -> BaseLocation:
    """The place of a denoiser that has none: it is in memory."""
    edits = lambda: family.variants[-1]  # noqa: E731 - the one that is not generate
    variant = _settle_variant(
        settings.variant, family, has_controls, edit_variant=edits, made_for=""
    )
    nowhere = Path(denoiser.title)
    text_length, identity = settings.text_length or family.text.length, denoiser.fingerprint
    location = BaseLocation(
        nowhere, nowhere, variant, text_length=text_length, identity=identity, embedded=False
    )
    if to_train:
        refuse_distilled(settings, family, location)
    return location


def _check_parts(
    settings: BaseSection,
    family: Family,
    file: Path | None,
    encoders: Path,
    parts: Sequence[str],
) -> None:
    """Refuse a base without text encoder and VAE where these are needed."""
    if parts and file is not None and not settings.encoders:
        raise BaseModelError(
            f"base.path: {file} holds the denoiser alone, and base.encoders is not set",
            "a Diffusers folder with text encoder and VAE",
            f"Set base.encoders to a {family.title} folder that has {', '.join(parts)}.",
        )
    for part in parts:
        check_part(encoders, part, "base.encoders" if settings.encoders else "base.path")


def _open_file(
    path: Path, settings: BaseSection, family: Family, has_controls: bool
) -> tuple[Path, str]:
    """Check the header of a single file, and choose the settings that the pack has for it."""
    file = open_weights(path)
    found = trainable_family(file)
    if found != family.name:
        raise _wrong_family(f"base.path: {path} is a file of {found}", family.title, family)
    made_for = family.files.single_file.edit_variant(file)
    variant = _settle_variant(
        settings.variant, family, has_controls, edit_variant=lambda: made_for, made_for=made_for
    )
    spec = family.files.single_file
    return spec.configs / spec.config_of(file, variant), variant


def _base_folder(settings: BaseSection, family: Family, needs_encoders: bool) -> tuple[Path, str]:
    """The Diffusers folder, and the denoiser in it that ``base.path`` names (`split_denoiser`)."""
    if settings.path != EMBEDDED:
        if names_hub(settings.path):
            return _download(settings, family, needs_encoders)
        return split_denoiser(local_folder(settings.path, "base.path"))
    if family.embedded is None:
        embedded = embedded_family().name
        raise BaseModelError(
            f"family is {family.name!r} and base.path is 'embedded'",
            f"family: {embedded}, which is what the embedded base is",
            f"Set family: {embedded}, or name a {family.title} folder as base.path.",
        )
    return family.embedded, ""


def _download(settings: BaseSection, family: Family, needs_encoders: bool) -> tuple[Path, str]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    hub_id, part = split_hub(settings.path)
    parts: Sequence[str] = (part or DENOISERS[0], "scheduler")
    if needs_encoders and not settings.encoders:
        spec = family.files.folder
        parts = (*parts, *spec.encoder_parts, *spec.edit_parts, *spec.seeing_parts)
    patterns = ["model_index.json", *(f"{part}/{name}" for part in parts for name in _FILES)]
    try:
        return Path(snapshot_download(hub_id, allow_patterns=patterns)), part
    except (HfHubHTTPError, OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise BaseModelError(
            f"base.path: {settings.path} is not a local folder, and not on the hub ({reason})",
            "a local Diffusers folder, or a hub id that can be downloaded",
            "Correct base.path, or check the network and your access to the repository.",
        ) from error


def _check_transformer(folder: Path, named: str, path: str, family: Family) -> None:
    pipeline, pipelines = _pipeline(folder), family.files.folder.pipelines
    if pipeline not in pipelines:
        index = folder / "model_index.json"
        raise _wrong_family(f"{index} says {pipeline}", ", ".join(pipelines), family)
    family.files.folder.check(folder, named, path)
    part = named or DENOISERS[0]
    check_part(folder, part, "base.path")
    config = folder / part / "config.json"
    name = class_name(config)
    if name != family.files.single_file.class_name:
        raise _wrong_family(f"{config} says {name}", family.files.single_file.class_name, family)


def _wrong_family(found: str, expected: str, family: Family) -> BaseModelError:
    return BaseModelError(
        found,
        f"a base of family {family.name}: {expected}",
        f"Set family to what the base is, or name another base as base.path. {NO_FAMILY}",
    )


def _settle_variant(
    variant: str,
    family: Family,
    has_controls: bool,
    edit_variant: Callable[[], str],
    made_for: str,
) -> str:
    alone = made_for if made_for in {*family.latents.filled, *family.latents.layered} else ""
    if variant not in {"auto", *family.variants}:
        raise ConfigError(
            f"base.variant: {variant} with family: {family.name}",
            f"one of auto, {', '.join(family.variants)}",
            "Leave base.variant at auto, or choose one of these.",
        )
    if variant != alone and (alone or variant in {*family.latents.filled, *family.latents.layered}):
        if variant != "auto":
            raise _unlike_the_base(variant, alone, family)
        return alone
    if alone:
        return alone
    if has_controls and not any(each != "generate" for each in family.variants):
        raise ConfigError(
            f"family: {family.name}, and the dataset has control images",
            f"no control images: {family.title} generates from text alone",
            "Take the control images out of the dataset, or choose a base that edits images.",
        )
    if variant == "auto":
        return edit_variant() if has_controls else "generate"
    if has_controls == (variant == "generate"):
        have = "has control images" if has_controls else "has no control images"
        raise ConfigError(
            f"base.variant: {variant}, but the dataset {have}",
            "an edit variant with control images, 'generate' without",
            "Leave base.variant at auto, or change dataset.path or dataset.layout.",
        )
    return variant


def _unlike_the_base(variant: str, alone: str, family: Family) -> ConfigError:
    """A variant of a base that does nothing else (``alone``), or that this base does not do."""
    if (alone or variant) in family.latents.filled:
        does = "fills areas" if alone else "does not fill areas"
    else:
        does = "takes images apart into layers" if alone else "was not made for layers"
    return ConfigError(
        f"base.variant: {variant}, but the base {does}",
        "the variant that the base was made for",
        "Leave base.variant at auto, or name another base as base.path.",
    )


def _folder_variant(family: Family, folder: Path) -> str:
    """What ``auto`` means for a Diffusers folder when there are control images."""
    pipeline, needed = _pipeline(folder), family.files.folder.edit_parts
    variant = family.files.folder.pipelines[pipeline]
    if variant is not None:
        return variant
    if needed and all(is_whole(folder, part) for part in needed):
        # A base for both tasks names only one of its pipelines.
        return next(each for each in family.variants if each != "generate")
    raise BaseModelError(
        f"the dataset has control images, and {folder} is a {pipeline}",
        "a base that was made for editing",
        "Name an edit base as base.path. To train editing into this base all the same, set "
        "base.variant: edit.",
    )


NO_FAMILY = "In ComfyUI, Base From Model trains any model that it loads."
"""What to do with a base that no family knows."""

_NAMED = 3  # names that a message gives as examples


def detect_base(path: str | Path) -> str:
    """Find the family's name of a base, and refuse a file that could not be trained on.

    A base is a Diffusers folder, a single file, or ``embedded``. Reads a header or two small files,
    never a weight.

    Raises:
        BaseModelError: When there is nothing, it is damaged, no family's, in a number format that
            is not read, or a model of a family that is not trained here.
    """
    if str(path) == EMBEDDED:
        return embedded_family().name
    place = Path(path).expanduser()
    if place.is_dir():
        return _folder_family(split_denoiser(place)[0])
    if place.is_file():
        return trainable_family(open_weights(place))
    kind = "file" if looks_like_file(str(path)) else "folder or file"
    raise BaseModelError(
        f"base.path: {path} does not exist",
        f"a {kind} with a base model",
        "Correct the path, or download the model first.",
    )


def detect_variant(path: str | Path, family: Family) -> str | None:
    """Find what a base was made for, by its header and its name: ``generate``, or its edit variant.

    None when it does both.

    Raises:
        BaseModelError: When it cannot be read.
    """
    if str(path) == EMBEDDED or family.files.folder.does_both:
        return None
    place = Path(path).expanduser()
    if place.is_file():
        file = open_weights(place)
        return (
            family.files.single_file.edit_variant(file)
            if family.files.single_file.edits(file)
            else "generate"
        )
    place, needed = split_denoiser(place)[0], family.files.folder.edit_parts
    variant = family.files.folder.pipelines.get(_pipeline(place))
    both = bool(needed) and all(is_whole(place, part) for part in needed)
    return variant or (None if both else "generate")


def count_numbers(path: str | Path, family: Family) -> int:
    """How many numbers a base's layers hold by their sizes; `BaseModelError` if unread."""
    place = family.embedded if str(path) == EMBEDDED else Path(path).expanduser()
    assert place is not None
    if place.is_file():
        usual = read_json(
            family.files.single_file.configs / family.variants[0] / "transformer" / "config.json"
        )
        config = {
            **usual,
            **family.files.single_file.settings(family.files.single_file.tidy(open_weights(place))),
        }
    else:
        folder, part = split_denoiser(place)
        config = read_json(folder / (part or DENOISERS[0]) / "config.json")
    return family.layers.sizes(config).numbers


def trainable_family(file: WeightFile) -> str:
    """As `file_family`, and refuse what could not be trained on; errors as of `detect_base`."""
    name = file_family(file)
    check_formats(file)
    spec = FAMILIES[name].files.single_file
    spec.settings(spec.tidy(file))
    return name


def file_family(file: WeightFile) -> str:
    """The name of the family of an opened single file.

    Raises:
        BaseModelError: When the names in it are not a family's, or fit several.
    """
    found = [family for family in FAMILIES.values() if family.files.detect(file.tensors)]
    if len(found) == 1:
        return found[0].name
    names = ", ".join(sorted(file.tensors)[:_NAMED])
    known = ", ".join(family.title for family in FAMILIES.values())
    raise file.broken(
        f"its {len(file.tensors)} tensors ({names}, ...) are of no family that is known here",
        f"the denoiser of one of these: {known}",
        f"Name the file of the diffusion model itself, not of a text encoder or VAE. {NO_FAMILY}",
    )


def _folder_family(folder: Path) -> str:
    pipeline = _pipeline(folder)
    known = {kind: each.name for each in FAMILIES.values() for kind in each.files.folder.pipelines}
    if pipeline in known:
        return known[pipeline]
    raise BaseModelError(
        f"{folder / 'model_index.json'} says {pipeline}",
        f"one of {', '.join(known)}",
        f"Name a base of one of these families. {NO_FAMILY}",
    )


def _pipeline(folder: Path) -> str:
    """The class of Diffusers' pipeline that a folder is for."""
    index = folder / "model_index.json"
    if index.is_file():
        return class_name(index)
    raise BaseModelError(
        f"base.path: {folder} has no model_index.json",
        "a Diffusers folder",
        "Name the folder that holds model_index.json as base.path.",
    )
