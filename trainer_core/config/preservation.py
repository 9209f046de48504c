"""Settings of what keeps the base from forgetting."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting


class PreservationSection(Section):
    """Prior preservation from the base itself: it is held to what it did before training."""

    kind: Literal["trajectory", "class", "blank", "output"] = setting(
        "trajectory",
        "Leave it on trajectory. What the base is held to. 'trajectory': images that it makes of "
        "prompts. 'class': of prompts with class_word. 'blank': your noisy images without a "
        "prompt. 'output': with class_word in place of your trigger word, also for edits. The "
        "last two take a little longer.",
        advanced=True,
    )
    class_word: str = setting(
        "",
        "Set it for the kinds class and output: the ordinary word for what you train, such as "
        "'woman'. It has to stay as it is when your trigger word becomes something else.",
        advanced=True,
    )
    share: float = setting(
        0.0,
        "Raise it when a few images take over everything, such as every face. Leave it at 0 (off) "
        "otherwise: it slows learning. Share of each batch that holds the base to what it does "
        "without the adapter; kind says with which images and prompts.",
        ge=0.0,
        le=0.9,
    )
    prompts: list[str] = setting(
        [],
        "Leave it empty unless you know what must stay as it is. Prompts, for an edit base "
        "instructions, that have nothing to do with what is learned; the base is held to them. "
        "Empty: a general list, for the embedded base one of its own words.",
        advanced=True,
    )
    count: int = setting(
        24,
        "Leave it unless you gave more preservation prompts than this. How many images the base "
        "makes to be held to; prompts take turns.",
        advanced=True,
        ge=1,
        le=1000,
    )
    steps: int = setting(
        12,
        "Leave it; lower it to wait less before the first step. Sampling steps of each image that "
        "the base makes to be held to; each step is one sample.",
        advanced=True,
        ge=1,
        le=100,
    )

    def holds(self, *kinds: str) -> bool:
        """Whether the base is held, and in one of some ways."""
        return self.share > 0 and self.kind in kinds

    @property
    def asks_base(self) -> bool:
        """Whether the base is asked in each step, at noisy latents of the samples of the run."""
        return self.holds("blank", "output")
