"""What a training step of a whole base needs, from simulated steps of a few of its blocks.

Blocks of a list are alike, so that with each further one every number of a step (`Phase`) grows by
the same. A step with few blocks and one with one block more (`ShortBase`) therefore tell what a
step with all of them takes, in 5 to 8 s of one core for a full-size base; `KeptSimulations` spares
the next run that. Where blocks are not alike, all of them run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from ...adapter_files.factors.put_on_base import BaseAdapterFile
from ...config import MemorySection, RunConfig
from ...families.family import Family
from ...offload.block_selection import checkpointed_block_numbers
from ...offload.host_inputs import WORTH
from ...offload.step_profile import BlockTerms, StepProfile, Work
from ...quantization.stored_format import StoredFormat
from ..prepare.attach_adapter import attach_adapter
from ..step.make_loss import passes_of_step
from .short_base import ShortBase, StepInputs, blocks_of
from .simulated_bytes import ADAPTER, STEP_WORK, WORK, Numbers, Phase
from .simulation_cache import KeptSimulations

NOT_SIMULATED = (DataDependentOutputException, DynamicOutputShapeException)
"""What a simulation raises where a model asks for numbers while it computes."""

_EDGE = 2
"""Blocks at either end of a list that are looked at one by one; all others lie between them."""


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What a step needs.

    Attributes:
        adapter: Bytes of trained and frozen factors and their averages, of gradients and of the
            optimizer's state.
        activations: Most bytes of everything else but the base's weights, at the peak.
        work: What is computed.
    """

    adapter: int
    activations: int
    work: Work


