"""What ``doctor`` says of memory: the plan that a run would take, its parts, and what else fits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import RunConfig
from ..printable import gibibytes

if TYPE_CHECKING:
    import torch

    from ..offload.choose_plan import PlanChoice
    from ..offload.empty_base import EmptyBase
    from ..offload.machine import Machine
    from ..training.memory.step_simulation import StepSimulation


def memory_report(
    config: RunConfig,
    base: EmptyBase,
    controls: int,
    attempt: Callable[[str, Callable[[], Any]], Any],
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Say what a run would take.

    Args:
        controls: Control images of a sample, where no finished cache tells.
        attempt: Gives what a function gives, or None when what stops it would stop the run.
        machine: Where the run would be; unset: here.
    """
    from ..device import resolve_device
    from ..offload.machine import Machine
    from ..training.memory.memory_estimate import memory_estimate

    machine = machine or Machine()
    device = attempt("memory", lambda: resolve_device(config.memory.device))
    if device is None:
        return {}
    simulation = attempt("cache", lambda: run_step(config, base, controls, device))
    if simulation is None:
        return {}
    choice = attempt("memory", lambda: planned_memory(simulation, base, device, machine))
    if choice is None:
        return {}
    estimate = attempt("memory", lambda: memory_estimate(base, simulation, choice.memory))
    if estimate is None:
        return {}
    report: dict[str, Any] = {
        "memory_estimate": {name: gibibytes(size) for name, size in estimate.items()}
    }
    if "activations" not in estimate:
        why = f" ({choice.guessed})" if choice.guessed else ""
        report["memory_unknown"] = f"activations: a step cannot be simulated{why}"
    if choice.plans:
        report["memory_plans"] = memory_table(choice)
    free = {"device_memory": machine.free_memory(device), "ram": machine.free_ram()}
    report["memory_free"] = {name: gibibytes(size) for name, size in free.items()}
    return report


def run_step(
    config: RunConfig, base: EmptyBase, controls: int, device: torch.device
) -> StepSimulation:
    """A run's largest step: of the cache where one is finished, else of square images or clips."""
    from ..inference.sampler import preview_layers
    from ..training.memory.memory_estimate import largest_sample, run_simulation, text_tokens
    from ..training.prepare.cache_manifest import read_manifest
    from ..training.step.batch_sizes import largest_square, with_largest_batch
    from ..types import Bucket

    if config.cache.manifest:
        dataset = read_manifest(Path(config.cache.manifest)).dataset
        largest, layers = largest_sample(dataset.items)
        stepped = with_largest_batch(config, dataset)
        return run_simulation(
            stepped, base, largest, device=device, text=text_tokens(dataset.items), layers=layers
        )
    multiple, (resolution, stepped) = base.family.latents.size_multiple, largest_square(config)
    edge = max(resolution // multiple, 1) * multiple
    layers = preview_layers(config.preview, base.family, base.location.variant)
    # Without control images a base that fills areas learns from the images themselves.
    least = int(base.location.variant in base.family.latents.filled)
    clips = base.family.clips
    frames = 1 if clips is None else clips.frames_of(clips.latent_frames(config.dataset.frames))
    images = [Bucket(edge, edge, frames), *[Bucket(edge, edge)] * max(controls, least)]
    return run_simulation(stepped, base, images, device, layers=layers)


def planned_memory(
    simulation: StepSimulation, base: EmptyBase, device: torch.device, machine: Machine
) -> PlanChoice:
    """The plan that a run would take; where none is made, what its settings come to.

    Raises:
        RunError: When none fits.
    """
    from ..offload.choose_plan import plan_of_settings
    from ..offload.machine import machine_budget
    from ..training.setup.plan_memory import choose_step_plan, leaves_no_choice
    from ..weights.loading import is_quantized

    memory, dtype = simulation.config.memory, simulation.inputs.dtype
    if (
        memory.plan == "off"
        or not machine.plans_for(device)
        or is_quantized(base.location)
        or leaves_no_choice(memory, base, dtype, machine.free_memory(device))
    ):
        return plan_of_settings(memory)
    return choose_step_plan(simulation, base, machine_budget(machine, device, dtype))


def memory_table(choice: PlanChoice) -> list[dict[str, Any]]:
    """The plan that is taken, and the next two."""
    from ..training.setup.plan_memory import plan_rows

    return [
        {
            "base_format": row.base_format,
            "blocks_to_swap": row.blocks_to_swap,
            "swapped_to": row.master,
            "blocks_to_checkpoint": row.blocks_to_checkpoint,
            "checkpoint_inputs": row.checkpoint_inputs,
            "device_memory": gibibytes(row.device_bytes),
            "ram": gibibytes(row.ram_bytes),
            "predicted_seconds_per_step": float(f"{row.seconds:.2g}"),
        }
        for row in plan_rows(choice)
    ]
