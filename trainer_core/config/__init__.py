"""The run file as pydantic models: the one place of every default, bound and help text."""

from .adapter import AdapterConfig, AdapterKind
from .captions import CaptionSection
from .dataset import CacheSection, DatasetSection, RegularizationSection
from .dataset_folders import DatasetFolder, dataset_folders
from .ema import EmaSection
from .folders import FolderSection, Role
from .loss import LossSection
from .masks import MaskSection
from .metrics import MetricsSection
from .optimizer import OptimizerSection
from .preservation import PreservationSection
from .recovery import RecoverySection
from .run import (
    CONFIG_VERSION,
    BaseAdapter,
    BaseSection,
    MemorySection,
    OutputSection,
    PreviewSection,
    RunConfig,
)
from .schedule import ScheduleSection
from .sigma import SigmaSection
from .slider import SliderSection
from .training import TrainingSection
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
    "RunConfig",
    "ScheduleSection",
    "SigmaSection",
    "SliderSection",
    "TrainingSection",
    "ValidationSection",
    "dataset_folders",
]
