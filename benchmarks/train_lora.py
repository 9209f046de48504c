"""A training step through a MODEL beside one of ComfyUI's own Train LoRA node.

Both train a LoRA of the same rank on every Linear and convolution of the same model, one image at a
time, with AdamW, in one process of ComfyUI's interpreter and one thread. The node also trains every
norm and bias, which it cannot leave. Rounds go through all ways in turn; a ratio is of the fastest
steps, in seconds of the CPU. Memory is looked at in runs of its own.

It needs a ComfyUI at $COMFYUI_PATH or ~/ComfyUI, and up to 12 GB of memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks.measuring.record import RESULTS, origin, read_record, write_record

ROOT = RESULTS.parents[1]
TESTS = ROOT / "tests"
MODELS = ("sdxl", "flux", "sdxl wide", "flux wide")
WAYS = (("ours", 1), ("weights", 1), ("weights", 2), ("bypass", 1), ("bypass", 2))
"""Who trains, and the depth of its gradient checkpointing: the node's default is 1, the whole
model at once; at 2 it is about the blocks, as ours."""

WIDE_WAYS = (("ours", 1), ("weights", 1), ("weights", 2), ("bypass", 2))
WITHOUT = (("ours", 0), ("weights", 0), ("bypass", 0))
"""Without checkpointing; ComfyUI's FLUX cannot be trained so by the node."""


def main() -> None:
    """Measure and write the file of figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=RESULTS / "train_lora.json")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=MODELS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sections = dict(read_record(arguments.output).get("sections", {}))
    for model in arguments.models:
        measured = {**origin(), "rounds": arguments.rounds, "comfyui": version()}
        rows = measure(model, arguments.rounds)
        sections[model] = {"counted": measured, "timed": measured, "rows": rows}
        write_record(arguments.output, {"sections": sections})


def ways_of(model: str) -> Sequence[tuple[str, int]]:
    """Who trains a model, each with the depth of its checkpointing."""
    if model.endswith("wide"):
        return WIDE_WAYS
    if model.startswith("flux"):
        return WAYS
    return (*WAYS, *WITHOUT)


def measure(model: str, rounds: int) -> list[dict[str, Any]]:
    """One row for each way to train a model."""
    steps = 2 if model.endswith("wide") else 5
    kind = {"model": model, "steps": steps}
    jobs = [kind | {"who": who, "depth": depth} for who, depth in ways_of(model)]
    found = run_jobs([*(job | {"memory": True, "steps": 2} for job in jobs), *jobs * rounds])
    rows = []
    for number, job in enumerate(jobs):
        memory = found[number]
        timed = found[len(jobs) + number :: len(jobs)]
        cpu = [each for run in timed for each in run["cpu_seconds"]]
        seconds = {
            "cpu_seconds": statistics.median(cpu),
            "best_cpu_seconds": min(cpu),
            "seconds": statistics.median(each for run in timed for each in run["seconds"]),
        }
        sizes = {name: memory[name] for name in ("weights", "tensors", "resident")}
        rows.append(job | {name: round(each, 4) for name, each in seconds.items()} | sizes)
    return rows


def run_jobs(
    jobs: Sequence[dict[str, Any]], name: str = "train_lora_process.py"
) -> list[dict[str, Any]]:
    """Have ComfyUI's interpreter do jobs in order, by a script beside this one."""
    tested = _environment()
    folder = tested.comfyui_folder()
    if folder is None:
        raise SystemExit("no ComfyUI at $COMFYUI_PATH or ~/ComfyUI")
    python = tested.environment_over(tested.comfyui_python(folder))
    script = Path(__file__).with_name(name)
    with tempfile.TemporaryDirectory() as place:
        listed = Path(place, "jobs.json")
        listed.write_text(json.dumps(jobs), encoding="utf-8")
        command = [str(python), str(script), str(ROOT), place, str(listed)]
        paths = f"{folder}{os.pathsep}{TESTS / 'comfyui'}"
        told = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
        subprocess.run(command, check=True, env=told, cwd=place, stderr=subprocess.DEVNULL)
        return json.loads(Path(place, "results.json").read_text(encoding="utf-8"))


def version() -> str:
    """Of ComfyUI."""
    found = _environment().comfyui_folder()
    told = (found / "comfyui_version.py").read_text(encoding="utf-8") if found else ""
    return told.partition('__version__ = "')[2].partition('"')[0]


def _environment() -> ModuleType:
    """The tests' module that finds ComfyUI and its interpreter."""
    path = TESTS / "comfyui" / "environment.py"
    spec = importlib.util.spec_from_file_location("comfyui_environment", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
