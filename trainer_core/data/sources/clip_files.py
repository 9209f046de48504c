"""From a clip of a dataset folder to the samples that its parts are."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...errors import DatasetError
from ...filesystem.file_names import CLIP_EXTENSIONS, MOVING_EXTENSIONS
from ...types import ANY_CLIPS, FrameGrid, Sample
from ..clips import ClipFacts, clip_facts, cut_clip
from ..file_memory import FileMemory
from ..image import ImageInfo
from ..image_decoders import NoDecoderError
from ..image_header import header_info
from .folder_problems import BAD_CLIP, Problems

_PART = re.compile(r" #\d+$")


@dataclass(slots=True)
class ClipFiles:
    """The clips of one folder.

    Attributes:
        problems: Told of what is wrong with them.
        grid: Lengths of the clips that the base trains; None where it trains images alone.
    """

    problems: Problems
    grid: FrameGrid | None = None
    remembered: FileMemory | None = None
    _facts: dict[Path, ClipFacts] = field(default_factory=dict)

    def info(self, path: Path, image: Path, name: str) -> ImageInfo | None:
        """What a header says of an image or a clip to train; None, told, where it is unusable.

        Args:
            image: The training image or clip that it belongs to.
        """
        try:
            facts = self._header(path, image, name)
        except DatasetError as error:
            cure = error.cure if isinstance(error, NoDecoderError) else ""
            self.problems.add("unreadable", error.found, image, cure=cure)
            return None
        if (
            facts is not None
            and facts.animated
            and self.problems.settings.animated != "first_frame"
        ):
            self.problems.add("animated", f"{name} has several frames", image)
            return None
        return facts

    def _header(self, path: Path, image: Path, name: str) -> ImageInfo | None:
        """As `info`; None where a clip stands in the place of a control image or a mask."""
        if path.suffix.lower() not in CLIP_EXTENSIONS:
            facts = self.remembered.image_info(path) if self.remembered else header_info(path)
            moves = path.suffix.lower() in MOVING_EXTENSIONS and facts.animated
            if (
                not moves
                or self.grid is None
                or (path != image and image not in self._facts)
                or self.problems.settings.animated != "error"
            ):
                return facts
        elif path != image and image not in self._facts:
            text = f"{name} is a clip in the place of a control image, a mask or a layer"
            self.problems.add(BAD_CLIP, text, image)
            return None
        self.problems.clips.add(path)
        read = self.remembered.clip_facts if self.remembered else clip_facts
        clip = self._facts[path] = read(path, self._rate)
        return ImageInfo(clip.width, clip.height, animated=False)

    @property
    def _rate(self) -> float:
        return self.problems.settings.fps or (self.grid or ANY_CLIPS).rate

    def samples(self, sample: Sample | None) -> Iterator[Sample]:
        """A sample of an image as it is, and one for each part of a clip.

        Raises:
            DatasetError: When ``dataset.frames`` is less than any clip of the base has.
        """
        facts = None if sample is None else self._facts.get(sample.image)
        if sample is None or facts is None or self.grid is None:
            yield from () if sample is None else (sample,)
            return
        settings = self.problems.settings
        shortest, rate = self.grid.frames_of(2), self._rate
        if settings.frames < shortest:
            raise DatasetError(
                f"dataset.frames: {settings.frames}, with clips in {settings.path}",
                f"at least {shortest}, the shortest clip that the base trains",
                f"Set dataset.frames to {shortest} or more, or remove the clips.",
            )
        steering = [self._facts[each] for each in sample.controls if each in self._facts]
        masks = [self._facts[sample.mask]] if sample.mask in self._facts else []
        other = "layers" if sample.layers else ""
        if len(steering) < len(sample.controls):
            other = "a control image"
        elif masks and settings.crop == "mask":
            other = "a mask that moves, and dataset.crop is mask"
        if other:
            self.problems.add(BAD_CLIP, f"{sample.name} is a clip with {other}", sample.image)
            return
        # As far as its control clips and its mask go.
        facts = min((facts, *steering, *masks), key=lambda each: each.duration)
        parts = cut_clip(facts, self.grid.lengths(settings.frames), rate, settings.max_clips)
        if not parts:
            self.problems.add(
                "unreadable",
                f"{sample.name} has {facts.frames(rate)} frames at {rate:g} a second, and the "
                f"shortest clip that is trained has {shortest}",
                sample.image,
            )
        if facts.missing:
            self.problems.tell(
                f"{sample.name} ends {facts.missing:.1f} s before its header says: what is there "
                "is trained"
            )
        for number, part in enumerate(parts):
            name = sample.name if len(parts) == 1 else f"{sample.name} #{number + 1}"
            yield replace(sample, name=name, clip=part)


def image_name(sample: Sample) -> str:
    """The name of its image or clip, which the names of parts begin with."""
    return sample.name if sample.clip is None else _PART.sub("", sample.name)
