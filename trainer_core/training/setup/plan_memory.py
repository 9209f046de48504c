"""Simulates a step and lets `choose_plan` choose where a run keeps what, before it loads a base."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...config import MemorySection, RunConfig
from ...device import DTYPES, release_memory
from ...errors import RunError
from ...offload.choose_plan import (
    PlanChoice,
    SizesOf,
    choose_plan,
    guessed_step_sizes,
    plan_of_settings,
)
from ...offload.empty_base import EmptyBase, empty_base
from ...offload.machine import Machine, machine_budget
from ...offload.model_bytes import base_bytes
from ...offload.possible_plans import Budget, FormatSizes, KeptFormat, StepPace, StepSizes
from ...printable import shortened, single_line
from ...weights.loading import is_quantized, weight_files
from ...weights.read_ahead import read_ahead
from ..checkpoints.settings_changes import FORMAT, checkpoint_base_format
from ..memory.memory_estimate import (
    TINY,
    UNABLE,
    adapter_bytes,
    largest_sample,
    run_simulation,
    text_tokens,
)
from ..memory.step_simulation import StepSimulation
from ..observer import MemoryPlanned, Noted, Observer, PlanRow, Warned
from ..prepare.encode_dataset import Prepared
from ..step.batch_sizes import with_largest_batch
from ..step.make_loss import passes_of_step
from ..step.processes import Processes
from .starting_point import Start

_CAUTION = 4
"""One part in so many of a device is left to a step that cannot be simulated."""
_LONGEST_REASON = 200


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Where a run starts, and how.

    Attributes:
        config: The run file, of whose memory settings none is left open.
        settings: What its checkpoints keep.
        recorded: The run file with the format that the base is kept in, for headers of its files.
        pace: How fast the machine is with a step; None where nothing was planned.
    """

    config: RunConfig
    start: Start
    settings: Mapping[str, Any]
    recorded: RunConfig
    pace: StepPace | None = None


def plan_memory(
    config: RunConfig,
    data: Prepared,
    precision: str,
    start: Start,
    settings: Mapping[str, Any],
    processes: Processes,
    observer: Observer,
    machine: Machine,
) -> PlannedRun:
    """Choose a plan, compare the checkpoint with the run, and tell of both.

    A run goes on with its base in the format that it began with, as long as that fits.

    Args:
        processes: All of them come to the same plan.

    Raises:
        RunError: When the base fits in no way; nothing was loaded.
        InputError: As `Start.fitted`, and for a base or adapter settings that cannot be used.
    """
    held = None if start.checkpoint is None else checkpoint_base_format(start.checkpoint)
    choice = _choose(config, data, precision, processes=processes, machine=machine, held=held)
    chosen = {**settings, FORMAT: choice.memory.base_format}
    start = start.fitted(chosen, config, data.family, processes=processes, observer=observer)
    if held is not None and start.checkpoint is None:
        # A new version owes nothing to the one that it is not.
        choice = _choose(config, data, precision, processes=processes, machine=machine, held=None)
    if processes.index == 0:
        for note in _idle(config.memory, choice.memory):
            observer.notify(Warned(note))
        if choice.guessed:
            observer.notify(Noted(_guess(choice)))
        if choice.budget is not None:
            budget = choice.budget
            rows = tuple(plan_rows(choice))
            blocks = choice.plans[0].blocks
            observer.notify(MemoryPlanned(rows, budget.device_free, budget.ram_free, blocks))
    kept = {"base_format": choice.memory.base_format}
    pace = None
    if choice.budget is not None:
        pace = StepPace.of(choice.plans[0], choice.budget, passes_of_step(config))
    return PlannedRun(
        config.model_copy(update={"memory": choice.memory}),
        start,
        {**settings, FORMAT: choice.memory.base_format},
        recorded=config.model_copy(update={"memory": config.memory.model_copy(update=kept)}),
        pace=pace,
    )


def _choose(
    config: RunConfig,
    data: Prepared,
    precision: str,
    processes: Processes,
    machine: Machine,
    held: str | None,
) -> PlanChoice:
    memory, device, dtype = config.memory, processes.device, DTYPES[precision]
    if memory.plan == "off" or processes.sharded or data.family.lent is not None:
        return plan_of_settings(memory)
    if not machine.plans_for(device) or is_quantized(data.location):
        return plan_of_settings(memory, held)
    release_memory(device)
    (free,) = _least(processes, [machine.free_memory(device)])
    base = empty_base(data.location, data.family)
    if leaves_no_choice(memory, base, dtype, free):
        return plan_of_settings(memory, held)
    budget = agreed_budget(machine_budget(machine, device, dtype), processes)
    release_memory(device)
    items = data.dataset.items
    largest, layers = largest_sample(items)
    stepped = with_largest_batch(config, data.dataset)
    # A new simulation of a large base takes as long as its file does. A run that goes on has one.
    room = machine.free_ram() // 2 if processes.index == 0 and held is None else 0
    with read_ahead(weight_files(data.location), room):
        simulation = run_simulation(
            stepped, base, largest, device=device, text=text_tokens(items), layers=layers
        )
        return choose_step_plan(simulation, base, budget, held)


