"""Captions that are edited at a node: written to their files, and taken back again.

A text is saved only over the one that was read: what another program wrote since stays. What an
edit replaced is noted in a journal outside of the dataset, before the file is changed, so that no
moment loses it and the dataset holds nothing but images and captions.
"""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

from ...trainer_core.errors import InputError
from ...trainer_core.filesystem.allowed_folders import AllowedFolders
from ...trainer_core.filesystem.storage import unlink, write_json, write_text
from ..host.folders import clear_leftovers

KEPT = 100
"""Edits of a folder that can be taken back."""

_KEPT_TEXT = 2**22
"""Characters of theirs, so that the journal can always be read again."""

ABSENT = "absent"
"""What stands for the text of a caption that has no file."""

_LOCK = threading.Lock()


class Caption(NamedTuple):
    """A caption as it is on the disk; the token changes with its text."""

    file: Path
    text: str | None

    @property
    def token(self) -> str:
        """What an edit has to name, so that it replaces nothing but what was read."""
        return ABSENT if self.text is None else hashlib.sha256(self.text.encode()).hexdigest()


def read(image: Path, extension: str, within: AllowedFolders) -> Caption:
    """The caption of an image.

    Args:
        image: The image.
        extension: Of caption files, such as ``.txt``.
        within: What its file really has to lie in.

    Raises:
        InputError: When its file cannot be read, or is a link that leads elsewhere.
    """
    from ...trainer_core.data.captions import read_caption
    from ...trainer_core.data.sources.listing import caption_beside

    file = caption_beside(image, extension)
    if file is None:
        return Caption(image.with_suffix(extension), None)
    within.require(file, "caption")
    return Caption(file, read_caption(file))


class Edits:
    """The edits of one dataset folder.

    Args:
        folder: The dataset. No link that leads out of it is followed.
        journals: Where such journals are kept.
    """

    def __init__(self, folder: Path, journals: Path) -> None:
        self._folder = folder
        self._within = AllowedFolders([folder])
        name = hashlib.sha256(os.path.realpath(folder).encode(errors="surrogateescape"))
        self._journal = journals / f"{name.hexdigest()[:24]}.json"

    def count(self) -> int:
        """How many edits can be taken back."""
        return len(self._noted())

    def save(self, image: Path, extension: str, text: str, token: str) -> Caption:
        """Write a caption.

        Args:
            image: The image that it describes.
            extension: Of caption files.
            text: The new text.
            token: Of the caption that was read before.

        Returns:
            The caption as it is now.

        Raises:
            InputError: When the file is another than the one that was read, or the text no text.
            StorageError: When it cannot be written.
        """
        text = _plain(text)
        with _LOCK:
            self._within.require(image, "image")
            now = read(image, extension, self._within)
            if now.token != token:
                raise InputError(
                    f"{now.file.name} was changed by another program since it was shown here",
                    "the text that was shown",
                    "Copy what you wrote, look at the new text, and edit that.",
                )
            if now.text == text or (now.text is None and not text):
                return now
            self._note(self._noted(), now, text)
            write_text(now.file, text + "\n")
            return Caption(now.file, text)

    def undo(self) -> Path | None:
        """Take back the last edit that is still as it was left.

        Returns:
            The caption's file, below the dataset; None when there is nothing to take back.

        Raises:
            InputError: When the file was changed since; the edit is then forgotten.
            StorageError: When it cannot be written.
        """
        from ...trainer_core.data.captions import read_caption

        with _LOCK:
            noted = self._noted()
            while noted:
                edit = noted.pop()
                file = self._folder / edit["file"]
                self._within.require(file, "caption")
                text = read_caption(file) if file.is_file() else None
                if text == edit["before"]:
                    # The program ended between the note and the edit.
                    continue
                if text != edit["after"]:
                    self._keep(noted)
                    raise InputError(
                        f"{edit['file']} was changed by another program after the edit",
                        "the text that was written here",
                        "It stays as it is; undo once more takes back the edit before.",
                    )
                if edit["before"] is None:
                    unlink(file)
                else:
                    write_text(file, edit["before"] + "\n")
                self._keep(noted)
                return Path(edit["file"])
            self._keep(noted)
            return None

    def _note(self, noted: list[dict[str, Any]], now: Caption, text: str) -> None:
        file = now.file.relative_to(self._folder).as_posix()
        noted = [*noted, {"file": file, "before": now.text, "after": text}][-KEPT:]
        while sum(len(each["before"] or "") + len(each["after"]) for each in noted) > _KEPT_TEXT:
            del noted[0]
        self._keep(noted)

    def _keep(self, noted: list[dict[str, Any]]) -> None:
        clear_leftovers(self._journal.parent)
        write_json(self._journal, {"folder": str(self._folder), "edits": noted})

    def _noted(self) -> list[dict[str, Any]]:
        from ...trainer_core.filesystem.text_files import read_object

        def refuse(reason: str) -> InputError:
            return InputError(
                f"{self._journal}: {reason}", "the journal of edits", "Remove the file."
            )

        if not self._journal.is_file():
            return []
        edits = read_object(self._journal, refuse).get("edits")
        return [each for each in edits if _is_edit(each)] if isinstance(edits, list) else []


def _is_edit(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {"file", "before", "after"}:
        return False
    file = value["file"]
    inside = isinstance(file, str) and ".." not in file.split("/") and not Path(file).is_absolute()
    return inside and isinstance(value["after"], str) and isinstance(value["before"], str | None)


def _plain(text: str) -> str:
    from ...trainer_core.data.captions import LARGEST_CAPTION

    # A byte-order mark is not read back as a letter, so the next look would find another text.
    text = text.replace("\ufeff", "").replace("\r\n", "\n").replace("\r", "\n").strip()
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = LARGEST_CAPTION + 1
    if size > LARGEST_CAPTION or "\0" in text:
        raise InputError(
            "this text is too long for a caption, or holds what is no letter",
            "a caption of some sentences",
            "Shorten it.",
        )
    return text
