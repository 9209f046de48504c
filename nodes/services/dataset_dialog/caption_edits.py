"""What is edited at a node, captions and choices for images: written to files, and taken back.

A text is saved only over the one that was read: what another program wrote since stays. What an
edit replaced is noted in a journal outside of the dataset, before the file is changed, so that no
moment loses it and the dataset holds nothing but images and captions.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ....trainer_core.errors import DatasetError, InputError
from ....trainer_core.filesystem.allowed_folders import AllowedFolders
from ....trainer_core.filesystem.file_names import leads_out
from ....trainer_core.filesystem.storage import unlink, write_json, write_text
from ....trainer_core.printable import listed
from ...host.folders import clear_leftovers

KEPT = 100
"""Edits of a folder that can be taken back."""

_KEPT_TEXT = 2**22
"""Characters of theirs, so that the journal can always be read again."""

ABSENT = "absent"
"""What stands for the text of a caption that has no file."""

_NAMED = 5
_NO_CAPTION = (
    "this text is too long for a caption, or holds what is not a letter",
    "a caption of some sentences",
    "Shorten it.",
)
_UNREADABLE = "\0"
"""What stands for a text that cannot be read, which no caption has."""

_LOCK = threading.Lock()

Change = Callable[[Path, "Caption"], str]
"""An image and its caption to what that becomes."""


class Caption(NamedTuple):
    """A caption as it is on the disk; the token changes with its text."""

    file: Path
    text: str | None

    @property
    def token(self) -> str:
        """What an edit has to name, so that it replaces nothing but what was read."""
        return ABSENT if self.text is None else hashlib.sha256(self.text.encode()).hexdigest()


def caption_at(image: Path, extension: str, within: AllowedFolders) -> Caption:
    """The caption of an image, whose file has the extension and really has to lie in `within`.

    Raises:
        InputError: When its file cannot be read, or is a link that leads elsewhere.
    """
    from ....trainer_core.data.sources.caption_files import read_caption
    from ....trainer_core.data.sources.list_files import caption_beside

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
        return _count(self._noted())

    def save(self, image: Path, extension: str, text: str, token: str) -> Caption:
        """Write a caption over the one that had this token, and give it as it is now.

        Raises:
            InputError: When the file is another than the one that was read, or the text no text.
            StorageError: When it cannot be written.
        """
        text = caption_text(text)
        with _LOCK:
            self._within.require(image, "image")
            now = caption_at(image, extension, self._within)
            if now.token != token:
                raise InputError(
                    f"{now.file.name} was changed by another program since it was shown here",
                    "the text that was shown",
                    "Copy what you wrote, look at the new text, and edit that.",
                )
            if now.text == text or (now.text is None and not text):
                return now
            self._note(self._noted(), (now, text))
            write_text(now.file, text + "\n")
            return Caption(now.file, text)

    def save_all(self, images: Iterable[Path], extension: str, change: Change) -> tuple[int, int]:
        """Change the captions of many images, as one edit.

        Gives how many were changed, and how many stay because they are not plain text.

        Raises:
            InputError: When a text would be none, or there is more of it than can be taken back.
            StorageError: When one cannot be written; undo takes back those before it.
        """
        with _LOCK:
            changes, unread = [], 0
            for image in images:
                self._within.require(image, "image")
                try:
                    now = caption_at(image, extension, self._within)
                except DatasetError:
                    unread += 1
                    continue
                if now.file.suffix == ".json":
                    unread += 1
                elif (text := caption_text(change(image, now))) != (now.text or ""):
                    changes.append((now, text))
            if changes:
                self._note(self._noted(), *changes)
            for now, text in changes:
                write_text(now.file, text + "\n")
            return len(changes), unread

    def choose(self, image: Path, choice: Mapping[str, Any]) -> None:
        """Leave an image out, or keep another part of it; `changed_choices` takes such a choice.

        Raises:
            DatasetError: When the choice is none, or those before it cannot be read.
            StorageError: When it cannot be written.
        """
        from ....trainer_core.data.sources.image_choices import FILE, changed_choices

        with _LOCK:
            name, file = image.relative_to(self._folder).as_posix(), self._folder / FILE
            now, text = Caption(file, _text_of(file)), changed_choices(self._folder, name, choice)
            if text == now.text:
                return
            if now.text != _UNREADABLE:
                self._note(self._noted(), (now, text), image=name)
            write_text(file, text + "\n")

    def undo(self) -> list[Path]:
        """Take back the last edit that is still as it was left.

        Gives the caption files, or the image that was chosen for, below the dataset; none where
        there is nothing to take back.

        Raises:
            InputError: When a file was changed since; its edit is then forgotten.
            StorageError: When it cannot be written.
        """
        with _LOCK:
            noted, done, changed = self._noted(), list[Path](), list[str]()
            while noted and not (done or changed):
                begins = (at for at, edit in enumerate(noted) if not edit["more"])
                first = max(begins, default=0)
                for edit in reversed(noted[first:]):
                    self._take_back(edit, done, changed)
                del noted[first:]
                self._keep(noted)
            if changed:
                raise InputError(
                    f"{listed(changed, _NAMED)} was changed by another program after the edit",
                    "the text that was written here",
                    "It stays as it is; undo once more takes back the edit before.",
                )
            return done

    def _take_back(self, edit: Mapping[str, Any], done: list[Path], changed: list[str]) -> None:
        file = self._folder / edit["file"]
        self._within.require(file, "caption")
        text = _text_of(file)
        if text == edit["before"]:
            return  # The program ended between the note and the edit.
        if text != edit["after"]:
            changed.append(edit["file"])
            return
        if edit["before"] is None:
            unlink(file)
        else:
            write_text(file, edit["before"] + "\n")
        done.append(Path(edit.get("image", edit["file"])))

    def _note(
        self, noted: list[dict[str, Any]], *changes: tuple[Caption, str], **more: str
    ) -> None:
        edits: list[dict[str, Any]] = [
            {
                "file": now.file.relative_to(self._folder).as_posix(),
                "before": now.text,
                "after": text,
                "more": at > 0,
                **more,
            }
            for at, (now, text) in enumerate(changes)
        ]
        if _size(edits) > _KEPT_TEXT:
            raise InputError(
                f"{len(edits)} captions with more text than can be taken back",
                f"at most {_KEPT_TEXT} letters in one edit",
                "Edit them in another program.",
            )
        noted = [*noted, *edits]
        while _size(noted) > _KEPT_TEXT or _count(noted) > KEPT:
            del noted[: next(at for at, each in enumerate(noted) if at and not each["more"])]
        self._keep(noted)

    def _keep(self, noted: list[dict[str, Any]]) -> None:
        clear_leftovers(self._journal.parent)
        write_json(self._journal, {"folder": str(self._folder), "edits": noted})

    def _noted(self) -> list[dict[str, Any]]:
        from ....trainer_core.filesystem.text_files import read_object

        def refuse(reason: str) -> InputError:
            return InputError(
                f"{self._journal}: {reason}", "the journal of edits", "Remove the file."
            )

        if not self._journal.is_file():
            return []
        edits = read_object(self._journal, refuse).get("edits")
        found = [each for each in edits if _is_edit(each)] if isinstance(edits, list) else []
        return [{"more": False} | each for each in found]


def change_of(way: object, text: object, find: object) -> Change:
    """What becomes of the captions of all images.

    Args:
        way: ``fill`` writes where there is none, ``all`` everywhere, ``replace`` what was found;
            ``front`` puts a tag in front of those that lack it, ``remove`` takes one out.
        find: What is replaced; upper and lower case are told apart.

    Raises:
        InputError: When it is none of these.
    """
    if isinstance(text, str) and isinstance(find, str):
        if way == "fill" and text.strip():
            return lambda _, now: now.text or text
        if way == "all" and text.strip():
            return lambda _, now: text
        if way == "replace" and find:
            return lambda _, now: _replaced(now.text or "", find, text)
        if way == "front" and text.strip():
            return lambda _, now: _with_tag(now.text or "", text.strip())
        if way == "remove" and find.strip():
            return lambda _, now: _without_tag(now.text or "", find.strip())
    field = "Find" if way in {"replace", "remove"} else "Text"
    raise InputError(f"{field} is empty", "the words for all captions", f"Type them into {field}.")


def _size(edits: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(each["before"] or "") + len(each["after"]) for each in edits)


def _count(edits: Sequence[Mapping[str, Any]]) -> int:
    return sum(not each["more"] for each in edits)


def _text_of(file: Path) -> str | None:
    from ....trainer_core.data.sources.caption_files import read_caption

    try:
        return read_caption(file) if file.is_file() else None
    except DatasetError:
        return _UNREADABLE


def _is_edit(value: Any) -> bool:
    own = {"more", "image"}
    if not isinstance(value, dict) or value.keys() - own != {"file", "before", "after"}:
        return False
    file = value["file"]
    inside = isinstance(file, str) and not leads_out(Path(file))
    inside = inside and isinstance(value.get("image", ""), str)
    return inside and isinstance(value["after"], str) and isinstance(value["before"], str | None)


def tags_of(text: str) -> list[str]:
    """The parts of a caption between commas, without those that are empty."""
    return [part for each in text.split(",") if (part := each.strip())]


def _with_tag(text: str, tag: str) -> str:
    return text if tag in tags_of(text) else ", ".join(filter(None, [tag, text]))


def _without_tag(text: str, tag: str) -> str:
    tags = tags_of(text)
    return ", ".join(each for each in tags if each != tag) if tag in tags else text


def _replaced(before: str, find: str, text: str) -> str:
    from ....trainer_core.data.sources.caption_files import LARGEST_CAPTION

    # Before it is made: each of many letters may become a long text.
    if before.count(find) * len(text) > LARGEST_CAPTION:
        raise InputError(*_NO_CAPTION)
    return before.replace(find, text)


def caption_text(text: str) -> str:
    """A text as a caption file holds it; `InputError` where it is too long, or no text."""
    from ....trainer_core.data.sources.caption_files import LARGEST_CAPTION

    # A byte-order mark is not read back as a letter, so the next look would find another text.
    text = text.replace("\ufeff", "").replace("\r\n", "\n").replace("\r", "\n").strip()
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = LARGEST_CAPTION + 1
    if size > LARGEST_CAPTION or "\0" in text:
        raise InputError(*_NO_CAPTION)
    return text
