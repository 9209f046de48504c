"""Settings of what keeps the base from forgetting."""

from __future__ import annotations

from typing import Literal

from .section import Other, Section, setting

_ON = Other("share", such_as=0.25)
_MAKES_IMAGES = Other(
    "kind", "trajectory", "class", because="only there the base makes images to be held to"
)


class RegularizationSection(Section):
    """A second folder of ordinary images, which keeps the base from forgetting them."""

    path: str = setting(
        "",
        "Use it when the adapter changes what it should leave alone and you have ordinary images "
        "of that: a second folder with images and captions of what the base can do already. They "
        "are trained beside your own, without the trigger word.",
        path="anchored",
        no_paths=("",),
        resumed="free",
    )
    weight: float = setting(
        1.0,
        "Leave it; lower it when yours are learned too slowly, raise it when the base still "
        "forgets. Weight of the regularization images' loss; your own images have 1.",
        advanced=True,
        ge=0.0,
        le=10.0,
        only_with=Other("path"),
    )
    num_repeats: int = setting(
        1,
        "Leave it at 1; raise it when you have far fewer regularization images than images of "
        "your own. How often each of them appears in an epoch.",
        advanced=True,
        ge=1,
        le=10000,
        only_with=Other("path"),
    )


class PreservationSection(Section):
    """Prior preservation from the base itself: it is held to what it did before training."""

    kind: Literal["trajectory", "class", "blank", "output"] = setting(
        "trajectory",
        "Leave it on trajectory. What the base is held to. 'trajectory': images that it makes of "
        "prompts. 'class': of prompts with class_word. 'blank': your noisy images without a "
        "prompt. 'output': with class_word in place of your trigger word, also for edits. The "
        "last two take a little longer.",
        advanced=True,
        only_with=_ON,
        not_with=Other(
            "dataset.slider.positive",
            of=("blank", "output"),
            because="a slider has no images of a folder, at which these kinds hold the base",
        ),
    )
    class_word: str = setting(
        "",
        "Set it for the kinds class and output: the ordinary word for what you train, such as "
        "'woman'. It has to stay as it is when your trigger word becomes something else.",
        advanced=True,
        only_with=(_ON, Other("kind", "class", "output")),
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
        only_with=(
            _ON,
            Other(
                "kind",
                "trajectory",
                because="only there the base makes images of prompts that you name",
            ),
        ),
    )
    count: int = setting(
        24,
        "Leave it unless you gave more preservation prompts than this. How many images the base "
        "makes to be held to; prompts take turns.",
        advanced=True,
        ge=1,
        le=1000,
        only_with=(_ON, _MAKES_IMAGES),
    )
    steps: int = setting(
        12,
        "Leave it; lower it to wait less before the first step. Sampling steps of each image that "
        "the base makes to be held to; each step is one sample.",
        advanced=True,
        ge=1,
        le=100,
        only_with=(_ON, _MAKES_IMAGES),
    )

    def holds(self, *kinds: str) -> bool:
        """Whether the base is held, and in one of some ways."""
        return self.share > 0 and self.kind in kinds

    @property
    def asks_base(self) -> bool:
        """Whether the base is asked in each step, at noisy latents of the samples of the run."""
        return self.holds("blank", "output")