def leaves_no_choice(
    memory: MemorySection, base: EmptyBase, dtype: torch.dtype, free: float
) -> bool:
    """Whether a base is so tiny beside the free bytes of a device that no plan is made for it."""
    weights = base_bytes(base.transformer, base.family.layers.repeated_blocks, dtype).total
    return memory.plan != "smallest" and weights * TINY < free


def choose_step_plan(
    simulation: StepSimulation, base: EmptyBase, budget: Budget, held: str | None = None
) -> PlanChoice:
    """Choose a plan for a run's step.

    Args:
        simulation: Of the step. One that is impossible refuses no run: then the weights are
            counted, and the rest is guessed.
        held: The format that is kept to as long as it fits.

    Raises:
        RunError: When nothing fits; it names what would.
    """
    config, inputs = simulation.config, simulation.inputs

    def simulated(formats: Mapping[str, KeptFormat]) -> StepSizes:
        sizes = {n: FormatSizes(e, simulation.profile(e.stored)) for n, e in formats.items()}
        return StepSizes(sizes, simulation.step().adapter)

    def choose(sizes_of: SizesOf) -> PlanChoice:
        return choose_plan(
            config.memory,
            base,
            inputs.dtype,
            budget=budget,
            sizes_of=sizes_of,
            swappable=not config.adapter.exact_delta,
            held=held,
        )

    try:
        return choose(simulated)
    except UNABLE as error:
        adapter, reason = adapter_bytes(simulation), f"{type(error).__name__}: {error}"
    passes = passes_of_step(config)
    samples = config.training.batch_size * passes
    # Forward, again, and backward for the inputs alone.
    latents = sum(math.prod(each[1:]) for each in inputs.images)
    tokens = inputs.text + latents // base.family.latents.patch**2
    flops = 6 * base.parameters * tokens * samples
    try:
        found = choose(guessed_step_sizes(adapter + budget.device_free // _CAUTION, flops, passes))
    except RunError:
        found = choose(guessed_step_sizes(adapter, flops, passes))
    return replace(found, guessed=shortened(single_line(reason), _LONGEST_REASON))


def plan_rows(choice: PlanChoice) -> Iterable[PlanRow]:
    """The chosen plan and what else there is, as they are told."""
    for plan in choice.plans:
        yield PlanRow(
            base_format=plan.base_format,
            blocks_to_swap=plan.blocks_to_swap,
            master=plan.master,
            blocks_to_checkpoint=plan.blocks_to_checkpoint,
            checkpoint_inputs=plan.checkpoint_inputs,
            device_bytes=plan.device,
            ram_bytes=plan.ram,
            seconds=plan.seconds,
        )


def _guess(choice: PlanChoice) -> str:
    again = choice.memory.gradient_checkpointing and choice.memory.blocks_to_checkpoint is None
    how = ", and every block computes its activations again" if again else ""
    return (
        f"A step of this base cannot be simulated ({choice.guessed}): its weights are counted and "
        f"the rest is guessed{how}. memory.blocks_to_swap and memory.blocks_to_checkpoint set it."
    )


def _idle(requested: MemorySection, chosen: MemorySection) -> Iterable[str]:
    if chosen.blocks_to_swap:
        return
    for name in ("swap_slots", "master"):
        value = getattr(requested, name)
        if value != MemorySection.model_fields[name].default:
            yield (
                f"memory.{name} is {value}, and no block is swapped: it changes nothing. "
                "memory.blocks_to_swap says how many are."
            )


def agreed_budget(own: Budget, processes: Processes) -> Budget:
    """What the smallest machine of all processes has: all have to come to the same plan."""
    # Those of one computer share its RAM.
    ram, pinned = own.ram_free // processes.count, own.pinned_limit // processes.count
    speeds = (own.link_bytes_per_s, own.flops_per_s, own.attention_per_s or 0.0, own.moved_per_s)
    speeds = (*speeds, own.converted_per_s or 0.0)
    least = _least(processes, [own.device_free, ram, pinned, *speeds])
    device, ram, pinned = map(int, least[:3])
    return replace(
        own,
        device_free=device,
        ram_free=ram,
        pinned_limit=pinned,
        link_bytes_per_s=least[3],
        flops_per_s=least[4],
        attention_per_s=least[5] or None,
        moved_per_s=least[6],
        converted_per_s=least[7] or None,
    )


def _least(processes: Processes, own: Sequence[float]) -> list[float]:
    """The least of each number over all processes."""
    spread = [
        number if place == processes.index else 0.0
        for place in range(processes.count)
        for number in own
    ]
    found = processes.sum_numbers(spread)
    return [min(found[index :: len(own)]) for index in range(len(own))]
