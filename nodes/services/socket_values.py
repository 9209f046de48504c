"""What travels between the pack's nodes: small descriptions, and never weights.

ComfyUI keeps every output in its cache, so an output must cost nothing to keep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Values = Mapping[str, Any]
"""Values of a run file's section, by the names of its settings."""


@dataclass(frozen=True, slots=True)
class DatasetChoice:
    """A dataset folder and how it is read.

    Attributes:
        values: The run file's ``dataset`` section.
        role: What its images are for, where it is joined with others.
        weight: Factor on its images' loss, where it is joined with others.
        parts: What it was joined of; empty for one folder.
        made_by: Title of the node that describes it, whose inputs messages name.
    """

    values: Values
    role: str = "train"
    weight: float = 1.0
    parts: tuple[DatasetChoice, ...] = ()
    made_by: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Expert:
    """What one of two MODELs samples, where each has its own levels of noise (Wan 2.2 A14B).

    Attributes:
        begins: Whether it is the one for high noise, with which sampling begins.
        switch_at: Share of the sampling steps that the one for high noise makes.
        levels: The least and the most share of noise that is trained.
        config: ComfyUI's configuration of the MODEL, which the other one has too.
        other: The graph's MODEL of the other one, for previews; None where it is not connected.
    """

    begins: bool
    switch_at: float
    levels: tuple[float, float]
    config: str
    other: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class BaseChoice:
    """A base model: the run file's ``family``, ``base`` and ``training.precision``.

    Attributes:
        model: The graph's MODEL that is trained; None for a base of files. It is the graph's own
            object, which ComfyUI keeps as long as its loader's output.
        expert: Which levels of noise a MODEL is for; None for all.
        vision: The graph's CLIP_VISION, by which the MODEL sees the first frame of a clip, or None.
        audio: The graph's VAE of sound, with which clips are trained with theirs, or None.
    """

    family: str
    values: Values
    precision: str
    model: Any = field(default=None, compare=False)
    expert: Expert | None = None
    vision: Any = field(default=None, compare=False)
    audio: Any = field(default=None, compare=False)

    @property
    def embedded(self) -> bool:
        """Whether it is the tiny base that ships with the pack and needs no other node."""
        return self.values["path"] == "embedded"


@dataclass(frozen=True, slots=True)
class PreviewChoice:
    """What previews generate: the run file's ``preview`` section without ``every``.

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
        trained_clip: The graph's CLIP, whose text encoder is trained; None where it is not.
        marks: What its images were when they were encoded, by the paths of their folders.
        warnings: What was said of its images, for the node that trains.
    """

    manifest: Path
    base: BaseChoice
    dataset: DatasetChoice
    previews: PreviewChoice | None
    trained_clip: Any = None
    marks: Mapping[str, str] = field(default_factory=dict)
    warnings: Sequence[str] = ()


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
