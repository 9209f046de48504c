"""Folders of regularization images that follow from how many images are trained."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Balanced:
    """Folders by their places in `dataset_folders`, to repeats; ``ordinary`` is to equal the rest.

    Attributes:
        key: What the file calls them.
        trained: Those of the trained images.
        ordinary: Those of the regularization images.
    """

    key: str
    trained: dict[int, int]
    ordinary: dict[int, int]
