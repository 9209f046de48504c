"""Runs in ComfyUI's interpreter: steps of ComfyUI's own Train LoRA node and of ours on a MODEL.

Usage: train_lora_process.py REPOSITORY FOLDER JOBS, with the folders of ComfyUI and of its tests in
PYTHONPATH; `benchmarks.train_lora` starts it. JOBS is a file with `Job` as JSON; FOLDER is empty,
and gets ``results.json``. Both are whole: the node is executed, and a run of ours is made from
images to its files. What is taken is from the end of the first optimizer step to that of the last.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import comfy.cli_args
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

comfy.cli_args.args.cpu = True
# ComfyUI looks for devices when more of it is imported.
from loaded_pack import part  # noqa: E402
from tiny_models import denoisers, sizes, texts, vaes  # noqa: E402

import nodes  # noqa: E402

CAPTION, RANK, RATE = "a red diamond", 4, 5e-4
_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_WIDE_UNET = {
    "model_channels": 128,
    "channel_mult": [1, 2, 4],
    "transformer_depth": [0, 0, 1, 1, 3, 3],
    "transformer_depth_output": [0, 0, 0, 1, 1, 1, 3, 3, 3],
    "transformer_depth_middle": 3,
    "num_head_channels": 64,
}
_WIDE_FLUX = {
    "hidden_size": 1024,
    "num_heads": 8,
    "depth": 2,
    "depth_single_blocks": 4,
    "axes_dim": [16, 56, 56],
}
_WIDE = {
    "sdxl wide": ("sdxl", _WIDE_UNET, 512),
    "flux wide": ("flux", _WIDE_FLUX, 256),
}
"""Larger MODELs: whose sizes but for some, and pixels of an image's side."""


@dataclasses.dataclass(frozen=True)
class Job:
    """One way to train.

    Attributes:
        model: A tiny MODEL's name, or ``sdxl wide`` or ``flux wide``.
        who: ``ours``, or of ComfyUI's node ``weights``, its default, or ``bypass``.
        depth: Of the node's gradient checkpointing, 0 for none; of ours any but 0 for it.
        precision: ``fp32`` or ``bf16``, of the weights and of what is computed.
        adapter_precision: The node's ``lora_dtype``; ours are always float32.
        steps: Optimizer steps, of which the first is left out.
        memory: Whether memory is looked at instead of time.
    """

    model: str
    who: str
    depth: int
    precision: str = "fp32"
    adapter_precision: str = "fp32"
    steps: int = 4
    memory: bool = False


def main(repository: str, folder: str, jobs: str) -> None:
    """Do the jobs in order."""
    torch.set_num_threads(1)
    del repository  # it is found beside this file
    bench, found = Bench(Path(folder)), []
    for number, words in enumerate(json.loads(Path(jobs).read_text(encoding="utf-8"))):
        job = Job(**words)
        found.append(words | bench.run(job, number))
        Path(folder, "results.json").write_text(json.dumps(found), encoding="utf-8")


