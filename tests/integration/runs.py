"""Small real runs on the embedded base, shared by the integration tests."""

import dataclasses
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from trainer_core.cli import main
from trainer_core.config import RunConfig
from trainer_core.demo.run import dataset_folder
from trainer_core.training import train
from trainer_core.training.observer import Noted, RunRequests, StepDone, Warned

NOISY_FIELDS = {"step_seconds", "time", "times", "memory"}
PREVIEW = {"every": 2, "prompts": ["a red star on blue"], "width": 64, "height": 64, "steps": 1}


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
    """Hears everything and cancels during the given step, if one is given."""

    step: int = 10**9
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

    def said(self) -> list[str]:
        """What the user was told."""
        return [each.message for each in self.events if isinstance(each, Warned | Noted)]


def preview_image(folder: Path, step: int) -> bytes:
    (path,) = (folder / "samples").glob(f"*{step}/0.png")
    return Image.open(path).tobytes()


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {name: value for name, value in json.loads(line).items() if name not in NOISY_FIELDS}
        for line in lines
    ]


def tensors(path: Path) -> dict[str, Any]:
    return load_file(str(path))


def record(folder: Path) -> dict[str, Any]:
    """What a version says of itself."""
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))


def assert_same_files(ones: Iterable[Path], others: Iterable[Path]) -> None:
    """The same tensors, to the bit, and not zeros alone."""
    for one, other in zip(ones, others, strict=True):
        found, expected = tensors(one), tensors(other)
        assert found.keys() == expected.keys()
        assert [key for key in found if not torch.equal(found[key], expected[key])] == []
        assert any(each.any() for each in found.values())


def assert_equal_runs(one: Path, other: Path, step: int) -> None:
    """Two versions have the same state behind a step, and the same metrics."""
    for name in ("training_state.safetensors", "adapter.safetensors"):
        paths = [each / "checkpoints" / f"{step:06d}" / name for each in (one, other)]
        assert_same_files(paths[:1], paths[1:])
    assert metrics(one) == metrics(other)


def assert_resumes(config_in: Callable[[str], RunConfig], stop: int) -> tuple[Any, Any]:
    """A run that is stopped and resumed leaves the bits of one that is not.

    Args:
        config_in: The name of a folder to the run in it.
        stop: The step after which it is stopped.

    Returns:
        Both results.
    """
    whole, config = train(config_in("whole")), config_in("parts")
    stopped = train(config, CancelAfter(stop))
    assert (stopped.status, stopped.step) == ("cancelled", stop)
    resumed = train(config.model_copy(update={"resume": "latest"}))
    assert (resumed.status, resumed.folder) == ("done", stopped.folder)
    assert_equal_runs(whole.folder, resumed.folder, whole.step)
    assert_same_files(whole.adapters, resumed.adapters)
    for pattern in ("ledger.json", "samples/*/*.png"):
        found, expected = (
            {path.relative_to(each.folder): path.read_bytes() for path in each.folder.glob(pattern)}
            for each in (resumed, whole)
        )
        assert found == expected
    return whole, resumed


def noisy_images(folder: Path, count: int = 4, side: int = 64) -> Path:
    """Write images of noise with captions, the same in every run, and give the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        pixels = np.random.default_rng(number).integers(0, 256, (side, side, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(f"image {number}")
    return folder


def command(capsys: Any, *words: object) -> list[dict[str, Any]]:
    """What a command prints as JSON; it ends well."""
    code = main([*map(str, words), "--json"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0, lines
    return [json.loads(line) for line in lines]
