"""Everything that a report can find, how grave it is, and what to do about it: the one table."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
"""An error stops a training; a warning is told before it; a note stands in the report alone."""

SMALL_SHARE = 0.7
"""Share of the training area below which an image is told: a little less is nothing to act on."""


@dataclass(frozen=True, slots=True)
class FindingKind:
    """One thing that a report can find.

    Attributes:
        name: Its name in JSON.
        severity: How grave it is. What a policy of ``dataset`` decides about is a warning where
            the policy says ``skip``.
        words: What is said of it, as of one/several.
        remedy: What to do about it.
        skipped: The same where a policy of ``dataset`` says ``skip``.
    """

    name: str
    severity: Severity
    words: str
    remedy: str
    skipped: str = ""

    def said_of(self, count: int) -> str:
        """What is said of so many, behind their number and noun."""
        return re.sub(r"((?:an? )?\w+)/(\w+)", r"\1" if count == 1 else r"\2", self.words)


_TABLE: tuple[FindingKind, ...] = (
    FindingKind(
        *("no_images", "error", "there is nothing to train"),
        "Put images with captions into the folder, or fix what was left out.",
    ),
    FindingKind(
        *("unreadable", "error", "cannot be read"),
        "Save it again as PNG, JPEG or WebP, remove it, or set dataset.unreadable: skip.",
        "A run leaves it out. To train it, save it again as PNG, JPEG or WebP.",
    ),
    FindingKind(
        *("unreadable_caption", "error", "has/have a caption/captions that cannot be read"),
        "Save the caption as UTF-8 in a text editor, or remove it.",
    ),
    FindingKind(
        *("animated", "error", "has/have several frames"),
        "Save the frame you want as an image, or set dataset.animated: first_frame or skip.",
        "A run leaves it out. To train it, save the frame you want as an image.",
    ),
    FindingKind(
        *("layers", "error", "has/have layers that do not fit"),
        "Export the layers again, each of the image's size.",
    ),
    FindingKind(
        *("missing_control", "error", "has/have no partner in its/their pair"),
        "Add or rename the files so that names agree, or set dataset.missing_control: skip.",
        "A run leaves it out. To train it, add or rename the files so that names agree.",
    ),
    FindingKind(
        *("missing_mask", "error", "has/have no mask"),
        "Add NAME_mask.png beside the image, or set dataset.mask.source: auto.",
    ),
    FindingKind(
        *("missing_caption", "error", "has/have no caption"),
        "Write the captions, or set dataset.missing_caption: empty or skip.",
        "A run leaves it out. To train it, write the caption.",
    ),
    FindingKind(
        *("missing_image", "error", "caption/captions has/have no image of its/their name"),
        "Add the images or remove the captions, or set dataset.missing_image: skip.",
        "A run leaves it out. To train it, add the image.",
    ),
    FindingKind(
        *("metadata", "error", "line/lines of a metadata file cannot be used"),
        "Correct the lines that are named; each has to name an image that is there.",
    ),
    FindingKind(
        *("caption_rules", "error", "has/have a caption/captions that the rules cannot use"),
        "Correct the captions that are named, or the rules that change captions.",
    ),
    FindingKind(
        *("other", "error", "cannot be trained"),
        "Fix the files that are named, or remove them.",
    ),
    FindingKind(
        *("too_small", "error", "is/are smaller than the smallest size"),
        "Take larger images, remove them, or set dataset.upscale: true.",
    ),
    FindingKind(
        *("held_out_trained", "error", "is/are held out and trained as well"),
        "Move the held-out images out of the folders that are trained.",
    ),
    FindingKind(
        *("held_out_same", "warning", "held out is/are trained under another/other name/names"),
        "Remove one of each pair: the held-out loss else tells what was learned by heart.",
    ),
    FindingKind(
        *("held_out_near", "warning", "held out is/are nearly one/ones that is/are trained"),
        "Keep images that look alike on one side: all trained, or all held out.",
    ),
    FindingKind(
        *("left_out", "warning", "note/notes of the scan"),
        "Look at each; nothing needs to be done where it is meant.",
    ),
    FindingKind(
        *("duplicate", "warning", "is/are there more than once"),
        "Keep one of each; num_repeats or a repeats folder counts an image more often on purpose.",
    ),
    FindingKind(
        *("near_duplicate", "warning", "looks/look nearly like another/others"),
        "Keep the best of each group, or it is learned as often as it is there.",
    ),
    FindingKind(
        *("blank", "warning", "is/are of one colour"),
        "Remove it unless it is meant: there is nothing in it to learn.",
    ),
    FindingKind(
        *("broken", "error", "cannot be decoded"),
        "Save it again with an image editor, remove it, or set dataset.unreadable: skip.",
        "A run leaves it out. To train it, save it again with an image editor.",
    ),
    FindingKind(
        *("cut", "warning", "changes/change its/their scene"),
        "Cut the clip there into two files, unless you want such changes in what is generated.",
    ),
    FindingKind(
        *("still", "warning", "stands/stand still"),
        "Take a clip that moves, or one frame of it as an image: it teaches to stand still.",
    ),
    FindingKind(
        *("cropped", "warning", "loses/lose more than a quarter of its/their area"),
        "Crop it yourself, or raise dataset.max_aspect_ratio, or lower dataset.resolution.",
    ),
    FindingKind(
        *("upscaled", "warning", "is/are enlarged for training"),
        "Take larger images, or set dataset.upscale: false to train them at their own size.",
    ),
    FindingKind(
        *("small", "warning", "is/are much smaller than the training size"),
        "Take larger images where you have them; they are trained at their own size.",
    ),
    FindingKind(
        *("transparent", "warning", "has/have an alpha channel"),
        "What is transparent is trained as white: lay the images on a background of your own, "
        "or set dataset.mask.source: alpha to learn only what is there.",
    ),
    FindingKind(
        *("stretched", "warning", "changes/change its/their proportions"),
        "Set dataset.crop: center to cut off instead of stretching.",
    ),
    FindingKind(
        *("control_numbers", "warning", "has/have another number of control images"),
        "Give each image equally many control images where you can; others never share a batch.",
    ),
    FindingKind(
        *("control_shape", "warning", "has/have a control image/images of another shape"),
        "Export the control image at its target's shape, or set dataset.control_area.",
    ),
    FindingKind(
        *("mask_shape", "error", "has/have a mask/masks of another shape"),
        "Export the mask at the image's size: it is cut as the image is.",
    ),
    FindingKind(
        *("mask_empty", "warning", "has/have a mask/masks that is/are black"),
        "Paint white what is to be learned, or set dataset.mask.invert: true.",
    ),
    FindingKind(
        *("caption_cut", "warning", "has/have a caption/captions that is/are cut off"),
        "Shorten them, or raise base.text_length.",
    ),
    FindingKind(
        *("trigger_missing", "warning", "lacks/lack the trigger word"),
        "Put the word into these captions, or set dataset.trigger_word, which puts it in front.",
    ),
    FindingKind(
        *("brackets_weigh", "warning"),
        "has/have round brackets in its/their caption/captions that a CLIP may read as weights",
        r"Write \( and \), or set dataset.captions.escape_brackets: true, where they are letters.",
    ),
    FindingKind(
        *("brackets_kept", "note"),
        "has/have round brackets in its/their caption/captions, which are trained as letters",
        r"In a prompt for a CLIP with weights write \( and \) for them.",
    ),
    FindingKind(
        *("caption_empty", "note", "is/are trained without a caption"),
        "Write captions for them, unless you mean it.",
    ),
    FindingKind(
        *("caption_same", "note", "shares/share its/their caption with another/others"),
        "Say in each caption what differs, unless all show one thing.",
    ),
    FindingKind(
        *("mask_full", "note", "has/have a mask/masks that is/are white"),
        "Leave it, or remove the mask: it changes nothing.",
    ),
    FindingKind(
        *("short_bucket", "note", "lies/lie in a bucket/buckets without a full batch"),
        "Raise dataset.bucket_step for fewer buckets, or crop them to a common shape.",
    ),
    FindingKind(
        *("few_images", "note", "is/are all there is to learn from"),
        "Add images where you can: below five the adapter learns them by heart.",
    ),
)

KINDS: Mapping[str, FindingKind] = {kind.name: kind for kind in _TABLE}
"""Every kind by its name; the gravest first, and in this order they are told."""

FEW = 5
"""So many images are few."""