class StepSimulation:
    """Steps of one base with one adapter.

    Args:
        transformer: The whole denoiser on the meta device, without an adapter; it stays as it is.
        worth: Bytes of a block's input that can wait in RAM; smaller ones stay on the device.
        whole: Run all blocks; it takes some ten times as long, and gives the same.
        beside: Outlines of the adapters that are part of the base (`ShortBase.beside`).
        kept: What earlier runs simulated, of the same base and settings.

    Attributes:
        config: As given, without what is left to chance.
        trainable: Parameters of the adapter.
        factors: Their shapes.
    """

    trainable: int
    factors: tuple[tuple[int, ...], ...]

    def __init__(
        self,
        transformer: nn.Module,
        family: Family,
        config: RunConfig,
        inputs: StepInputs,
        *,
        worth: int = WORTH,
        whole: bool = False,
        beside: Sequence[BaseAdapterFile] = (),
        kept: KeptSimulations | None = None,
    ) -> None:
        self.transformer, self.family, self.inputs = transformer, family, inputs
        # A layer that is left out by chance needs less than one that is not.
        adapter = config.adapter.model_copy(update={"module_dropout": 0.0})
        self.config = config.model_copy(update={"adapter": adapter})
        self._base = ShortBase(
            transformer, family, self.config, inputs=inputs, beside=beside, worth=worth
        )
        self._kept = kept
        lists = family.layers.repeated_blocks
        self._all_counts = tuple(len(blocks_of(transformer, name)) for name in lists)
        alike = self._blocks_are_alike()
        routing = config.training.routing
        routed = max(routing.first, routing.last) + 1 if routing.share < 1 else 0
        self._edge = max(_EDGE, routed)  # with one block of those that compute a part of the tokens
        few = 2 * self._edge - 1
        # Two runs, of so many and of one more, have to be quicker than one of all.
        self._few_counts = tuple(
            few if alike and not whole and count > 2 * few else count for count in self._all_counts
        )
        self._short_steps: dict[tuple[tuple[int, ...], bool, StoredFormat | None], Numbers] = {}

    def step(
        self, stored: StoredFormat | None = None, memory: MemorySection | None = None
    ) -> SimulatedStep:
        """Simulate a step.

        Args:
            stored: How the blocks' matrices are kept; None as numbers of the run's precision.
            memory: Says which blocks are checkpointed; None for the run file's.
        """
        memory, blocks = memory or self.config.memory, sum(self._all_counts)
        chosen = checkpointed_block_numbers(memory, blocks)
        in_ram = memory.checkpoint_inputs == "ram"
        numbers = self._whole_step(bool(chosen), stored)
        if in_ram or 0 < len(chosen) < blocks:
            profile = self.profile(stored)
            activations, work = profile.activations(chosen, in_ram), profile.computed(chosen)
        else:
            phases = ("begin", "forward", "end", "backward", "update")
            activations = _peak(numbers, phases) - numbers[ADAPTER]
            work = _step_work(numbers)
        return SimulatedStep(self._whole_step(bool(chosen))[ADAPTER], activations, work)

    def profile(self, stored: StoredFormat | None = None) -> StepProfile:
        """Simulate a step for every choice of checkpointed blocks."""
        packed = self._whole_step(True, stored)
        dense, kept = self._whole_step(True), self._whole_step(False)
        adapter = packed[ADAPTER]
        packed_peaks, dense_peaks, kept_peaks = map(self._peaks, (packed, dense, kept))
        # What waits for the backward pass when each block is called, and behind the last one.
        waiting = [
            kept_bytes - dense_bytes
            for kept_bytes, dense_bytes in zip(
                [*self._by_block(kept, "waiting"), kept[Phase("waiting")]],
                [*self._by_block(dense, "waiting"), dense[Phase("waiting")]],
                strict=True,
            )
        ]
        again = [self._computed_again(dense, kept, name) for name in WORK]
        inputs = self._by_block(dense, "inputs")
        blocks = tuple(
            BlockTerms(
                checkpointed=packed_peaks[number] - adapter,
                # Reading weights in another way takes the same for a moment, whatever else is
                # there.
                kept=kept_peaks[number] + packed_peaks[number] - dense_peaks[number] - adapter,
                more=waiting[number + 1] - waiting[number],
                inputs=inputs[number],
                work=Work(*(each[number] for each in again)),
            )
            for number in range(sum(self._all_counts))
        )
        return StepProfile(
            blocks=blocks,
            outside=_peak(packed, ("begin", "update")) - adapter,
            between=_peak(packed, ("end",)) - adapter,
            work=_step_work(packed),
            micro_batches=passes_of_step(self.config),
        )

    def _computed_again(self, dense: Numbers, kept: Numbers, name: str) -> list[int]:
        """What a checkpointed block adds to some part of a step's work, of each block."""
        done = [*self._by_block(dense, name), dense[Phase(name)]]
        forward = [after - before for before, after in pairwise(done)]
        step = Phase(f"step_{name}")
        share = (dense[step] - kept[step]) / max(sum(forward), 1)
        return [round(share * each) for each in forward]

    def _peaks(self, numbers: Numbers) -> list[int]:
        """The peak of each block, in the order of their calls.

        No gradient reaches a block before the first adapted one, so that it has no backward pass.
        """
        forward = self._by_block(numbers, "forward")
        # Stands for a backward pass that is missing.
        without = {
            phase._replace(what="backward"): peak
            for phase, peak in numbers.items()
            if phase.what == "forward"
        }
        return list(map(max, forward, self._by_block({**without, **numbers}, "backward")))

    def _by_block(self, numbers: Numbers, what: str) -> list[int]:
        """A number of each block, in the order of their calls; between the ends it is linear."""
        found: list[int] = []
        for group, (few, count) in enumerate(zip(self._few_counts, self._all_counts, strict=True)):
            if few == count:
                found += [numbers[Phase(what, group, block)] for block in range(count)]
                continue
            first = [numbers[Phase(what, group, block)] for block in range(self._edge)]
            last = [numbers[Phase(what, group, block)] for block in range(-self._edge, 0)]
            steps = count - 2 * self._edge + 1
            rise = last[0] - first[-1]
            between = [first[-1] + rise * each // steps for each in range(1, steps)]
            found += [*first, *between, *last]
        return found

    def _whole_step(self, checkpointing: bool, stored: StoredFormat | None = None) -> Numbers:
        """What a step of the whole base takes, with all blocks checkpointed or none."""
        few = self._short_step(self._few_counts, checkpointing, stored)
        if stored is not None:
            # What a further block adds does not depend on how its weights are kept.
            all_dense = self._whole_step(checkpointing)
            few_dense = self._short_step(self._few_counts, checkpointing, None)
            found = {
                phase: each + all_dense[phase] - few_dense[phase] for phase, each in few.items()
            }
            # Reading the weights in another way changes some work of every block.
            more = sum(self._all_counts) // sum(self._few_counts) - 1
            for phase in STEP_WORK:
                found[phase] += (few[phase] - few_dense[phase]) * more
            return found
        found = dict(few)
        for group, count in enumerate(self._few_counts):
            further = self._all_counts[group] - count
            if further:
                counts = [each + (at == group) for at, each in enumerate(self._few_counts)]
                one_more = self._short_step(counts, checkpointing, stored)
                for phase in found:
                    found[phase] += (one_more[phase] - few[phase]) * further
        return found

    def _short_step(
        self, counts: Sequence[int], checkpointing: bool, stored: StoredFormat | None
    ) -> Numbers:
        """What a step with so many blocks takes, unless that is known."""
        key = tuple(counts), checkpointing, stored
        if key not in self._short_steps:
            simulate = partial(self._base.step, counts, checkpointing, stored)
            if self._kept is not None:
                run = (*counts, checkpointing, stored and stored.name)
                simulate = partial(self._kept.find, run, simulate)
            self._short_steps[key] = self._by_ends(simulate(), counts)
        return self._short_steps[key]

    def _by_ends(self, numbers: Numbers, counts: Sequence[int]) -> Numbers:
        """Of a list that is cut, the first blocks, and the last ones counted from its end."""
        found: Numbers = {}
        for phase, number in numbers.items():
            group, block = phase.group, phase.block
            cut = group >= 0 and self._few_counts[group] < self._all_counts[group]
            if not cut or block < self._edge:
                found[phase] = number
            if cut and block >= counts[group] - self._edge:
                found[phase._replace(block=block - counts[group])] = number
        return found

    def _blocks_are_alike(self) -> bool:
        """Whether all blocks of a list but the last are the same, with their adapter."""
        adapter = attach_adapter(self.transformer, self.family, self.config)
        plans = [(f"{p.path}.", (p.inputs, p.outputs, p.rank, p.kernel)) for p in adapter.plans]
        self.factors = tuple(tuple(each.shape) for each in adapter.parameters())
        self.trainable = sum(map(math.prod, self.factors))
        adapter.detach()
        for name in self.family.layers.repeated_blocks:
            found: list[object] = []
            for index, block in enumerate(blocks_of(self.transformer, name)):
                place = f"{name}.{index}."
                adapted = [
                    (path.removeprefix(place), sizes)
                    for path, sizes in plans
                    if path.startswith(place)
                ]
                others = shapes_below(self._base.beside, place)
                weights = [(n, p.shape) for n, p in block.named_parameters()]
                found.append((adapted, others, weights))
            if any(each != found[0] for each in found[:-1]):
                return False
        return True


def _step_work(numbers: Numbers) -> Work:
    return Work(*(numbers[phase] for phase in STEP_WORK))


def shapes_below(adapters: Sequence[BaseAdapterFile], place: str) -> list[object]:
    """What adapters have for the layers of a block; of one that no factors divide, all of it."""
    return [
        (name.removeprefix(place), [(k, v.shape, v.dtype) for k, v in layer.tensors.items()])
        for adapter in adapters
        if adapter.strength
        for name, layer in adapter.state.layers.items()
        if name.startswith(place)
    ]


def _peak(numbers: Numbers, phases: Collection[str]) -> int:
    return max(number for phase, number in numbers.items() if phase.what in phases)
