"""What a step on clips takes with Wan 14B and LTX-2 19B, as a graph trains them, simulated.

The networks are ComfyUI's own at their published sizes, without numbers; every block is
checkpointed, and the adapter is a LoRA of rank 16. ComfyUI keeps as much of the weights on the
device as a step leaves room for, and the rest in RAM. It needs a ComfyUI at $COMFYUI_PATH or
~/ComfyUI.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.measuring.record import RESULTS, origin, write_record

from .train_lora import run_jobs, version

CLIPS = ((384, 384, 33), (256, 256, 81), (512, 512, 33), (832, 480, 81))
"""Width, height and frames: what goals train, and what people ask about."""

NETWORKS = ("Wan 14B", "LTX-2 19B with sound")


def main() -> None:
    """Simulate and write the file of figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "clip_memory.json")
    arguments = parser.parse_args()
    counted = {**origin(), "comfyui": version()}
    jobs: list[dict[str, Any]] = [
        {"network": network, "width": width, "height": height, "frames": frames}
        for network in NETWORKS
        for width, height, frames in CLIPS
    ]
    rows = run_jobs(jobs, "clip_memory_process.py")
    write_record(arguments.output, {"counted": counted, "rows": rows})


if __name__ == "__main__":
    main()
