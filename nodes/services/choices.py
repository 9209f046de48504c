"""What travels between the pack's nodes: small descriptions, never weights.

ComfyUI keeps every output in its cache, so an output must cost nothing to keep.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Values = Mapping[str, Any]
"""Values of a run file's section, by the names of its settings."""


@dataclass(frozen=True, slots=True)
class DatasetChoice:
    """A dataset folder and how it is read: the run file's ``dataset`` section."""

    values: Values


@dataclass(frozen=True, slots=True)
class BaseChoice:
    """A base model: the run file's ``family``, ``base`` and ``training.precision``."""

    family: str
    values: Values
    precision: str

    @property
    def embedded(self) -> bool:
        """Whether it is the tiny base that ships with the pack and needs no other node."""
        return self.values["path"] == "embedded"


@dataclass(frozen=True, slots=True)
class PreviewChoice:
    """What previews draw: the run file's ``preview`` section without ``every``.

    Its ``controls`` are files that Preview Prompts has written.
    """

    values: Values


@dataclass(frozen=True, slots=True)
class EncodedCache:
    """A finished cache.

    Attributes:
        manifest: Its list.
        base: The base that it was encoded for.
        dataset: The dataset's settings.
        previews: What was encoded for previews, or nothing.
    """

    manifest: Path
    base: BaseChoice
    dataset: DatasetChoice
    previews: PreviewChoice | None


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """The run file's ``adapter`` section."""

    values: Values


@dataclass(frozen=True, slots=True)
class SettingsChoice:
    """Other parts of the run file, nested as there."""

    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A run on disk.

    Attributes:
        folder: Its version folder.
        adapter: The adapter file that it yields, in layout comfyui.
        step: The step that this adapter is of.
    """

    folder: Path
    adapter: Path
    step: int
