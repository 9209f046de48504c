"""Encodes the clips of a world, kills itself at a number of files, and tells what it took.

Arguments: the world's folder, and after how many files to stop; 0 for never.
"""

import json
import os
import resource
import signal
import sys
from pathlib import Path

from tests.fixtures.cache_world import TinyEncoders
from trainer_core.config import DatasetSection
from trainer_core.data.buckets import plan_buckets
from trainer_core.data.cache.build import build_cache
from trainer_core.data.sources.folder import scan
from trainer_core.types import FrameGrid

root, stop = Path(sys.argv[1]), int(sys.argv[2])
settings = DatasetSection(path=str(root / "data"), resolution=256, frames=17)
plan = plan_buckets(scan(settings, grid=FrameGrid(4, 16.0)).samples, settings, 16, None)
peaks = []


def notify(done, total):
    """Note the most memory so far, in MiB."""
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    if done == stop > 0:
        os.kill(os.getpid(), signal.SIGKILL)


dataset = build_cache(plan, root / "cache", "tiny", TinyEncoders().open, settings, notify)
growth = peaks[-1] - peaks[len(peaks) // 10]
told = {"encoded": dataset.encoded, "reused": dataset.reused, "growth": growth}
sys.stdout.write(json.dumps(told))
