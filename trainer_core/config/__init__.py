"""The run file as pydantic models: the one place of every default, bound and help text."""

from .adapter import AdapterConfig, AdapterKind
from .dataset import CacheSection, DatasetSection, PreservationSection, RegularizationSection
from .run import (
    CONFIG_VERSION,
    BaseAdapter,
    BaseSection,
    MemorySection,
    OutputSection,
    PreviewSection,
    RunConfig,
)
from .training import OptimizerSection, ScheduleSection, SigmaSection, TrainingSection

__all__ = [
    "CONFIG_VERSION",
    "AdapterConfig",
    "AdapterKind",
    "BaseAdapter",
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
