"""The files of figures: each says which commit, machine and libraries it is of."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from trainer_core.requirements import installed_versions

RESULTS = Path(__file__).resolve().parents[1] / "results"
CHANGED = "+changes"
"""Stands behind a commit whose code was changed when it was measured."""

_ROOT = RESULTS.parents[1]
_MEASURED = ("trainer_core", "benchmarks/*.py", "benchmarks/measuring", "benchmarks/campaign")


def origin(device: str = "cpu") -> dict[str, Any]:
    """Say what measures, where, and how busy it is; call it before the first timed round.

    Args:
        device: ``cpu`` or ``cuda``.

    Returns:
        What goes into a file of figures, ready for JSON.
    """
    return {
        "commit": _commit(),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
        "machine": {
            "processor": _processor(),
            "cores": os.cpu_count(),
            "device": torch.cuda.get_device_name() if device == "cuda" else "cpu",
            "system": platform.system(),
        },
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "versions": installed_versions(),
    }


def read_record(path: Path) -> dict[str, Any]:
    """Read a file of figures; an absent one is empty."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def write_record(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file of figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _commit() -> str:
    commit = _git("rev-parse", "HEAD")
    if not commit:
        return "unknown"
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", *_MEASURED)
    return commit + (CHANGED if changed else "")


def _git(*words: str) -> str:
    command = ["git", "-C", str(_ROOT), "-c", f"safe.directory={_ROOT}", *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _processor() -> str:
    """The model of the CPU, as Linux names it, else as Python does."""
    facts = Path("/proc/cpuinfo")
    if facts.is_file():
        named = re.search(r"^model name\s*:\s*(.+)$", facts.read_text(), re.MULTILINE)
        if named:
            return named[1].strip()
    return platform.processor() or platform.machine()
