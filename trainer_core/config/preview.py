"""Settings of previews, and flags behind a prompt: ``a house --w 768 --d 42 --n "blurry"``.

The flags are those of kohya's sd-scripts, which musubi-tuner and ai-toolkit read, too
(kohya-ss/musubi-tuner at 30c658c4, ``training/sampling_prompts.py``; ostris/ai-toolkit at 27a03a91,
``toolkit/config_modules.py``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from pydantic import ValidationError

from ..errors import ConfigError
from ..printable import shortened, single_line
from .section import Problem, Section, expectation, setting

Variant = Literal["auto", "generate", "edit", "edit_plus", "layered", "fill"]

FLAGS: Mapping[str, str] = {
    "w": "width",
    "h": "height",
    "d": "seed",
    "s": "steps",
    "l": "guidance",
    "n": "negative_prompt",
    "g": "guidance",
    "cfg": "guidance",
    "seed": "seed",
    "steps": "steps",
}
"""Flag to the setting of ``preview``; of several for one setting the first is written."""

_FLAG = re.compile(r"(?:^|\s)--(?=[A-Za-z])")
_LONGEST = 80


def parse_prompt(line: str) -> tuple[str, dict[str, str]]:
    """Part a prompt of ``preview.prompts`` from the flags behind it: settings with values as text.

    Raises:
        ConfigError: When a flag is unknown, comes twice, or has no value.
    """
    text, *flags = _FLAG.split(line)
    found: dict[str, str] = {}
    for each in flags:
        name, value = [*each.split(maxsplit=1), ""][:2]
        setting, value = FLAGS.get(name.lower()), value.strip()
        quoted = len(value) > 1 and value[0] == value[-1] and value[0] in "\"'"
        if setting is None or setting in found or not value:
            known = "unknown" if setting is None else "there twice" if value else "without a value"
            raise ConfigError(
                f"preview.prompts: --{shortened(single_line(name), _LONGEST)} is {known} in "
                f"{shortened(single_line(line), _LONGEST)!r}",
                "behind a prompt its own " + ", ".join(f"--{f} ({s})" for f, s in FLAGS.items()),
                "Correct the flag or take it out; in a text put a space between -- and a word.",
            )
        found[setting] = value[1:-1] if quoted else value
    return text.strip() if flags else text, found


def as_text(text: str) -> str:
    """A text that `parse_prompt` reads no flags in: a space parts ``--`` from the word."""
    return _FLAG.sub(r"\g<0> ", text)


def prompt_line(text: str, settings: Mapping[str, object]) -> str:
    """Write a prompt with settings of its own, as `parse_prompt` reads it."""
    flags = {setting: flag for flag, setting in reversed([*FLAGS.items()])}
    written = {name: as_text(str(value)) for name, value in settings.items()}
    # What is empty, or begins with a quote of its own, is quoted.
    quoted = {name: f'"{v}"' if v[:1] in "\"'" else v for name, v in written.items()}
    return " ".join([as_text(text), *(f"--{flags[name]} {v}" for name, v in quoted.items())])


class PreviewSection(Section):
    """What is generated, how often, and with which seed."""

    every: int = setting(
        0,
        "Set it to watch the adapter learn; the lower, the more images and the longer the run. "
        "Steps between previews, the first before step 1 and one of the last step; 0: none.",
        ge=0,
    )
    prompts: list[str] = setting(
        [],
        "Write what you want to make, with the trigger word; add one without, to see what else "
        "changes. Each gives one image; flags behind it are its own: --w and --h pixels, --d seed, "
        "--s steps, --l guidance, --n negative prompt. Round brackets weigh words; in captions "
        "they are letters.",
    )
    controls: list[list[str]] = setting(
        [],
        "Set it when the base edits: control images (paths) for each prompt, in order; empty for "
        "text-to-image.",
        path="anchored",
    )
    width: int = setting(
        1024,
        "Lower it to wait less for previews; leave it near the size that you will generate at. "
        "Width of a preview in pixels.",
        ge=16,
        le=8192,
    )
    height: int = setting(
        1024,
        "Lower it to wait less for previews; leave it near the size that you will generate at. "
        "Height of a preview in pixels.",
        ge=16,
        le=8192,
    )
    frames: int | None = setting(
        None,
        "Leave it unset; lower it to wait less for previews. For bases of videos: frames of a "
        "preview, 1 for an image. Unset: as many as most clips of the dataset have.",
        advanced=True,
        ge=1,
        le=1025,
    )
    steps: int = setting(
        20,
        "Lower it to wait less for previews; raise it when they look unfinished. Sampling steps "
        "of a preview.",
        ge=1,
        le=1000,
    )
    guidance: float = setting(
        1.0,
        "Set it as cfg in KSampler, or for a guidance-distilled base as its guidance. Guidance "
        "scale. 1 needs no second pass; guidance-distilled bases are conditioned on the value "
        "instead.",
        ge=0.0,
        le=100.0,
    )
    shift: float | None = setting(
        None,
        "Leave it unset. Shift of the noise levels of a preview's steps. Unset: of the base's own "
        "scheduler; inside ComfyUI of ComfyUI's.",
        advanced=True,
        gt=0.0,
        le=100.0,
    )
    negative_prompt: str = setting(
        "",
        "Leave it empty unless you generate with one; it means nothing at guidance 1. What the "
        "second pass is told.",
        advanced=True,
    )
    layers: int | None = setting(
        None,
        "Leave it unset unless you want another number of layers than your images have. Layers of "
        "a preview, side by side behind the whole image; only of a base that takes images apart. "
        "Unset: as many as most of your images have.",
        advanced=True,
        ge=1,
        le=20,
    )
    seed: int = setting(
        0,
        "Leave it, so that previews can be compared; change it to see another try. Seed of the "
        "first prompt's noise; the next prompts count up.",
        ge=0,
    )

    def of_prompt(self, line: str, index: int) -> PreviewSection:
        """The settings of one preview, by the flags behind its prompt, which is left without them.

        Seeds count up with the place `index` among the prompts.

        Raises:
            ConfigError: When a flag is unknown or its value out of bounds.
        """
        text, flags = parse_prompt(line)
        controls = [self.controls[index]] if index < len(self.controls) else []
        shared = self.model_dump() | {"seed": self.seed + index}
        try:
            return PreviewSection(**{**shared, **flags, "prompts": [text], "controls": controls})
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            raise ConfigError(
                f"preview.prompts: {name} is {flags[name]!r} behind {text[:60]!r}",
                expectation(type(self).model_fields[name]),
                "Correct the value behind the flag, or take the flag out.",
            ) from error

    def largest(self) -> PreviewSection:
        """The settings of the preview with most pixels."""
        every = [self.of_prompt(line, index) for index, line in enumerate(self.prompts)]
        return max(every, key=lambda each: each.width * each.height, default=self)

    def problems(self, variant: Variant) -> Iterator[Problem]:
        """What contradicts itself, or the base's variant."""
        if self.every > 0 and not self.prompts:
            yield Problem(
                f"preview.every is {self.every} and preview.prompts is empty",
                "at least one prompt to generate",
                "Add texts to preview.prompts, or set preview.every to 0.",
            )
        if self.controls and len(self.controls) != len(self.prompts):
            yield Problem(
                f"preview.controls has {len(self.controls)} entries and preview.prompts has "
                f"{len(self.prompts)}",
                "one list of control images for each prompt",
                "Give preview.controls as many lists as preview.prompts has texts.",
            )
        for index, line in enumerate(self.prompts):
            try:
                self.of_prompt(line, index)
            except ConfigError as error:
                yield Problem(error.found, error.expected, error.remedy)
        counts = [len(images) for images in self.controls] or [0] * len(self.prompts)
        fits, expected = _CONTROLS_OF[variant]
        if self.prompts and not all(map(fits, counts)):
            yield Problem(
                f"base.variant is {variant} and preview.controls has {counts} images for the "
                "prompts",
                expected,
                "Change preview.controls, a list for each prompt (for sample: control=FILE), or "
                "base.variant.",
            )


_CONTROLS_OF: Mapping[str, tuple[Callable[[int], bool], str]] = {
    "generate": (lambda count: count == 0, "no control images"),
    "edit": (lambda count: count == 1, "one control image for each prompt"),
    "layered": (lambda count: count == 1, "for each prompt the image to take apart"),
    "edit_plus": (lambda count: count >= 1, "control images for each prompt"),
    "fill": (lambda count: count == 1, "one image to be filled for each prompt"),
    "auto": (lambda count: True, ""),
}
"""Variant to whether a number of control images is right, and what is."""
