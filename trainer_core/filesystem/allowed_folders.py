"""Folders that reading is kept inside of, whatever the links in them say.

A workflow comes from a stranger, and so may what it names: a dataset or a run that was unpacked can
hold links to any file of the machine. Whoever reads for a graph passes `AllowedFolders` down to
where files are listed; on the command line nothing is passed, and links are followed, as the user's
own shell follows them.

What counts is where a path really leads, by the system's own resolution, which knows the junctions
of Windows too. A link that is changed between the look and the reading is not noticed: who can do
that has the machine already.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import InputError


class AllowedFolders:
    """Some folders, and everything that really lies in them.

    Args:
        roots: The folders. One that is itself a link was made so by who configured it, and stands
            for where it leads.
        remedy: What the user can do about a file that is elsewhere.
    """

    def __init__(
        self, roots: Iterable[Path], remedy: str = "Put the file there in place of the link."
    ) -> None:
        self._remedy = remedy
        self._roots = tuple(Path(os.path.realpath(root)) for root in roots)

    def holds(self, path: Path) -> bool:
        """Whether a path, with every link in it followed, lies in one of the folders."""
        real = Path(os.path.realpath(path))
        return any(real.is_relative_to(root) for root in self._roots)

    def require(self, path: Path, what: str, error: type[InputError] = InputError) -> None:
        """Refuse a path that leads elsewhere. Where it leads is not told.

        Args:
            path: A file or folder that is to be read, or written.
            what: What the message calls it: a setting, or an input of a node.

        Raises:
            InputError: When it does.
        """
        if not self.holds(path):
            raise error(
                f"{what}: {path} is a link that leads out of the allowed folders",
                "files and folders that lie there themselves",
                self._remedy,
            )

    def require_all(self, folder: Path, what: str) -> None:
        """Refuse a folder of ours from which any link leads elsewhere, however deep.

        Raises:
            InputError: As `require`. A folder that is absent holds no link.
        """
        self.require(folder, what)
        waiting = [folder]
        while waiting:
            place = waiting.pop()
            if not place.is_dir():
                continue
            with os.scandir(place) as entries:
                found = list(entries)
            for entry in found:
                # A junction of Windows calls itself a folder, not a link, in older Pythons.
                folder_itself = entry.is_dir(follow_symlinks=False)
                if folder_itself or entry.is_symlink():
                    self.require(place / entry.name, what)
                if folder_itself:
                    waiting.append(place / entry.name)
