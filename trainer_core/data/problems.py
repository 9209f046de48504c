"""What is wrong with a dataset, sorted by the setting that decides about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..config import DatasetSection
from ..errors import DatasetError

_SHOWN = 5

# In the order in which they are told: a broken image explains a caption without image.
_EXPECTED = {
    "unreadable": (
        "whole pictures as PNG, JPEG, WebP or BMP",
        "Save the pictures again with an image editor, or set dataset.unreadable: skip.",
    ),
    "animated": (
        "pictures with one frame",
        "Save the frame you want as a picture, or set dataset.animated: first_frame or skip.",
    ),
    "missing_control": (
        "a control picture for every training picture and the reverse, of the same name (or "
        "name_0, name_1, ... without gaps)",
        "Rename or add the files, or set dataset.missing_control: skip.",
    ),
    "missing_caption": (
        "a caption file with text for every picture",
        "Write the missing captions, or set dataset.missing_caption: empty (train without text) "
        "or skip.",
    ),
    "missing_image": (
        "a picture for every caption file",
        "Add the pictures or remove the captions, or set dataset.missing_image: skip.",
    ),
}


@dataclass(slots=True)
class Problems:
    """Collects what was found, so that one message can name it all.

    Attributes:
        settings: The policies.
        problems: What was left out, in words.
    """

    settings: DatasetSection
    problems: list[str] = field(default_factory=list)
    _errors: dict[str, list[str]] = field(default_factory=dict)

    def add(self, policy: str, text: str) -> None:
        """Note something that a policy decides about.

        Args:
            policy: Name of the setting under ``dataset``.
            text: What was found, naming the file.
        """
        if getattr(self.settings, policy) == "error":
            self._errors.setdefault(policy, []).append(text)
        self.problems.append(f"left out: {text}")

    def refusal(self) -> DatasetError | None:
        """Why a policy says to stop; None when none does.

        Returns:
            An error that names the first files of the gravest kind and how many more there are.
        """
        for policy, (expected, remedy) in _EXPECTED.items():
            texts = self._errors.get(policy)
            if texts:
                more = len(texts) - _SHOWN
                found = "; ".join(texts[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")
                return DatasetError(found, expected, remedy)
        return None
