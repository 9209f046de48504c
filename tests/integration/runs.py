"""Small real runs on the embedded base, shared by the integration tests."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from trainer_core.config import RunConfig
from trainer_core.demo.run import dataset_folder
from trainer_core.training.observer import RunRequests, StepDone

NOISY_FIELDS = {"step_seconds", "time", "times", "memory"}


def run_config(folder: Path, cache: Path, /, **overrides: Any) -> RunConfig:
    """A run of the demo dataset with everything on that draws random numbers."""
    values: dict[str, Any] = {
        "base": {"path": "embedded"},
        "dataset": {
            "path": str(dataset_folder("generate")),
            "resolution": 64,
            "caption_dropout": 0.2,
        },
        "cache": {"dir": str(cache)},
        "adapter": {
            "kind": "lokr",
            "factor": -1,
            "rank": 4,
            "targets": "attention",
            "dropout": 0.1,
        },
        "training": {
            "steps": 20,
            "batch_size": 2,
            "gradient_accumulation_steps": 2,
            "precision": "fp32",
            "checkpoint_every": 0,
            "schedule": {"name": "cosine", "warmup_steps": 3},
            "optimizer": {"learning_rate": 1e-3},
        },
        "memory": {"device": "cpu", "threads": 1, "gradient_checkpointing": False},
        "output": {"dir": str(folder), "name": "run"},
        "seed": 7,
    }
    return RunConfig.model_validate(merge(values, overrides))


def merge(values: dict[str, Any], overrides: dict[str, Any]) -> dict[str, Any]:
    merged = dict(values)
    for name, value in overrides.items():
        inner = merged.get(name)
        both = isinstance(inner, dict) and isinstance(value, dict)
        merged[name] = merge(inner, value) if both else value
    return merged


@dataclasses.dataclass
class CancelAfter:
    """Hears everything and cancels during the given step."""

    step: int
    events: list[Any] = dataclasses.field(default_factory=list)
    last: int = 0

    def notify(self, event: Any) -> None:
        self.events.append(event)
        if isinstance(event, StepDone):
            self.last = event.result.step

    def requests(self) -> RunRequests:
        return RunRequests(cancel=self.last >= self.step - 1)

    def cancelled(self) -> bool:
        return self.last >= self.step


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if name not in NOISY_FIELDS}
        for line in lines
    ]


def tensors(path: Path) -> dict[str, Any]:
    return load_file(str(path))
