"""What the host does in a training step besides the model's own work, on a base of full size.

Base and adapter are on the meta device, so no weight takes memory. Forward and backward are left
out and the optimizer's step is empty: what is left is reading the batch, sampling sigma and noise,
mixing, preparing the denoiser's inputs, the loss, clipping and the loop itself. The parameters that
the loop handles are as many as the adapter's, of one element each, as their sizes are the device's
business.

The noise of each sample is counted. So is torch's arithmetic on the meta device: torch plans each
operation of it in Python, which no real device needs, and nine of ten Python calls of a step are
such.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.measuring.record import origin, write_record
from trainer_core.adapters import AttachedAdapter, attach
from trainer_core.config import AdapterConfig, RunConfig
from trainer_core.data.batch_plan import BatchPlan
from trainer_core.data.cache.cache_file import make_entry, write_entry
from trainer_core.data.cache.cached_dataset import CachedDataset
from trainer_core.data.cache.cached_item import CachedItem
from trainer_core.data.load_batch import load_batch
from trainer_core.families.registry import get_family
from trainer_core.training.checkpoints.train_state import TrainState
from trainer_core.training.metrics.adapter_norms import AdapterNorms
from trainer_core.training.metrics.metrics_file import MetricsWriter
from trainer_core.training.metrics.step_metrics import StepMetrics
from trainer_core.training.metrics.tensorboard import TensorBoard
from trainer_core.training.observer import RunRequests, SilentObserver
from trainer_core.training.step.micro_batch import MicroBatchLoss
from trainer_core.training.step.processes import SingleProcess
from trainer_core.training.step.split_batches import SplitBatches
from trainer_core.training.step.step_clock import StepClock
from trainer_core.training.step.step_plan import StepPlan
from trainer_core.training.trainer import Trainer
from trainer_core.types import Bucket, StepResult

FAMILY = get_family("qwen_image")
META = torch.device("meta")
MICRO_BATCHES = 2
SAMPLES = 4
TEXT_TOKENS = 200


class UnreadDevice(SingleProcess):
    """One process on the meta device, whose numbers nobody can read.

    Attributes:
        reads: How often the loop wanted to read some.
    """

    def __init__(self) -> None:
        super().__init__(META)
        self.reads = 0

    def backward(self, loss: Tensor) -> None:
        """Leave the gradients as they are."""

    def sum_numbers(
        self, numbers: Sequence[float], on_device: Sequence[Tensor] = ()
    ) -> list[float]:
        """Return the numbers, and ones for what lies on the device."""
        self.reads += bool(on_device)
        return [*numbers, *(1.0 for _ in on_device)]


class ModelLeftOut(nn.Module):
    """A denoiser whose inputs are prepared as ever, and that computes nothing.

    Args:
        transformer: The denoiser.
    """

    def __init__(self, transformer: nn.Module) -> None:
        super().__init__()
        self.module = transformer

    def forward(self, hidden_states: Tensor, **inputs: Any) -> tuple[Tensor]:
        """Return the tokens."""
        del inputs
        return (hidden_states,)


class _NoUpdate(torch.optim.SGD):
    def step(self, closure: Any = None) -> None:
        """Leave the weights as they are."""


def full_size_base(blocks: int = 60) -> nn.Module:
    """Qwen-Image's denoiser of the bundled configuration, without weights."""
    from diffusers.models.transformers.transformer_qwenimage import QwenImageTransformer2DModel

    import trainer_core.families.qwen_image as package

    file = Path(package.__file__).parent / "configs" / "generate" / "transformer" / "config.json"
    facts = json.loads(file.read_text(encoding="utf-8")) | {"num_layers": blocks}
    with META:
        transformer: Any = QwenImageTransformer2DModel.from_config(facts)
    return transformer.to(torch.bfloat16).requires_grad_(False).eval()


