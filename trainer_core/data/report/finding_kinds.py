"""Everything that a report can find, how grave it is, and what to do about it: the one table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning", "note"]
"""An error stops a training; a warning is told before it; a note stands in the report alone."""

Stage = Literal["scan", "plan", "quick", "tokens", "looks"]
"""When it is known: scan and plan tell it themselves; ``quick`` needs what they know; ``tokens``
needs the base's tokenizer; ``looks`` needs the images decoded."""

SMALL_SHARE = 0.7
"""Share of the training area below which an image is told: a little less is nothing to act on."""


@dataclass(frozen=True, slots=True)
class FindingKind:
    """One thing that a report can find.

    Attributes:
        name: Its name in JSON.
        severity: How grave it is. What a policy of ``dataset`` decides about is a warning where
            the policy says ``skip``.
        one: What is said of one image, behind "1 image".
        many: What is said of several, behind their number.
    """

    name: str
    severity: Severity
    stage: Stage
    one: str
    many: str
    remedy: str


_TABLE: tuple[FindingKind, ...] = (
    FindingKind(
        *("no_images", "error", "scan", "there is nothing to train", "there is nothing to train"),
        "Put images with captions into the folder, or fix what was left out.",
    ),
    FindingKind(
        *("unreadable", "error", "scan", "cannot be read", "cannot be read"),
        "Save it again as PNG, JPEG or WebP, remove it, or set dataset.unreadable: skip.",
    ),
    FindingKind(
        *("unreadable_caption", "error", "scan"),
        *("has a caption that cannot be read", "have captions that cannot be read"),
        "Save the caption as UTF-8 in a text editor, or remove it.",
    ),
    FindingKind(
        *("animated", "error", "scan", "has several frames", "have several frames"),
        "Save the frame you want as an image, or set dataset.animated: first_frame or skip.",
    ),
    FindingKind(
        *("layers", "error", "scan"),
        *("has layers that do not fit", "have layers that do not fit"),
        "Export the layers again, each of the image's size.",
    ),
    FindingKind(
        *("missing_control", "error", "scan"),
        *("has no partner in its pair", "have no partner in their pair"),
        "Add or rename the files so that names agree, or set dataset.missing_control: skip.",
    ),
    FindingKind(
        *("missing_mask", "error", "scan", "has no mask", "have no mask"),
        "Add NAME_mask.png beside the image, or set dataset.mask.source: auto.",
    ),
    FindingKind(
        *("missing_caption", "error", "scan", "has no caption", "have no caption"),
        "Write the captions, or set dataset.missing_caption: empty or skip.",
    ),
    FindingKind(
        *("missing_image", "error", "scan"),
        *("caption has no image of its name", "captions have no image of their name"),
        "Add the images or remove the captions, or set dataset.missing_image: skip.",
    ),
    FindingKind(
        *("metadata", "error", "scan"),
        *("line of a metadata file cannot be used", "lines of a metadata file cannot be used"),
        "Correct the lines that are named; each has to name an image that is there.",
    ),
    FindingKind(
        *("caption_rules", "error", "scan"),
        *("has a caption that the rules cannot use", "have captions that the rules cannot use"),
        "Correct the captions that are named, or the rules below dataset.captions.",
    ),
    FindingKind(
        *("other", "error", "scan", "cannot be trained", "cannot be trained"),
        "Fix the files that are named, or remove them.",
    ),
    FindingKind(
        *("too_small", "error", "plan"),
        *("is smaller than the smallest size", "are smaller than the smallest size"),
        "Take larger images, remove them, or set dataset.upscale: true.",
    ),
    FindingKind(
        *("held_out_trained", "error", "quick"),
        *("is held out and trained as well", "are held out and trained as well"),
        "Move the held-out images out of the folders that are trained.",
    ),
    FindingKind(
        *("held_out_same", "warning", "looks"),
        *("held out is trained under another name", "held out are trained under other names"),
        "Remove one of each pair: the held-out loss else tells what was learned by heart.",
    ),
    FindingKind(
        *("held_out_near", "warning", "looks"),
        *("held out is nearly one that is trained", "held out are nearly ones that are trained"),
        "Keep images that look alike on one side: all trained, or all held out.",
    ),
    FindingKind(
        *("left_out", "warning", "scan"),
        *("note of the scan", "notes of the scan"),
        "Look at each; nothing needs to be done where it is meant.",
    ),
    FindingKind(
        *("duplicate", "warning", "looks"),
        *("is there more than once", "are there more than once"),
        "Keep one of each; num_repeats or a repeats folder counts an image more often on purpose.",
    ),
    FindingKind(
        *("near_duplicate", "warning", "looks"),
        *("looks nearly like another", "look nearly like others"),
        "Keep the best of each group, or it is learned as often as it is there.",
    ),
    FindingKind(
        *("blank", "warning", "looks", "is of one colour", "are of one colour"),
        "Remove it unless it is meant: there is nothing in it to learn.",
    ),
    FindingKind(
        *("broken", "warning", "looks", "cannot be decoded", "cannot be decoded"),
        "Save it again with an image editor, or remove it; encoding will stop at it.",
    ),
    FindingKind(
        *("cut", "warning", "looks", "changes its scene", "change their scene"),
        "Cut the clip there into two files, unless you want such changes in what is generated.",
    ),
    FindingKind(
        *("still", "warning", "looks", "stands still", "stand still"),
        "Take a clip that moves, or one frame of it as an image: it teaches to stand still.",
    ),
    FindingKind(
        *("cropped", "warning", "plan"),
        *("loses more than a quarter of its area", "lose more than a quarter of their area"),
        "Crop it yourself, or raise dataset.max_aspect_ratio, or lower dataset.resolution.",
    ),
    FindingKind(
        *("upscaled", "warning", "plan"),
        *("is enlarged for training", "are enlarged for training"),
        "Take larger images, or set dataset.upscale: false to train them at their own size.",
    ),
    FindingKind(
        *("small", "warning", "plan"),
        *("is much smaller than the training size", "are much smaller than the training size"),
        "Take larger images where you have them; they are trained at their own size.",
    ),
    FindingKind(
        *("transparent", "warning", "quick", "has an alpha channel", "have an alpha channel"),
        "What is transparent is trained as white: lay the images on a background of your own, or "
        "set dataset.mask.source: alpha to learn only what is there.",
    ),
    FindingKind(
        *("stretched", "warning", "plan"),
        *("changes its proportions", "change their proportions"),
        "Set dataset.crop: center to cut off instead of stretching.",
    ),
    FindingKind(
        *("control_numbers", "warning", "plan"),
        *("has another number of control images", "have another number of control images"),
        "Give each image equally many control images where you can; others never share a batch.",
    ),
    FindingKind(
        *("control_shape", "warning", "looks"),
        *("has a control image of another shape", "have control images of another shape"),
        "Export the control image at its target's shape, or set dataset.control_area.",
    ),
    FindingKind(
        *("mask_shape", "error", "scan"),
        *("has a mask of another shape", "have masks of another shape"),
        "Export the mask at the image's size: it is cut as the image is.",
    ),
    FindingKind(
        *("mask_empty", "warning", "looks", "has a black mask", "have black masks"),
        "Paint white what is to be learned, or set dataset.mask.invert: true.",
    ),
    FindingKind(
        *("caption_cut", "warning", "tokens"),
        *("has a caption that is cut off", "have captions that are cut off"),
        "Shorten them, or raise base.text_length.",
    ),
    FindingKind(
        *("trigger_missing", "warning", "quick"),
        *("lacks the trigger word", "lack the trigger word"),
        "Put the word into these captions, or set dataset.trigger_word, which puts it in front.",
    ),
    FindingKind(
        *("brackets_weigh", "warning", "tokens"),
        "has round brackets in its caption that a CLIP with weights reads as weights",
        "have round brackets in their captions that a CLIP with weights reads as weights",
        r"Write \( and \), or set dataset.captions.escape_brackets: true, where they are letters.",
    ),
    FindingKind(
        *("brackets_kept", "note", "tokens"),
        "has round brackets in its caption, which are trained as letters",
        "have round brackets in their captions, which are trained as letters",
        r"In a prompt for a CLIP with weights write \( and \) for them.",
    ),
    FindingKind(
        *("caption_empty", "note", "quick"),
        *("is trained without a caption", "are trained without a caption"),
        "Write captions for them, unless you mean it.",
    ),
    FindingKind(
        *("caption_same", "note", "quick"),
        *("shares its caption with another", "share their caption with others"),
        "Say in each caption what differs, unless all show one thing.",
    ),
    FindingKind(
        *("mask_full", "note", "looks", "has a white mask", "have white masks"),
        "Leave it, or remove the mask: it changes nothing.",
    ),
    FindingKind(
        *("layer_numbers", "note", "plan"),
        *("has another number of layers", "have another number of layers"),
        "Nothing needs to be done; they never share a batch with the others.",
    ),
    FindingKind(
        *("short_bucket", "note", "plan"),
        *("lies in a bucket without a full batch", "lie in buckets without a full batch"),
        "Raise dataset.bucket_step for fewer buckets, or crop them to a common shape.",
    ),
    FindingKind(
        *("few_images", "note", "quick"),
        *("is all there is to learn from", "are all there is to learn from"),
        "Add images where you can: below five the adapter learns them by heart.",
    ),
)

KINDS: Mapping[str, FindingKind] = {kind.name: kind for kind in _TABLE}
"""Every kind by its name; the gravest first, and in this order they are told."""

FEW = 5
"""So many images are few."""
