"""ai-toolkit's concept sliders: its job of that name, and the older kind with a list of targets.

Source: ostris/ai-toolkit at 27a03a91, ``extensions_built_in/concept_slider``,
``jobs/process/TrainSliderProcess.py`` and ``toolkit/config_modules.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .rules import Conversion, Source, Table, UnfitError, mapping, mappings, number, text, whole

SLIDERS = ("slider", "concept_slider")
"""Processes that train one."""


def set_slider(process: Source, table: Table, to: Conversion) -> bool:
    """Turn the section ``slider`` into ours.

    Returns:
        Whether a slider is trained, and no images.
    """
    kind, values = process.read("type", text, ""), process.read("slider", mapping, {})
    if kind not in SLIDERS:
        if values:
            to.off("slider", dict(values), f"type is {kind}.")
        return False
    to.tell("dataset.slider", "type", kind)
    source = Source(process.file, values, table, "slider.")
    source.apply(to)
    if kind == "slider":
        _older(source, to)
    else:
        _newer(source, to)
    return True


def _newer(slider: Source, to: Conversion) -> None:
    neutral = slider.read("target_class", text, "")
    if neutral:
        to.say("dataset.slider.neutral", [neutral], "slider.target_class", neutral)
    strength = slider.read("guidance_strength", number, 3.0)
    near = "There the target is brought to the mean and spread of the neutral answer."
    slider.say(to, "dataset.slider.strength", strength, "guidance_strength", near=near)
    anchor = slider.read("anchor_class", text, "")
    if anchor:
        _held(to, "slider.anchor_class", [anchor], slider.read("anchor_strength", number, 1.0))
    else:
        slider.off(to, "anchor_strength", why="There is no anchor.")


def _older(slider: Source, to: Conversion) -> None:
    targets = slider.read("targets", mappings, [])
    if targets:
        _targets(slider, targets, to)
    anchors = slider.read("anchors", mappings, [])
    if anchors:
        prompts = [slider.check("anchors", each.get("prompt") or "", text) for each in anchors]
        weight = slider.check("anchors", anchors[0].get("multiplier", 1.0), number)
        _held(to, "slider.anchors", prompts, weight)
    sizes = slider.read("resolutions", _sizes, [])
    if sizes:
        width, height = sizes[0]
        near = "" if width == height else "A slider is trained on squares."
        to.say("dataset.resolution", min(width, height), "slider.resolutions", sizes[0], near)
        for each in sizes[1:]:
            to.lack("slider.resolutions", each, "A slider is trained at one size.")


def _targets(slider: Source, targets: Sequence[Mapping[str, Any]], to: Conversion) -> None:
    """The first target; others with its two prompts add what the slider is used on."""

    def prompts(target: Mapping[str, Any], *names: str) -> list[str]:
        return [slider.check("targets", target.get(name) or "", text) for name in names]

    directions = ("positive", "negative")
    first = prompts(targets[0], *directions)
    for setting, value in zip(directions, first, strict=True):
        to.say(f"dataset.slider.{setting}", value, f"slider.targets[0].{setting}", value)
    neutral: list[str] = []
    for place, each in enumerate(targets):
        key, value = f"slider.targets[{place}]", prompts(each, "target_class")[0]
        if prompts(each, *directions) != first:
            to.lack(key, dict(each), "One run is one slider, between two prompts.")
            continue
        if value not in neutral:
            neutral.append(value)
        for name, usual in (("weight", 1.0), ("multiplier", 1.0), ("shuffle", False)):
            if each.get(name, usual) != usual:
                to.lack(f"{key}.{name}", each[name], "All prompts count alike, as they stand.")
    if neutral != [""]:
        to.say("dataset.slider.neutral", neutral, "slider.targets (target_class)", neutral)


def _held(to: Conversion, key: str, prompts: list[str], weight: float) -> None:
    """Prompts that stay as they are: a third loss there, a share of the batch here."""
    near = "There each sample has a further loss; here a share of each batch has it."
    to.say("dataset.preservation.prompts", prompts, key, prompts, near)
    share = round(weight / (2 + weight), 3) if weight > 0 else 0.0
    to.say("dataset.preservation.share", share, key, weight, "The share that weighs as much.")


def _sizes(value: Any) -> list[tuple[int, int]]:
    if not isinstance(value, list) or not all(
        isinstance(each, list) and len(each) == 2 for each in value
    ):
        raise UnfitError("a list of sizes, such as [[512, 512]]")
    return [(whole(width), whole(height)) for width, height in value]
