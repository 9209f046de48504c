"""A base that is on this machine already, for verbs that look at what a run would do."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..config import BaseSection, RunConfig
from ..errors import BaseModelError

if TYPE_CHECKING:
    from ..data.captions.length import TextLimit
    from ..families.family import Family
    from ..weights.base_location import BaseLocation


def locate_local_base(settings: BaseSection, family: Family, has_controls: bool) -> BaseLocation:
    """Find a base as `locate_base` does, without the network.

    Raises:
        InputError: When the base is missing, incomplete, of another architecture, or a hub id that
            was never downloaded.
    """
    from ..bases.locate import locate_base
    from ..config.base_path import names_hub, split_hub

    if not names_hub(settings.path):
        return locate_base(settings, family, has_controls)
    local = settings.model_copy(update={"path": str(_downloaded(settings.path))})
    location = locate_base(local, family, has_controls)
    family.files.folder.check(location.folder, split_hub(settings.path)[1], settings.path)
    return location


def local_text_limit(config: RunConfig, has_controls: bool) -> TextLimit:
    """How long captions may be for a run file's base; loads its tokenizer alone.

    Raises:
        InputError: As `locate_local_base`.
    """
    from ..data.captions.length import TextLimit
    from ..families.registry import get_family

    family = get_family(config.family)
    location = locate_local_base(config.base, family, has_controls)
    return TextLimit(family.text.load_token_counter(location), location.text_length)


def _downloaded(hub_id: str) -> Path:
    from huggingface_hub import try_to_load_from_cache

    from ..config.base_path import split_hub

    repository, part = split_hub(hub_id)
    found = try_to_load_from_cache(repository, "model_index.json")
    if isinstance(found, str):
        return Path(found).parent / part
    raise BaseModelError(
        f"base.path: {hub_id} is not on this machine",
        "a local folder, or a hub id that was downloaded before",
        "`adapter-trainer cache` or `train` will download it; then ask the doctor again.",
    )
