"""The run file as pydantic models: the one place of every default, bound and help text."""

from .adapter import AdapterConfig, AdapterKind
from .dataset import DatasetFolder, DatasetSection, ValidationSection, dataset_folders
from .folders import CaptionSection, FolderSection, MaskSection, Role
from .loss import LossSection, SigmaSection
from .memory import MemorySection
from .optimizer import OptimizerSection
from .preservation import PreservationSection, RegularizationSection
from .preview import PreviewSection
from .run import (
    CONFIG_VERSION,
    BaseAdapter,
    BaseSection,
    CacheSection,
    MetricsSection,
    OutputSection,
    RunConfig,
)
from .slider import SliderSection
from .training import EmaSection, RecoverySection, RoutingSection, ScheduleSection, TrainingSection

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
    "EmaSection",
    "FolderSection",
    "LossSection",
    "MaskSection",
    "MemorySection",
    "MetricsSection",
    "OptimizerSection",
    "OutputSection",
    "PreservationSection",
    "PreviewSection",
    "RecoverySection",
    "RegularizationSection",
    "Role",
    "RoutingSection",
    "RunConfig",
    "ScheduleSection",
    "SigmaSection",
    "SliderSection",
    "TrainingSection",
    "ValidationSection",
    "dataset_folders",
]
