"""What each kind of preservation keeps and costs: twelve images of an own shape, equal steps.

The tiny template on images of a shape that the base cannot generate, as `own_images`; the shape's
name is the trigger word and an ordinary shape the class word, in every run alike. Run:
``python -m benchmarks.preservation_kinds``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from benchmarks.measuring.record import origin, write_record
from benchmarks.own_images import measure

SEEDS = (1, 2, 3)
_CLASS_WORD = "square"
_PLACE = "dataset.preservation"
KINDS = {
    "none": [f"{_PLACE}.share=0", f"{_PLACE}.prompts=[]"],
    "trajectory": [],
    "class": [f"{_PLACE}.class_word={_CLASS_WORD}"],
    "blank": [],
    "output": [f"{_PLACE}.class_word={_CLASS_WORD}"],
}


def overrides(kind: str, shape: str, steps: int) -> list[str]:
    """Settings of a run with a kind of preservation."""
    own = [] if kind == "none" else [f"{_PLACE}.kind={kind}"]
    return [*own, *KINDS[kind], f"dataset.trigger_word={shape}", f"training.steps={steps}"]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--shape", default="diamond")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--seeds", nargs="*", type=int, default=SEEDS)
    given = parser.parse_args()
    rows, measured = [], origin()
    with tempfile.TemporaryDirectory() as folder:
        for seed in given.seeds:
            for kind in given.kinds:
                settings = overrides(kind, given.shape, given.steps)
                row = {"kind": kind, **measure(given.shape, seed, settings, Path(folder))}
                rows.append(row)
                print(json.dumps(row), flush=True)
    if given.output:
        record = {"benchmark": "preservation_kinds", "measured": measured, "rows": rows}
        write_record(given.output, record)


if __name__ == "__main__":
    main()
