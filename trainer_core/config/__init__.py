"""The run file as pydantic models: the one place of every default, bound and help text."""

from .adapter import AdapterConfig, AdapterKind
from .captions import CaptionSection
from .dataset import CacheSection, DatasetSection, PreservationSection, RegularizationSection
from .dataset_folders import DatasetFolder, dataset_folders
from .folders import FolderSection, Role
from .masks import MaskSection
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
from .validation import ValidationSection

__all__ = [
    "CONFIG_VERSION",
    "AdapterConfig",
    "AdapterKind",
    "BaseAdapter",
    "BaseSection",
    "CacheSection",
    "CaptionSection",
    "DatasetFolder",
    "DatasetSection",
    "FolderSection",
    "MaskSection",
    "MemorySection",
    "OptimizerSection",
    "OutputSection",
    "PreservationSection",
    "PreviewSection",
    "RegularizationSection",
    "Role",
    "RunConfig",
    "ScheduleSection",
    "SigmaSection",
    "TrainingSection",
    "ValidationSection",
    "dataset_folders",
]
