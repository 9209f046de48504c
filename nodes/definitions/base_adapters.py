"""The inputs that name adapters of a base, by what the loras folder has."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ...trainer_core.errors import InputError
from ..host import comfy_host
from ..services.quick.base import training_adapters
from .sockets import NO_FILE, lora_choices


def training_adapter_input() -> io.Input:
    """The training adapter of a distilled base."""
    return io.Combo.Input(
        "training_adapter",
        options=lora_choices(),
        default=NO_FILE,
        optional=True,
        advanced=True,
        tooltip="Choose the training adapter of a distilled base, such as a turbo model. It is "
        "part of the base while it trains, and left out of previews and of the result.",
    )


def base_adapter_inputs() -> list[io.Input]:
    """Adapters that are part of the base; in saved workflows these stand behind all others."""
    return [
        training_adapter_input(),
        io.String.Input(
            "base_adapters",
            default="",
            multiline=True,
            optional=True,
            advanced=True,
            tooltip="Leave it empty, unless you train on top of other adapters. Files of the loras "
            "folder, one per line: name.safetensors = 1.0, always. Last: always, for one that you "
            "load when you generate, too; training, for one that previews are made without; "
            "quantized, for an accuracy-recovery adapter.",
        ),
    ]


def chosen_adapters(inputs: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What the inputs say, as ``base.adapters``; `InputError` for a bad line or an absent file."""
    found = training_adapters(inputs.get("training_adapter") or NO_FILE)
    lines = (line.strip() for line in (inputs.get("base_adapters") or "").splitlines())
    return found + [_adapter(line) for line in lines if line]


def _adapter(line: str) -> dict[str, Any]:
    name, equals, rest = line.rpartition("=")
    strength, comma, when = (part.strip() for part in rest.partition(","))
    if not equals:
        name, strength, comma, when = line, "1.0", "", ""
    try:
        number = float(strength)
    except ValueError:
        number = math.nan
    known = {"always", "training", "quantized"} if comma else {""}
    if not math.isfinite(number) or when not in known:
        raise InputError(
            f"base_adapters has the line {line!r}",
            "name.safetensors = 1.0, always (or training, or quantized)",
            "Write one file of the loras folder on each line of base_adapters.",
        )
    path = str(comfy_host.lora_path(name.strip()))
    return {"path": path, "strength": number, "when": when or "always"}
