"""`RunConfig`: a whole run file."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from .adapter import AdapterConfig
from .base import BaseSection
from .cache import CacheSection
from .dataset import DatasetSection
from .memory import MemorySection
from .output import OutputSection
from .preview import PreviewSection
from .section import Section, setting
from .training import TrainingSection

CONFIG_VERSION = 1


class RunConfig(Section):
    """Everything that decides a run.

    `resume` and the `output`, `preview` and `memory` sections may change between a run and its
    resumption; everything else must stay as it was.
    """

    family: Literal["qwen_image", "flux"] = setting("qwen_image", "Architecture of the base model.")
    base: BaseSection = Field(default_factory=BaseSection, description="The frozen base model.")
    dataset: DatasetSection = Field(
        default_factory=DatasetSection, description="The training pictures."
    )
    cache: CacheSection = Field(
        default_factory=CacheSection, description="Encoded pictures and captions."
    )
    adapter: AdapterConfig = Field(default_factory=AdapterConfig, description="The adapter.")
    training: TrainingSection = Field(
        default_factory=TrainingSection, description="Length and shape of the run."
    )
    preview: PreviewSection = Field(
        default_factory=PreviewSection, description="Pictures drawn while the run trains."
    )
    memory: MemorySection = Field(default_factory=MemorySection, description="Device and memory.")
    output: OutputSection = Field(default_factory=OutputSection, description="What is written.")
    resume: str = setting(
        "none",
        "'none' starts a new version; 'latest' goes on with the newest checkpoint; 'auto' does so "
        "if there is one that was made with the same settings; a path names a checkpoint folder.",
    )
    seed: int = setting(0, "Seed of every draw of the run.", ge=0, lt=2**63)
    config_version: Literal[1] = setting(CONFIG_VERSION, "Version of the run-file format.")
