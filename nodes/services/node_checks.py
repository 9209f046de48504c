"""Checks what a node's inputs mean: settings, dataset folder and base; queued, and when it runs.

A mistake is told by the node that has it, before others load a model or encode.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...trainer_core.config.training import TextEncoderSection
from ...trainer_core.errors import BaseModelError, ConfigError
from ...trainer_core.families.run_files import load_config
from ..host import comfy_host
from ..host.folders import folder_stamp, headers

if TYPE_CHECKING:
    from ...trainer_core.families.family import Family

_KEPT = 16
# Settings and stamps of folders that could be used. What could not is read again, because a stamp
# says nothing of links. Used by the prompt's thread and the server's; each step is a dict's own.
_usable: dict[tuple[str, ...], None] = {}


def check_settings(values: Mapping[str, Any]) -> None:
    """Check settings against their bounds and one another, as nested in a run file.

    Raises:
        ConfigError: When one is wrong.
    """
    # Prompts come from another node, and without any the interval of previews is a mistake.
    prompts = {"prompts": ["a"]} | dict(values.get("preview", {}))
    load_config({**_with_trained_text(values), "preview": prompts})


def _with_trained_text(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings of a text encoder that another node switches on, as if it had."""
    training = values.get("training", {})
    usual, own = TextEncoderSection(), training.get("text_encoder", {})
    if "train" in own or all(getattr(usual, name) == own[name] for name in own):
        return values
    return {**values, "training": {**training, "text_encoder": {**own, "train": True}}}


def require_slider(values: Mapping[str, Any]) -> None:
    """Check a slider as `check_settings`, and that it has a positive prompt; else `ConfigError`."""
    check_settings(values)
    if not values["dataset"]["slider"]["positive"].strip():
        raise ConfigError(
            "dataset.slider.positive is empty",
            "the prompt that strengths above 0 move to",
            "Write a prompt into dataset.slider.positive.",
        )


def check_dataset(values: Mapping[str, Any]) -> None:
    """Read the folders of a ``dataset`` section as training will, unless nothing has changed there.

    Raises:
        InputError: When settings or folders cannot be used.
    """
    from ...trainer_core.config.dataset import dataset_folders
    from ...trainer_core.data.sources.scan_dataset import scan_all
    from ...trainer_core.types import ANY_CLIPS

    settings = load_config({"dataset": _with_what_is_known(values)}).dataset
    folders = [each.settings.path for each in dataset_folders(settings) if each.settings.path]
    stamps = (settings.model_dump_json(), *(folder_stamp(Path(each)) for each in folders))
    if stamps in _usable:
        return
    within = comfy_host.allowed_folders()
    scan_all(settings, within=within, remembered=headers(), grid=ANY_CLIPS)
    while len(_usable) >= _KEPT:
        _usable.pop(next(iter(_usable)), None)
    _usable[stamps] = None


def _with_what_is_known(values: Mapping[str, Any]) -> dict[str, Any]:
    """A folder by itself without settings that one beside it, of role validation, may be for."""
    holds_out = values.get("folders") or values.get("validation", {}).get("share")
    return {name: value for name, value in values.items() if name != "validation" or holds_out}


def require_in_comfyui(family: Family) -> Family:
    """Give the family of a base, and refuse one that a graph does not train from its file.

    Raises:
        BaseModelError: When ComfyUI does not have the family's model, or trains it as a MODEL.
    """
    if family.headless:
        raise BaseModelError(
            f"a base of {family.title}, and {family.headless}",
            "a base that ComfyUI can generate with",
            "Train with the command line (docs: On the command line), or choose another base.",
        )
    if family.graph is None:
        raise BaseModelError(
            f"a file of {family.title}, which a graph trains as its MODEL",
            "that MODEL, of whichever loader",
            "Connect Load Diffusion Model to Base From Model, or to model of Train LoRA (Quick).",
        )
    return family


def check_base(family: str, values: Mapping[str, Any]) -> str:
    """Find a base and its family, whose name it gives, and check that both and the variant fit.

    The family's name may be ``auto``; the values are the run file's ``base`` section.

    Raises:
        InputError: When there is no such base, or it cannot be trained on.
    """
    from ...trainer_core.bases.locate import detect_base, locate_base
    from ...trainer_core.families.registry import get_family

    name = detect_base(values["path"]) if family == "auto" else family
    require_in_comfyui(get_family(name))
    base = load_config({"family": name, "base": dict(values)}).base
    # What controls the dataset has is checked where both are known.
    edits = base.variant not in {"auto", "generate"}
    locate_base(base, get_family(name), edits, needs_encoders=False)
    return name
