"""ComfyUI's loras folder as an input of nodes; loaded at ComfyUI's start, so it is small."""

from __future__ import annotations

from typing import Any

from ...trainer_core.errors import InputError
from ..host import comfy_host

NO_FILE = "none"
"""The choice that stands for no file."""


def lora_choices() -> list[str]:
    """What a combo box of adapter files offers; no file comes first."""
    return [NO_FILE, *comfy_host.lora_names()]


def lora_stamp(file: str) -> str:
    """Changes with the chosen file."""
    if file == NO_FILE:
        return NO_FILE
    return comfy_host.file_stamp(str(comfy_host.lora_path(file)))


def chosen_lora(file: str, lora: Any) -> Any:
    """The path of the chosen file, or the adapter of the graph.

    Args:
        file: One of `lora_choices`.
        lora: A LORA_MODEL; None without one.

    Raises:
        InputError: When both or neither is given, or there is no such file.
    """
    if (file == NO_FILE) == (lora is None):
        raise InputError(
            "neither a file nor a lora" if lora is None else "both a file and a lora",
            "one of the two",
            "Choose a file, or set file to none and connect a LORA_MODEL.",
        )
    return lora if file == NO_FILE else comfy_host.lora_path(file)
