"""``sample``: draw images with base and adapter."""

from __future__ import annotations

from collections.abc import Mapping

from ..config import PreviewSection, RunConfig
from ..config.rules import check_config
from ..errors import ConfigError, InputError
from ..filesystem.storage import given_path
from .arguments import Arguments
from .console import show, show_json
from .operations import clear_leftovers

_OWN = ("adapter", "prompt", "control", "strength", "output")
_SHORT = tuple(name for name in PreviewSection.model_fields if name not in {"prompts", "controls"})
"""Settings of `preview` that may be written without the section."""


def run(arguments: Arguments) -> int:
    """Sample the prompts and print the images' paths; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or drawing failed.
    """
    own, rest = arguments.split(_OWN)
    short, rest = rest.split(_SHORT)
    settings = [f"preview.{name}={value}" for name, values in short.items() for value in values]
    config = Arguments(rest.words, (*rest.settings, *settings)).config()
    config = with_prompts(config, own.get("prompt", []), own.get("control", []))
    adapter = given_path(own["adapter"][-1], "an adapter file") if "adapter" in own else None
    if adapter is not None and not adapter.is_file():
        raise InputError(
            f"adapter: there is no file {adapter}", "an adapter file", "Check the path."
        )
    output = given_path(own.get("output", ["samples"])[-1], "a folder").absolute()
    strength = _number(own)
    from ..data.cache import cache_folder
    from ..data.cache_file import cache_folders
    from ..inference.pipeline import sample_images

    clear_leftovers(output, *cache_folders(cache_folder(config)), as_json=arguments.json)
    for path in sample_images(config, adapter, output, strength):
        if arguments.json:
            show_json({"event": "picture", "path": path})
        else:
            show(str(path))
    return 0


def with_prompts(config: RunConfig, prompts: list[str], controls: list[str]) -> RunConfig:
    """Put the command's prompts in the place of the run file's.

    Args:
        config: The run file.
        prompts: Texts to draw; none keeps those of the run file.
        controls: Paths of control images for every prompt; none keeps those of the run file.

    Raises:
        ConfigError: When there is nothing to draw, or the controls do not fit the base's variant.
    """
    texts = prompts or config.preview.prompts
    if not texts:
        raise ConfigError(
            "no prompt",
            "prompt=TEXT on the command line, or preview.prompts in the run file",
            "Add prompt='a picture of ...' to the command.",
        )
    changes: dict[str, object] = {"prompts": list(texts)}
    if controls:
        paths = [str(given_path(path, "a control picture").absolute()) for path in controls]
        changes["controls"] = [paths for _ in texts]
    elif prompts:
        changes["controls"] = []
    preview = config.preview.model_copy(update=changes)
    changed = config.model_copy(update={"preview": preview})
    check_config(changed, "the command")
    return changed


def _number(own: Mapping[str, list[str]]) -> float:
    text = own.get("strength", ["1"])[-1]
    try:
        return float(text)
    except ValueError as error:
        raise InputError(
            f"strength={text}", "a number, 1 for the adapter as it was trained", "Write strength=1."
        ) from error
