"""Which columns of a metadata file are read, by every name that people give them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

COLUMNS: Mapping[str, tuple[str, ...]] = {
    # Our own name first. 'image_path' and 'video_path' are musubi-tuner's, 'file_name' that of
    # Hugging Face's image folders, 'edited_image' that of edit datasets such as InstructPix2Pix.
    "image": (
        *("image", "image_path", "image_file", "file_name", "filename", "file", "path"),
        *("target", "target_image", "edited_image", "path_target", "video_path"),
    ),
    # 'text' is Hugging Face's, 'prompt' DiffSynth's.
    "caption": ("caption", "captions", "text", "prompt", "instruction", "edit_prompt"),
    # Each may be a list, or be counted: control_1, control_2. 'edit_image' is DiffSynth's,
    # 'path_control' qwen-image-finetune's, 'control_path' musubi-tuner's, 'conditioning_image'
    # that of ControlNet datasets.
    "controls": (
        *("controls", "control", "control_image", "control_images", "control_path"),
        *("edit_image", "edit_images", "conditioning_image", "conditioning_images"),
        *("source", "source_image", "input_image", "original_image", "reference"),
        *("reference_image", "reference_images", "path_control"),
    ),
    "mask": ("mask", "mask_path", "mask_file", "mask_image", "path_mask"),
    "repeats": ("repeats", "num_repeats", "repeat"),
    "weight": ("weight", "loss_weight"),
}
"""What is read, to the names of its column. Upper and lower case make no difference; of two columns
for the same the first one of a row here counts."""

_COUNTED = re.compile(r"^(?P<name>.+?)_(?P<number>\d{1,2})$")


@dataclass(frozen=True, slots=True)
class Columns:
    """Where in a file each thing stands.

    Attributes:
        single: Of what is read, but for control images, to the column.
        controls: The columns of control images, in order, each with its number; None for one that
            is not counted, which comes first.
        unread: Columns that are nothing that is read.
        doubled: Columns that say what another one says already, with that one.
    """

    single: Mapping[str, str]
    controls: tuple[tuple[int | None, str], ...]
    unread: tuple[str, ...]
    doubled: tuple[tuple[str, str], ...]

    @property
    def read(self) -> frozenset[str]:
        """All columns that are read."""
        return frozenset((*self.single.values(), *(name for _, name in self.controls)))


def find_columns(names: Sequence[str]) -> Columns:
    """Tell what the columns of a file are."""
    single: dict[str, str] = {}
    doubled: list[tuple[str, str]] = []
    controls: dict[int | None, str] = {}
    claims = sorted(_claims(names), key=lambda claim: claim[0])
    for (_, number), what, name in claims:
        if what == "controls":
            place = number if number >= 0 else None
            kept = controls.setdefault(place, name)
        else:
            kept = single.setdefault(what, name)
        if kept != name:
            doubled.append((name, kept))
    known = {name for _, _, name in claims}
    unread = tuple(name for name in names if name not in known)
    order = sorted(controls.items(), key=lambda item: -1 if item[0] is None else item[0])
    return Columns(single, tuple(order), unread, tuple(doubled))


def _claims(names: Sequence[str]) -> Iterator[tuple[tuple[int, int], str, str]]:
    """What each column would be: its place in the list of names and its number, and what."""
    for name in names:
        plain = name.strip().casefold()
        counted = _COUNTED.match(plain)
        for what, accepted in COLUMNS.items():
            if plain in accepted:
                yield (accepted.index(plain), -1), what, name
            elif what == "controls" and counted and counted["name"] in accepted:
                place = accepted.index(counted["name"])
                yield (place, int(counted["number"])), what, name
