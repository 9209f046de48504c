"""Sample prompts of kohya's programs: lines with flags behind the prompt, or a list.

Source: kohya-ss/musubi-tuner at 30c658c4, ``training/sampling_prompts.py``, and kohya-ss/sd-scripts
at 48d368fa, ``load_prompts`` of ``library/train_util.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .program import Given
from .rules import Conversion, Source, UnfitError, number, text, whole
from .vocabulary import set_prompts, share_or_keep

_FLAG = re.compile(r"\s--(?=[a-z]+\s)")
_SETTINGS: Mapping[str, tuple[str, Any]] = {
    "w": ("width", whole),
    "h": ("height", whole),
    "s": ("steps", whole),
    "g": ("guidance", number),
    "l": ("guidance", number),
    "d": ("seed", whole),
    "n": ("negative_prompt", text),
    "f": ("frames", whole),
}
_CONTROL = "ci"
_LISTED = {
    "width": "w",
    "height": "h",
    "sample_steps": "s",
    "seed": "d",
    "negative_prompt": "n",
    "scale": "l",
    "guidance_scale": "g",
    "frame_count": "f",
}
"""Names of a list of prompts to the flags of a line."""


@dataclass(slots=True)
class _Prompt:
    text: str
    flags: dict[str, str] = field(default_factory=dict)
    controls: list[str] = field(default_factory=list)


def set_previews(
    files: Given, source: Source, to: Conversion, size: int, steps: int, guidance: float
) -> None:
    """Say what previews are made of, where the file of prompts can be read.

    Args:
        size: The program's default of width and height, in pixels.
        steps: Its default of sampling steps.
    """
    if source.has("sample_every_n_steps"):
        every = source.read("sample_every_n_steps", whole)
        to.say("preview.every", every, "sample_every_n_steps", every)
    if not source.has("sample_prompts"):
        return
    name = source.read("sample_prompts", text)
    prompts = _prompts_of(files, name)
    if prompts is None:
        to.lack("sample_prompts", name, "It is not here: write its prompts into preview.prompts.")
        return
    if not prompts:
        to.off("sample_prompts", name, "The file has no prompts.")
        return
    own: list[dict[str, Any]] = [{} for _ in prompts]
    for flag in dict.fromkeys(flag for each in prompts for flag in each.flags):
        _set_flag(flag, prompts, own, to)
    usual = {"width": size, "height": size, "steps": steps, "guidance": guidance}
    for setting, value in usual.items():
        if f"preview.{setting}" not in to.values:
            to.say(f"preview.{setting}", value, f"sample_prompts ({setting})", value, stated=False)
    controls = [each.controls for each in prompts]
    row = ("sample_prompts", name)
    set_prompts(to, [e.text for e in prompts], own, row, controls, "sample_prompts (--ci)")


def _prompts_of(files: Given, name: str) -> list[_Prompt] | None:
    """The prompts of a file; None where it cannot be read."""
    if not name.endswith((".toml", ".json")):
        lines = files.lines(name)
        if lines is None:
            return None
        return [_read(line) for line in lines if line.strip() and not line.startswith("#")]
    found = files.find(name)
    if found is None:
        return None
    shared = found.values.get("prompt")
    shared = dict(shared) if isinstance(shared, Mapping) else {}
    items = found.values.get("list", shared.pop("subset", []))
    return [
        _read(each) if isinstance(each, str) else _listed({**shared, **each})
        for each in (items if isinstance(items, list) else [])
        if isinstance(each, str | Mapping)
    ]


def _listed(item: Mapping[str, Any]) -> _Prompt:
    flags = {_LISTED.get(key, key): str(item[key]) for key in item if key != "prompt"}
    return _Prompt(str(item.get("prompt", "")), flags)


def _set_flag(flag: str, prompts: list[_Prompt], own: list[dict[str, Any]], to: Conversion) -> None:
    values = [each.flags.get(flag) for each in prompts]
    value, key = next(each for each in values if each is not None), f"sample_prompts (--{flag})"
    if flag not in _SETTINGS:
        to.lack(key, value, "Previews have no such setting here.")
        return
    setting, read = _SETTINGS[flag]
    try:
        found = [None if each is None else read(each) for each in values]
        if setting == "frames":
            near = "" if len(set(found)) == 1 else "All previews have one length."
            to.say("preview.frames", read(value), key, value, near)
        else:
            share_or_keep(to, setting, found, key, own)
    except UnfitError as error:
        to.lack(key, value, f"It is not {error}.")


def _read(line: str) -> _Prompt:
    first, *rest = _FLAG.split(line.strip())
    prompt = _Prompt(first.strip())
    for each in rest:
        name, _, value = each.strip().partition(" ")
        if name == _CONTROL:
            prompt.controls.append(value.strip())
        else:
            prompt.flags[name] = value.strip()
    return prompt
