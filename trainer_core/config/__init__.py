"""The run file as pydantic models: the one place of every default, bound and help text."""

from .adapter import AdapterConfig, AdapterKind
from .base import BaseSection
from .cache import CacheSection
from .dataset import DatasetSection, PreservationSection, RegularizationSection
from .memory import MemorySection
from .output import OutputSection
from .preview import PreviewSection
from .run import CONFIG_VERSION, RunConfig
from .training import OptimizerSection, ScheduleSection, SigmaSection, TrainingSection

__all__ = [
    "CONFIG_VERSION",
    "AdapterConfig",
    "AdapterKind",
    "BaseSection",
    "CacheSection",
    "DatasetSection",
    "MemorySection",
    "OptimizerSection",
    "OutputSection",
    "PreservationSection",
    "PreviewSection",
    "RegularizationSection",
    "RunConfig",
    "ScheduleSection",
    "SigmaSection",
    "TrainingSection",
]
