"""Captions that a captioner of the graph proposes for the images of a folder.

They are kept outside of the dataset, and shown beside the captions that are there; a person takes
them one by one or all. Which image a text is for, its look says: loaders list a folder in any
order, and a caption of another image would be trained in silence.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ....trainer_core.errors import InputError
from ....trainer_core.filesystem.allowed_folders import AllowedFolders
from ....trainer_core.filesystem.storage import unlink, write_json
from . import caption_edits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

_CANDIDATES = 3.0
"""Greys beyond the nearest image up to which colours decide."""

_FAR = 8.0
"""Mean difference of the colours, of 255, of an image that was encoded or resized on its way."""

_SIDE = 16
_MOST_BYTES = 64 * 2**20


class Proposal(NamedTuple):
    """A caption that is proposed for an image.

    Attributes:
        text: What is proposed.
        token: Of the caption that the image had then.
    """

    text: str
    token: str


class Proposals:
    """The proposals for one dataset folder.

    Args:
        folder: The dataset, which is only read.
        kept: Folder outside of it that keeps them.
    """

    def __init__(self, folder: Path, kept: Path) -> None:
        self._folder = folder
        name = hashlib.sha256(os.path.realpath(folder).encode(errors="surrogateescape"))
        self._file = kept / f"{name.hexdigest()[:24]}.proposed.json"

    def read(self) -> dict[str, Proposal]:
        """Proposals by the images' names; nothing where there are none that can be read."""
        from ....trainer_core.filesystem.text_files import read_object

        def refuse(reason: str) -> InputError:
            return InputError(f"{self._file}: {reason}", "proposed captions", "Propose them again.")

        try:
            found = read_object(self._file, refuse, _MOST_BYTES)["captions"]
            return {str(name): Proposal(str(text), str(token)) for name, text, token in found}
        except (InputError, OSError, ValueError, TypeError, LookupError):
            return {}

    def write(self, proposals: dict[str, Proposal]) -> None:
        """Keep proposals in the place of those before; without any the file goes.

        Raises:
            StorageError: When the disk is full.
        """
        if not proposals:
            return unlink(self._file)
        captions = [[name, *each] for name, each in proposals.items()]
        return write_json(self._file, {"folder": str(self._folder), "captions": captions})


def propose(
    folder: Path, kept: Path, images: Sequence[Tensor], texts: Sequence[str], extension: str
) -> str:
    """Keep texts as proposals for the images of a folder that look like the ones they describe.

    There is one text for each image `[B, H, W, C]`, floats in [0, 1]. Gives how many were kept, in
    words.

    Raises:
        InputError: When there are not as many texts as images, one is not a caption, or no image is
            of the folder.
    """
    from ....trainer_core.filesystem.file_names import IMAGE_EXTENSIONS

    frames = [frame for batch in images for frame in batch]
    if len(frames) != len(texts):
        raise InputError(
            f"{len(texts)} captions for {len(frames)} images",
            "one caption for each image",
            "Connect the captioner's images, and its captions as a list.",
        )
    paths = sorted(
        each
        for each in folder.rglob("*")
        if each.suffix.lower() in IMAGE_EXTENSIONS and each.is_file()
    )
    within, found, strange = AllowedFolders([folder]), dict[str, Proposal](), 0
    matches = _Files([each for each in paths if within.holds(each)])
    for frame, text in zip(frames, texts, strict=True):
        caption = caption_edits.caption_text(str(text))
        same = matches.like(frame) if caption else []
        strange += not same
        for path in same:
            token = caption_edits.caption_at(path, extension, within).token
            found[path.relative_to(folder).as_posix()] = Proposal(caption, token)
    if not found:
        raise InputError(
            f"none of the {len(frames)} images is one of {folder.name}, or all captions are empty",
            "images of this folder with what a captioner says of them",
            "Choose the folder that the images are loaded from, and do not crop them before.",
        )
    Proposals(folder, kept).write(found)
    rest = f" {strange} more are of no image of it, or empty." if strange else ""
    return f"{len(found)} captions are proposed.{rest} Click an image of the dataset to take them."


def taken_proposals(folder: Path, proposals: Mapping[str, Proposal]) -> caption_edits.Change:
    """Each image's proposal, unless its caption is another than when it was proposed."""

    def change(image: Path, now: caption_edits.Caption) -> str:
        own = proposals.get(image.relative_to(folder).as_posix())
        # A caption that is gone is none that anybody wrote; one that is empty was emptied.
        may = own is not None and now.token in {own.token, caption_edits.ABSENT}
        return own.text if own is not None and may else now.text or ""

    return change


def single_value(name: str, values: Sequence[str]) -> str:
    """The value of an input that all images share; a link may bring a list.

    Raises:
        InputError: When there are several different ones, or none.
    """
    found = set(values)
    if len(found) != 1:
        raise InputError(
            f"{len(found)} values for {name}",
            "one for all images",
            f"Disconnect {name}, and choose it here.",
        )
    return found.pop()


class _Files:
    """Images of a folder, to be found by their looks."""

    def __init__(self, paths: Sequence[Path]) -> None:
        from ....trainer_core.data.report.image_fingerprints import look_at_images

        looks = look_at_images(paths)
        whole = [at for at in range(len(paths)) if at not in looks.broken]
        self._paths = [paths[at] for at in whole]
        self._contents = [looks.contents[at] for at in whole]
        self._looks = looks.looks[whole].astype("float32")
        self._own_colours: dict[int, NDArray[np.float32]] = {}

    def like(self, frame: Tensor) -> list[Path]:
        """The image that `[H, W, C]`, in [0, 1], was loaded from, with files of the same bytes."""
        import numpy as np
        from PIL import Image

        from ....trainer_core.data.report.duplicates import MOST_GREY
        from ....trainer_core.data.report.image_fingerprints import image_look

        values = (frame[..., :3].float().clamp(0, 1) * 255).round().byte().cpu().numpy()
        image = Image.fromarray(np.ascontiguousarray(values)).convert("RGB")
        if not self._paths:
            return []
        look = np.frombuffer(image_look(image), dtype=np.uint8).astype(np.float32)
        far = np.abs(look - self._looks).mean(axis=1)
        near = np.flatnonzero(far <= min(MOST_GREY, float(far.min()) + _CANDIDATES))
        own = _colours(image)
        colours = [float(np.abs(own - self._file_colours(at)).mean()) for at in near]
        if not colours or min(colours) > _FAR:
            return []
        best = self._contents[near[int(np.argmin(colours))]]
        files = zip(self._paths, self._contents, strict=True)
        return [path for path, content in files if content == best]

    def _file_colours(self, at: int) -> NDArray[np.float32]:
        from ....trainer_core.data.report.image_fingerprints import file_bytes, small_image

        if at not in self._own_colours:
            self._own_colours[at] = _colours(small_image(file_bytes(self._paths[at]), 4 * _SIDE))
        return self._own_colours[at]


def _colours(image: Any) -> NDArray[np.float32]:
    import numpy as np
    from PIL import Image

    small = image.copy()
    small.thumbnail((4 * _SIDE, 4 * _SIDE), Image.Resampling.BOX)
    small = small.convert("RGB").resize((_SIDE, _SIDE), Image.Resampling.BOX)
    return np.asarray(small, dtype=np.float32)