def attach_adapter(transformer: nn.Module) -> AttachedAdapter:
    """A LoRA of the default targets: attention and feed-forward layers of every block."""
    return attach(
        transformer,
        AdapterConfig(kind="lora"),
        presets=FAMILY.layers.presets,
        shared=FAMILY.layers.shared_inputs,
    ).train()


def cached_samples(folder: Path, pixels: int) -> CachedDataset:
    """Encoded samples of zeros."""
    side = pixels // 8
    items: list[CachedItem] = []
    for number in range(SAMPLES):
        latents = make_entry(folder, "latents", number)
        text = make_entry(folder, "text", number)
        write_entry(latents, {"latents": torch.zeros(16, side, side)})
        write_entry(text, {"text_embeddings": torch.zeros(TEXT_TOKENS + number, 3584)})
        items.append(
            CachedItem(f"{number}.png", Bucket(pixels, pixels), (), latents, (), text, text)
        )
    return CachedDataset(items)


def make_trainer(
    dataset: CachedDataset,
    transformer: nn.Module,
    weights: Sequence[nn.Parameter],
    state: TrainState,
    processes: SingleProcess,
    recorder: MetricsOnly | None = None,
) -> Trainer:
    """The trainer of a run over a denoiser that may be `ModelLeftOut`.

    Args:
        dataset: The encoded samples.
        transformer: The denoiser.
        weights: What is trained.
        state: Of a run with its adapter.
        processes: Where it computes.
        recorder: Has all that a run measures by itself written down.
    """
    training: dict[str, Any] = {"steps": 1000, "gradient_accumulation_steps": MICRO_BATCHES}
    # A base on the meta device has no state that could be restored.
    training["recovery"] = {"returns": 0}
    config = RunConfig.model_validate({"training": training, "preview": {"every": 0}})
    plan = BatchPlan(dataset.buckets, dataset.control_buckets, 1, MICRO_BATCHES, 1, 0)
    load: Callable[..., Any] = functools.partial(
        load_batch, dataset, plan, caption_dropout=0.1, seed=0
    )
    maker = MicroBatchLoss(
        load=load,
        load_preserved=lambda step, micro: None,
        predict=functools.partial(FAMILY.prediction.predict, transformer, guidance=1.0),
        sigma_at=lambda _, place: place,
        seed=0,
        part=(0, 1),
        device=processes.device,
    )
    cpu = torch.device("cpu")
    clock = StepClock(cpu)
    # A base on the meta device has no norms: `norm_ms` measures them.
    norms = AdapterNorms(state.adapter, FAMILY.layers.repeated_blocks, 50, 1000, refuse)
    return Trainer(
        config=config,
        steps=1000,
        state=state,
        plan=StepPlan(plan),
        micro_batch_parts=SplitBatches(maker),
        processes=processes,
        observer=SilentObserver(),
        parameters=weights,
        recorder=recorder,  # pyright: ignore[reportArgumentType]
        clock=clock,
        step_metrics=StepMetrics(clock, norms, 4, cpu) if recorder else None,
    )


