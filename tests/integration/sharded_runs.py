"""Runs on a base in parts.

As a program it is one of the processes: ``sharded_runs.py FOLDER CACHE NAME...``
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from runs import run_config
from torch.distributed.tensor import DTensor

from tests.fixtures.tables import table
from trainer_core.config import RunConfig
from trainer_core.errors import RunError
from trainer_core.training import AccelerateProcesses, train
from trainer_core.training.observer import RunRequests, SilentObserver

SHARDED = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}
"""What accelerate's launcher sets for ``--use_fsdp --fsdp_version 2``."""

HALVES = {"batch_size": 2, "gradient_accumulation_steps": 1}
"""Each process has one of a micro-batch's two samples."""

RUNS: dict[str, dict[str, Any]] = table(__file__, "sharded runs")


def config_of(name: str, folder: Path, cache: Path) -> RunConfig:
    """The run of a name, in its own folder."""
    overrides = RUNS[name]
    training = {"steps": 4, **overrides.get("training", {})}
    dataset = {"path": str(make_images(folder / "images")), **overrides.get("dataset", {})}
    given = {**overrides, "training": training, "dataset": dataset}
    if "family" in overrides:
        given["base"] = {"path": str(cache / name)}
    if name == "beside":
        files = [str(cache / f"beside {when}.safetensors") for when in ("training", "always")]
        adapters = [{"path": file, "when": file.split()[-1].split(".")[0]} for file in files]
        given["base"] = {"adapters": adapters}
    return run_config(folder / name, cache, **given)


def make_images(folder: Path) -> Path:
    """Images of two sizes."""
    random = np.random.default_rng(0)
    if folder.is_dir():
        return folder
    folder.mkdir(parents=True)
    for index in range(8):
        size = (64, 64, 3) if index < 4 else (48, 96, 3)
        pixels = random.integers(0, 256, size, dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{index}.png")
        (folder / f"{index}.txt").write_text(f"image {index}")
    return folder


class Cancels(SilentObserver):
    """Cancels when it was asked twice by the loop, or in the middle of a preview.

    Before that it is asked when the base is about to be loaded, and when it is.
    """

    def __init__(self) -> None:
        self.asked = 0

    def requests(self) -> RunRequests:
        return RunRequests(cancel=self.cancelled())

    def cancelled(self) -> bool:
        self.asked += 1
        return self.asked >= 4


class Breaks(SilentObserver):
    """Fails in the second step."""

    def __init__(self) -> None:
        self.asked = 0

    def requests(self) -> RunRequests:
        self.asked += 1
        if self.asked == 2:
            raise RunError("a cable that came loose", "cables in place", "Put it back.")
        return RunRequests()


OBSERVERS = {
    "cancelled": (1, Cancels),
    "cancelled in a preview": (0, Cancels),
    "broken by the first": (0, Breaks),
    "broken by the second": (1, Breaks),
}
"""A run to the process that hears another observer, and the observer."""


class Watched(AccelerateProcesses):
    """Measures what each process holds of the base, and counts its passes for others alone."""

    def passes(self, own):
        wanted = super().passes(own)
        self.passes_for_others += wanted - own
        return wanted

    def shard(self, module, blocks, whole):
        blocks, whole = list(blocks), list(whole)
        factors = {id(each) for each in whole}

        def frozen(part):
            return [each for each in part.parameters() if id(each) not in factors]

        def count(*_):
            gathered = sum(not isinstance(frozen(block)[0], DTensor) for block in blocks)
            self.most_gathered = max(self.most_gathered, gathered)

        base = sum(each.numel() for each in frozen(module))
        super().shard(module, blocks, whole)
        self.most_gathered, self.blocks, self.passes_for_others = 0, len(blocks), 0
        parts = [each for each in frozen(module) if isinstance(each, DTensor)]
        self.held = sum(each.to_local().numel() for each in parts) / base
        assert len(parts) == len(frozen(module))
        for block in blocks:
            block.register_forward_pre_hook(count)


def main(folder: Path, cache: Path, names: list[str]) -> None:
    processes = Watched(torch.device("cpu"))
    for name in names:
        place, make = OBSERVERS.get(name, (0, SilentObserver))
        observer = make() if processes.index == place else SilentObserver()
        result = train(config_of(name, folder, cache), observer, processes)
        seen = [processes.held, processes.blocks, processes.most_gathered]
        others = processes.passes_for_others
        end = {"end": f"{result.status} {result.step}", "seen": seen, "for others": others}
        (folder / f"{name} {processes.index}.json").write_text(json.dumps(end))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
