"""`RunConfig`: a whole run file."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

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
_STEP = re.compile(r"[0-9]{1,12}")


class RunConfig(Section):
    """Everything that decides a run.

    Between a run and its resumption the learning rate and what else shapes the optimizer's steps,
    the schedule, the precision, the length and the `output`, `preview` and `memory` sections may
    change; what decides which run it is must stay as it was.
    """

    family: str = setting("qwen_image", "Architecture of the base model.")
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
        "if there is one of the same run, and starts anew where a finished run would learn in "
        "another way; a number names the checkpoint of a step, a path a checkpoint's or a "
        "version's folder.",
    )
    seed: int = setting(0, "Seed of every draw of the run.", ge=0, lt=2**63)
    config_version: Literal[1] = setting(CONFIG_VERSION, "Version of the run-file format.")

    @field_validator("resume", mode="before")
    @classmethod
    def _step_as_text(cls, value: object) -> object:
        return str(value) if type(value) is int and value >= 0 else value


def names_step(resume: str) -> bool:
    """Whether ``resume`` is the number of a step, and not a word or a path."""
    return _STEP.fullmatch(resume) is not None