class MetricsOnly:
    """Writes ``metrics.jsonl`` as a run's recorder does, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._writer = MetricsWriter(
            folder / "metrics.jsonl", 0, refuse, lambda *about: [TensorBoard(*about)]
        )

    def record(self, result: StepResult) -> None:
        """Write a step down."""
        self._writer.write(result)

    @staticmethod
    def retry_due() -> bool:
        """Every checkpoint was written."""
        return False


def refuse(line: str) -> None:
    """End the benchmark: what it should measure does not work."""
    raise RuntimeError(line)


def norm_ms(rounds: int, layers: int = 720, blocks: int = 60) -> dict[str, float]:
    """CPU milliseconds of one measurement of an adapter's norms, on layers of a few numbers.

    What it costs a host does not depend on the layers' size, and on a GPU the host is what waits.
    """
    base = nn.Module()
    lists = nn.ModuleList(
        nn.ModuleList(nn.Linear(8, 8) for _ in range(layers // blocks)) for _ in range(blocks)
    )
    base.add_module("transformer_blocks", lists)
    adapter = attach(base.requires_grad_(False), AdapterConfig(kind="lora", rank=4))
    norms = AdapterNorms(adapter, ("transformer_blocks",), 1, 10**9, lambda line: None)
    first = _cpu_ms(lambda: norms.measure(1))
    return {
        "layers": len(adapter.names),
        "first_cpu_ms": round(first, 2),
        "cpu_ms": round(
            statistics.median(_cpu_ms(lambda: norms.measure(1)) for _ in range(rounds)), 2
        ),
    }


def _cpu_ms(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return 1000 * (time.process_time() - before)


class HostWork:
    """Steps of a loop in which the model's own work is left out.

    Args:
        folder: Takes the encoded samples.
        pixels: Side of the images.
        blocks: Of the base.
        measured: Whether all that a run measures by itself is measured and written down, too.

    Attributes:
        transformer: The base.
        before_step: Called in each step, and measured with it.
        layers: How many are adapted.
        parameters: How many tensors are trained.
    """

    def __init__(
        self, folder: Path, pixels: int = 1024, blocks: int = 60, *, measured: bool = False
    ) -> None:
        self.transformer = full_size_base(blocks)
        self.before_step: Callable[[], object] = RunRequests
        adapter = attach_adapter(self.transformer)
        self.layers = len(adapter.names)
        weights = [nn.Parameter(torch.zeros(1)) for _ in adapter.parameters()]
        self.parameters = len(weights)
        self._trainer = make_trainer(
            cached_samples(folder, pixels),
            ModelLeftOut(self.transformer),
            weights,
            TrainState(adapter, _NoUpdate(weights, lr=1.0)),
            UnreadDevice(),
            MetricsOnly(folder) if measured else None,
        )
        self._done = 0
        # Everything is imported and read once.
        for _ in range(SAMPLES):
            self.prepare()
            self.step()

    def prepare(self) -> None:
        """Give every weight a gradient, as the backward pass would."""
        for weight in self._trainer.parameters:
            weight.grad = torch.ones(1)

    def step(self) -> None:
        """Make one step."""
        self.before_step()
        self._done += 1
        result, errors, _ = self._trainer.train_step(self._done)
        self._trainer.finish_step(result, errors)

    def cpu_ms(self, rounds: int) -> list[float]:
        """CPU milliseconds of steps."""
        times: list[float] = []
        for _ in range(rounds):
            self.prepare()
            before = time.process_time()
            self.step()
            times.append(1000 * (time.process_time() - before))
        return times

    def python_calls(self) -> int:
        """Calls of Python functions in one step."""
        count = 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            del frame, argument
            count += event == "call"

        self.prepare()
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            self.step()
        finally:
            sys.setprofile(before)
        return count


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description="Host work of a training step at full size.")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found = {**origin(), "rounds": arguments.rounds}
    rows: list[dict[str, Any]] = []
    for pixels, measured in itertools.product((256, 1024), (False, True)):
        with tempfile.TemporaryDirectory() as folder:
            work = HostWork(Path(folder), pixels, measured=measured)
            times = work.cpu_ms(arguments.rounds)
            rows.append(
                {
                    "pixels": pixels,
                    "measured": measured,
                    "layers": work.layers,
                    "parameters": work.parameters,
                    "micro_batches": MICRO_BATCHES,
                    "python_calls": work.python_calls(),
                    "cpu_ms": round(statistics.median(times), 2),
                    "best_cpu_ms": round(min(times), 2),
                }
            )
            print(rows[-1])
    norms = norm_ms(arguments.rounds)
    print(norms)
    if arguments.output:
        record = {
            "benchmark": "loop_work",
            "counted": found,
            "timed": found,
            "rows": rows,
            "norms": norms,
        }
        write_record(arguments.output, record)


if __name__ == "__main__":
    main()
