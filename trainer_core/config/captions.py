"""Settings of what becomes of a caption before it is encoded."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting


class CaptionSection(Section):
    """Rules that turn what a caption file says into the texts that are trained."""

    prefix: str = setting(
        "",
        "Leave it empty unless every caption should begin with the same words. Put in front of "
        "each caption, behind the trigger word, as it stands: end it with a comma where you want "
        "one.",
        advanced=True,
    )
    suffix: str = setting(
        "",
        "Leave it empty unless every caption should end with the same words. Put behind each "
        "caption as it stands: begin it with a comma where you want one.",
        advanced=True,
    )
    read_files: bool = setting(
        True,
        "Leave it on; off trains each image with the default text, or with its name "
        "(dataset.missing_caption: filename), whatever caption files there are.",
        advanced=True,
    )
    add_trigger: bool = setting(
        True,
        "Leave it on; off puts the trigger word only where a caption has [trigger], and in front "
        "of none.",
        advanced=True,
    )
    escape_brackets: bool = setting(
        True,
        "Leave it on, so that brackets are trained as letters: 'miku (vocaloid)' as KSampler's "
        "prompt 'miku \\(vocaloid\\)'. Weights with a number, as in (red:1.2), stay weights. Off: "
        "every bracket weighs, as in a prompt. Only for a CLIP of the graph that knows weights.",
        advanced=True,
    )
    default: str = setting(
        "",
        "Leave it empty unless one text describes every image that has no caption of its own.",
        advanced=True,
    )
    variants: Literal["one", "lines"] = setting(
        "one",
        "Leave it on one unless your caption files hold several captions of one image. 'one': a "
        "file is one caption. 'lines': each line is a caption of its own; each epoch takes "
        "another. A list in a .json caption is taken so in any case.",
        advanced=True,
    )
    length: Literal["both", "long", "short"] = setting(
        "both",
        "Leave it on both; only .json captions with a short and a long text have a choice. "
        "'both': each epoch takes one of them.",
        advanced=True,
    )
    wildcards: bool = setting(
        False,
        "Leave it off unless your captions are written with choices, such as 'a {red|blue} car'. "
        "Each epoch takes one of them.",
        advanced=True,
    )
    shuffle: int = setting(
        0,
        "Leave it at 0 for sentences; take 4 to 8 for captions of tags. How many orders of a "
        "caption's tags are encoded; each epoch takes another. 0: tags stay in place.",
        advanced=True,
        ge=0,
        le=64,
    )
    keep: int = setting(
        0,
        "Leave it at 0, or count the tags that must stay in front, when tags are shuffled. The "
        "trigger word and the prefix stay in any case.",
        advanced=True,
        ge=0,
        le=100,
    )
    drop: float = setting(
        0.0,
        "Leave it at 0; take 0.1 for captions of many tags, so that no tag has to be there. Share "
        "of the tags that are left out of each order but the written one; 'keep' holds here too.",
        advanced=True,
        ge=0.0,
        le=0.9,
    )
    separator: str = setting(
        ",",
        "Leave it unless your tags are parted by something else. What stands between two tags.",
        advanced=True,
        min_length=1,
        max_length=8,
    )
    most: int = setting(
        16,
        "Leave it; lower it when encoding takes too long, raise it for more variety. The most "
        "texts that are encoded of one image; of more than that, so many are chosen.",
        advanced=True,
        ge=1,
        le=256,
    )
