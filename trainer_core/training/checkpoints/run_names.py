"""What the files and folders in a run's version are called.

Without torch behind it, so that a host which lists runs knows the names when it starts.
"""

import re

VERSION = re.compile(r"v([0-9]+)")
"""A version's folder, below that of its run."""

RECORD = "run.json"
RUN_FILE, METRICS = "run.yaml", "metrics.jsonl"
LOCK = "lock.json"
CHECKPOINTS, SAMPLES = "checkpoints", "samples"
TRASH = ".trash"
"""Beside the runs: what was cleaned away of them."""