class Bench:
    """Trains MODELs, of which one is in memory at a time.

    Args:
        folder: For images and runs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._held = folder, ("", None)
        known = dict(sizes.TINY)
        for name, (like, changes, pixels) in _WIDE.items():
            unet = {**known[like].unet, **changes}
            known[name] = dataclasses.replace(known[like], unet=unet, pixels=pixels)
        self._sizes = known
        denoisers.TINY = known

    def run(self, job: Job, number: int) -> Mapping[str, Any]:
        """Do a job; gives what was measured."""
        made = self._made(job)
        watch: Any = Memory(*made[:3]) if job.memory else Times()
        with torch.inference_mode(), watch:
            if job.who == "ours":
                self._ours(job, number, watch.end, *made)
            else:
                with _after_steps(watch.end):
                    self._node(job, *made)
        return watch.found(job.steps)

    def _made(self, job: Job) -> Any:
        key = f"{job.model} {job.precision}"
        if self._held[0] != key:
            self._held = ("", None)
            found = self._sizes[job.model]
            with torch.inference_mode():
                model = denoisers.tiny_model(job.model, 0, job.precision)
                held = (model, texts.tiny_clip(found.text), vaes.tiny_vae(found.vae), found.pixels)
            self._held = key, held
        return self._held[1]

    def _node(self, job: Job, model: Any, clip: Any, vae: Any, side: int) -> None:
        from comfy_extras.nodes_train import TrainLoraNode

        pixels = torch.rand((1, side, side, 3), generator=torch.Generator().manual_seed(1))
        settings = {
            "model": model,
            "latents": {"samples": vae.encode(pixels)},
            "positive": nodes.CLIPTextEncode().encode(clip, CAPTION)[0],
            "batch_size": 1,
            "steps": job.steps,
            "grad_accumulation_steps": 1,
            "learning_rate": RATE,
            "rank": RANK,
            "optimizer": "AdamW",
            "loss_function": "MSE",
            "seed": 0,
            "training_dtype": job.precision,
            "lora_dtype": job.adapter_precision,
            "quantized_backward": False,
            "algorithm": "LoRA",
            "gradient_checkpointing": job.depth > 0,
            "checkpoint_depth": max(1, job.depth),
            "offloading": False,
            "existing_lora": "[None]",
            "bucket_mode": False,
            "bypass_mode": job.who == "bypass",
        }
        TrainLoraNode.execute(**{name: [value] for name, value in settings.items()})

    def _ours(
        self,
        job: Job,
        number: int,
        end: Callable[[], None],
        model: Any,
        clip: Any,
        vae: Any,
        side: int,
    ) -> None:
        observer = part("trainer_core.training.observer")

        class Watching(observer.SilentObserver):
            def notify(self, event: Any) -> None:
                if isinstance(event, observer.StepDone):
                    end()

        graph = part("nodes.host.graph_family")
        images = self._folder / f"{side}"
        if not images.exists():
            _write_image(images, side)
        family = graph.graph_family(model)
        values = {
            "family": family.name,
            "dataset": {"path": str(images), "resolution": side},
            "adapter": {"kind": "lora", "rank": RANK, "targets": [".*"]},
            "training": {
                "steps": job.steps,
                "optimizer": {"learning_rate": RATE},
                "schedule": {"warmup_steps": 0},
                "sigma": {"density": "auto"},
                "precision": job.precision,
            },
            "preview": {"prompts": [], "every": 0},
            "memory": {"device": "cpu", "gradient_checkpointing": job.depth > 0},
            "output": {"dir": str(self._folder / "output"), "name": f"run{number}"},
            "cache": {"dir": str(self._folder / "cache")},
        }
        config = part("trainer_core.families.run_files").load_config(values)
        source = graph.encoders_of(model, clip, vae)
        part("trainer_core.training").train(config, Watching(), make_source=source, family=family)


def _write_image(folder: Path, side: int) -> None:
    import numpy
    from PIL import Image

    folder.mkdir(parents=True)
    coarse = numpy.random.default_rng(0).integers(0, 256, (4, 4, 3), dtype=numpy.uint8)
    image = Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)
    image.save(folder / "0.png")
    (folder / "0.txt").write_text(CAPTION, encoding="utf-8")


@contextlib.contextmanager
def _after_steps(call: Callable[[], None]) -> Iterator[None]:
    handle = register_optimizer_step_post_hook(lambda *_: call())
    try:
        yield
    finally:
        handle.remove()


class Times(contextlib.ExitStack):
    """The ends of optimizer steps, in seconds of the clock and of the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self._ends: list[tuple[float, float]] = []

    def end(self) -> None:
        """A step has ended."""
        self._ends.append((time.perf_counter(), time.process_time()))

    def found(self, steps: int) -> dict[str, Any]:
        """Seconds of each step but the first."""
        if len(self._ends) != steps:
            raise AssertionError(f"{len(self._ends)} optimizer steps instead of {steps}")
        pairs = list(zip(self._ends, self._ends[1:], strict=False))
        return {
            "seconds": [b[0] - a[0] for a, b in pairs],
            "cpu_seconds": [b[1] - a[1] for a, b in pairs],
        }


class Memory(contextlib.ExitStack):
    """The most bytes after the first step: of torch's tensors, and of the process.

    Tensors that lived before, as the MODEL's own, are not counted; a copy of it is.

    Args:
        model: The MODEL.
        clip: The CLIP.
        vae: The VAE.
    """

    def __init__(self, model: Any, clip: Any, vae: Any) -> None:
        super().__init__()
        weights = list(model.model.parameters())
        others = [*clip.cond_stage_model.parameters(), *vae.first_stage_model.parameters()]
        self._weights = sum(each.numel() * each.element_size() for each in weights)
        self._done = 0
        self._live = _live_bytes({e.untyped_storage().data_ptr() for e in (*weights, *others)})
        self._before = _resident("VmRSS")

    def __enter__(self) -> Memory:
        """Begin to count; inference mode is entered before, as it would end a mode from before."""
        self.enter_context(self._live)
        return self

    def end(self) -> None:
        """A step has ended."""
        self._done += 1
        if self._done == 1:
            self._live.begin("steps")
            if _RESET.exists():
                _RESET.write_text("5")

    def found(self, steps: int) -> dict[str, Any]:
        """Bytes of weights, of tensors and of the process beyond what was there before."""
        if self._done != steps:
            raise AssertionError(f"{self._done} optimizer steps instead of {steps}")
        return {
            "weights": self._weights,
            "tensors": self._live.peaks["steps"],
            "resident": _resident("VmHWM") - self._before,
        }


def _live_bytes(known: set[int]) -> Any:
    class OfOthers(part("trainer_core.training.memory.simulated_bytes").LiveBytes):
        """Leaves out what lies in memory that was there before, and what lies in none."""

        def _count(self, tensor: torch.Tensor) -> None:
            real = tensor.device.type == "cpu" and type(tensor).__name__ != "FakeTensor"
            if real and tensor.untyped_storage().data_ptr() not in known:
                super()._count(tensor)

    return OfOthers()


def _resident(field: str) -> int:
    """Bytes of memory of this process, as Linux has them; 0 elsewhere."""
    if not _STATUS.exists():
        return 0
    line = next(each for each in _STATUS.read_text().splitlines() if each.startswith(field))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(*sys.argv[1:])
