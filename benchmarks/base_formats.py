"""What an adapter learns on a base that is kept in fewer bits, beside the dense one.

The template, shapes and seeds of `own_images`; the adapter is trained and asked on the same base.
Run: ``python -m benchmarks.base_formats``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
from pathlib import Path

from benchmarks.measuring.record import origin, write_record
from benchmarks.own_images import SEEDS, SHAPES, measure

WAYS = {
    "dense": [],
    "fp8": ["memory.base_format=fp8"],
    "int8": ["memory.base_format=int8"],
    "int8_rotated": ["memory.base_format=int8_rotated"],
    "int8_rotated, compute 8bit": ["memory.base_format=int8_rotated", "memory.compute=8bit"],
    "nf4": ["memory.base_format=nf4"],
}
"""What is measured, to further settings of the run."""


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    rows, measured = [], origin()
    for shape, seed in itertools.product(SHAPES, SEEDS):
        for way, settings in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                row = {"way": way, **measure(shape, seed, settings, Path(folder))}
            rows.append(row)
            print(json.dumps(row), flush=True)
    if given.output:
        record = {"benchmark": "base_formats", "measured": measured, "rows": rows}
        write_record(given.output, record)


if __name__ == "__main__":
    main()
