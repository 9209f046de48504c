"""Clips of other programs: which parts of them are trained there, and here.

Source: kohya-ss/musubi-tuner at 30c658c4, ``dataset/image_video_dataset.py``,
ostris/ai-toolkit at 27a03a91, ``toolkit/dataloader_mixins.py``, and tdrussell/diffusion-pipe at
8f83dbf2, ``utils/dataset.py`` and ``models/base.py``.
"""

from __future__ import annotations

from ..families.lent import GRAPH_MODEL
from .program import Given
from .rules import Conversion, Source, flag, number, numbers, whole, word_of

_ALL = 10_000
"""More parts than a clip is cut into."""
_LONGEST = 1025
_SHORTER = "A clip that is shorter has the longest length that it fills; there it is left out."
_SEVERAL = "A clip has the longest length that it fills; there it is trained at each of these."
_OF_BUCKETS = "A clip has the longest length of the base that it fills; there the longest of these."
_PARTS = {
    "head": (1, ""),
    "chunk": (_ALL, ""),
    "slide": (_ALL, "Parts do not overlap here."),
    "uniform": (1, "Parts follow each other from the start; there they are spread over the clip."),
    "full": (1, ""),
}
"""How musubi-tuner takes parts of a clip, to the most of them here and what differs."""


def trains_clips(files: Given, to: Conversion) -> bool:
    """Whether the base may be one of videos: a MODEL of the graph, or one that no file names."""
    return files.in_graph and to.values.get("family", GRAPH_MODEL) == GRAPH_MODEL


def set_parts(source: Source, to: Conversion) -> bool:
    """Say which parts of clips musubi-tuner trains.

    Returns:
        Whether it trains any; single frames of clips are images.
    """
    how = source.read("frame_extraction", word_of({each: each for each in _PARTS}), "head")
    lengths = {int(each) for each in source.read("target_frames", numbers, [1.0])}
    key, most, near = "frame_extraction", *_PARTS[how]
    if how == "full":
        source.take(to, "max_frames", "dataset.frames", whole, 129)
        source.off(to, "target_frames", why="The whole clip is trained.")
    elif max(lengths, default=1) < 2:
        why = "Single frames of clips are trained here as images: save them as such."
        to.lack(f"{source.prefix}target_frames", source.values.get("target_frames", [1]), why)
        return False
    else:
        several = _SEVERAL if len(lengths) > 1 else _SHORTER
        there = source.values["target_frames"]
        source.say(to, "dataset.frames", max(lengths), "target_frames", there, several)
        source.off(to, "max_frames", why="It holds for frame_extraction full.")
    if how == "uniform":
        to.tell("dataset.max_clips", f"{source.prefix}{key}", how, near)
        key, most = "frame_sample", source.read("frame_sample", whole, 1)
    source.say(to, "dataset.max_clips", most, key, source.values.get(key, most), near)
    if how == "slide":
        to.lack(f"{source.prefix}frame_stride", source.values.get("frame_stride", 1), near)
    source.unused(to, "frame_sample", "frame_stride", why=f"frame_extraction is {how}.")
    key, rate = f"{source.prefix}source_fps", source.values.get("source_fps")
    if rate is None:
        why = "There each frame of a file counts, whatever its rate; here the base's rate is taken."
        to.lack(key, "unset", why)
    else:
        to.tell("dataset.fps", key, rate, "Frames are taken at the base's rate; files say theirs.")
    return True


_MODES = {
    "single_beginning": (1, ""),
    "single_middle": (1, "A clip begins at its start here."),
    "multiple_overlapping": (_ALL, "Parts do not overlap here."),
}
"""How diffusion-pipe takes parts of a clip, to the most of them here and what differs."""


def set_buckets(source: Source, to: Conversion, key: str, lengths: set[int], mode: str) -> None:
    """Say which parts of clips diffusion-pipe trains.

    Args:
        key: What says the lengths, in frames.
        mode: Its ``video_clip_mode``.
    """
    longer = lengths - {1}
    if not longer:
        why = "There only images of it are trained; here clips of it, too."
        to.lack(f"{source.prefix}{key}", source.values.get(key, [1]), why)
        return
    several = _OF_BUCKETS if len(longer) > 1 else _SHORTER
    source.say(to, "dataset.frames", max(longer), key, source.values[key], several)
    most, near = source.check("video_clip_mode", mode, word_of(_MODES))
    to.say("dataset.max_clips", most, "video_clip_mode", mode, near)


def has_clips(source: Source) -> bool:
    """Whether ai-toolkit reads clips in a dataset, too."""
    automatic = source.read("auto_frame_count", flag, False)
    return automatic or source.read("num_frames", whole, 1) > 1


def set_lengths(source: Source, to: Conversion) -> None:
    """Say which parts of clips ai-toolkit trains, and what of them it gives the base."""
    automatic = source.read("auto_frame_count", flag, False)
    shrinks = source.read("shrink_video_to_frames", flag, True)
    trims = source.read("trim_auto_frame_count_tail", flag, True)
    if automatic:
        key, frames = "auto_frame_count", _LONGEST
        near = "" if trims else "The end of a clip is cut off; there the clip is made faster."
        source.say(to, "dataset.max_clips", 1, key, True)
        source.off(to, "num_frames", "shrink_video_to_frames", why="auto_frame_count is on.")
    else:
        key, frames = "num_frames", source.read("num_frames", whole)
        near = "A long clip is cut into parts; there each step takes a part at random."
        if shrinks:
            near = "A clip is cut into parts at its own speed; there it is squeezed into one."
        source.off(to, "trim_auto_frame_count_tail", why="auto_frame_count is off.")
    source.say(to, "dataset.frames", frames, key, source.values[key], near)
    for name, on in (("shrink_video_to_frames", shrinks), ("trim_auto_frame_count_tail", trims)):
        if source.has(name):
            to.tell("dataset.frames", f"{source.prefix}{name}", on, near)
    if shrinks and not automatic:
        source.off(to, "fps", why="A clip is squeezed into its frames there, whatever its rate.")
    else:
        by = "Frames are taken by time; there one of so many, or the nearest one."
        source.say(to, "dataset.fps", source.read("fps", number, 24.0), "fps", near=by)
    if source.read("do_i2v", flag, False):
        source.say(to, "dataset.start_frame", 1.0, "do_i2v", True)
