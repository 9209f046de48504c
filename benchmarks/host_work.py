"""Python calls and operations of a training step beside PEFT's.

Run it as ``python -m benchmarks.host_work``. Nothing is timed.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from .measuring.host_work import BARS, HostWork, measure_host_work
from .measuring.record import origin, write_record

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
COLUMNS = ("python_calls", "operations", "dispatched")


def measure() -> dict[str, dict[str, dict[str, HostWork]]]:
    """Count it by the frozen weights' format, kind and implementation."""
    return {name: measure_host_work(dtype) for name, dtype in DTYPES.items()}


def shares(found: dict[str, dict[str, dict[str, HostWork]]]) -> dict[tuple[str, ...], float]:
    """What ours do over what PEFT's do, over the bar: at most 1 where the bar is met.

    Returns:
        By format, kind, implementation and column.
    """
    over: dict[tuple[str, ...], float] = {}
    for name, kinds in found.items():
        for kind, sources in kinds.items():
            for source in ("ours", "separate"):
                for column in COLUMNS:
                    own, peers = (getattr(sources[each], column) for each in (source, "PEFT"))
                    over[name, kind, source, column] = own / peers / BARS[kind]
    return over


def main() -> None:
    """Measure, print, and write the record where one is wanted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    found = measure()
    rows: list[dict[str, Any]] = [
        {"weights": name, "kind": kind, "source": source, **asdict(work)}
        for name, kinds in found.items()
        for kind, sources in kinds.items()
        for source, work in sources.items()
    ]
    for row in rows:
        print(*row.values(), sep="\t")
    print(f"the nearest to its bar: {max(shares(found).values()):.3f} of it")
    if arguments.output is not None:
        write_record(arguments.output, {"counted": origin(), "rows": rows})


if __name__ == "__main__":
    main()
