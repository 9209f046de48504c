"""From a folder of images to batches: scan, plan buckets, encode once, deal out batches."""

from .batches import BatchPlan, load_batch
from .buckets import Plan, plan_buckets
from .cache import CachedDataset, Encoders, build_cache
from .folder import Scan, scan

__all__ = [
    "BatchPlan",
    "CachedDataset",
    "Encoders",
    "Plan",
    "Scan",
    "build_cache",
    "load_batch",
    "plan_buckets",
    "scan",
]
