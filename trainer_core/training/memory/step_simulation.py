"""What a training step needs in memory, from a step that is only pretended.

A model of few blocks with the real adapter runs forward, backward and the optimizer on tensors that
have sizes and no numbers (torch's fake tensors), while `LiveBytes` counts. It takes no memory, and
5 to 8 s of one core for a full-size base, nearly all in Python's part of fake tensors (torch's meta
device is no faster); `KeptSimulations` spares the next run that. What the step of the whole base
needs follows from it: blocks are alike, so that from one landmark of a step to the next (`Phase`)
the bytes grow by the same with each further block, and the peak is the largest of all phases'.
Where blocks are not alike, all of them run.

Torch has a tracker of its own (`torch.distributed._tools.mem_tracker`). It is private, absent where
torch was built without `distributed`, and puts hooks on every module and parameter, which the
adapter's layers would take for somebody's wish to be called; so it is not used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from ...adapter_files.factors.put_on_base import BaseAdapterFile, put_on_base
from ...adapters import AttachedAdapter
from ...adapters.parameter_groups import parameter_groups
from ...config import MemorySection, RunConfig
from ...families.family import Family
from ...offload.block_selection import checkpointed_block_numbers
from ...offload.host_inputs import WORTH
from ...offload.model_bytes import cast_base, pack_blocks
from ...offload.step_profile import BlockTerms, StepProfile
from ...quantization.stored_format import Parts, StoredFormat
from ..checkpoints.ema import averages_of
from ..optimizers import OPTIMIZERS, allocate_state, make_optimizer
from ..prepare.attach_adapter import attach_adapter
from ..step.gradients import clip_gradients
from ..step.make_loss import make_loss, passes_of_step
from ..step.micro_batch import Predict
from ..step.token_routing import TokenRouting, routed_blocks
from .simulated_bytes import LiveBytes, Marks, Phase, watch_blocks
from .simulation_cache import KeptSimulations, Numbers

NOT_SIMULATED = (DataDependentOutputException, DynamicOutputShapeException)
"""What a simulation raises where a model asks for numbers while it computes."""

_PARTS = ("begin", "forward", "end", "backward", "update")

_EDGE = 2
"""Blocks at either end of a list that are looked at one by one; all others lie between them."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What goes through a base in a step, and how it is computed.

    Attributes:
        images: Latents ``(C, h, w)`` of a sample's image, with its layers ``(C, f, h, w)``, and of
            its control images behind it.
        text: Text tokens of a sample.
        dtype: What the base is computed in.
        fused: Whether the optimizer updates all factors at once, as on a GPU.
    """

    images: tuple[tuple[int, ...], ...]
    text: int
    dtype: torch.dtype
    fused: bool = True


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What a step needs.

    Attributes:
        adapter: Bytes of trained and frozen factors and their averages, of gradients and of the
            optimizer's state.
        activations: Most bytes of everything else but the base's weights, at the peak.
        flops: Of the products; a multiplication with its addition are two.
    """

    adapter: int
    activations: int
    flops: int


def _without_backward(numbers: Numbers) -> Numbers:
    """The peaks of forward passes, as if they were those of backward passes."""
    return {
        phase._replace(what="backward"): peak
        for phase, peak in numbers.items()
        if isinstance(phase, Phase) and phase.what == "forward"
    }


class StepSimulation:
    """Steps of one base with one adapter.

    Args:
        transformer: The whole denoiser on the meta device, without an adapter; it stays as it is.
        worth: Bytes of a block's input that can wait in RAM; smaller ones stay on the device.
        whole: Run all blocks; it takes some ten times as long, and gives the same.
        beside: Outlines of the adapters that are part of the base. They are simulated beside its
            weights, also where they would be merged, which takes less.
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
        self._beside, self._kept = beside, kept
        self._worth = worth
        # A layer that is left out by chance needs less than one that is not.
        alone = config.adapter.model_copy(update={"module_dropout": 0.0})
        self.config = config.model_copy(update={"adapter": alone})
        self._whole = tuple(
            len(_blocks(transformer, name)) for name in family.layers.repeated_blocks
        )
        cut = self._blocks_are_alike() and not whole
        routing = config.training.routing
        routed = max(routing.first, routing.last) + 1 if routing.share < 1 else 0
        self._edge = max(_EDGE, routed)  # with one block of those that compute a part of the tokens
        few = 2 * self._edge - 1
        # Two runs, of so many and of one more, have to be quicker than one of all.
        self._few = tuple(few if cut and n > 2 * few else n for n in self._whole)
        self._known: dict[tuple[bool, StoredFormat | None], Numbers] = {}
        self._few_dense: dict[bool, Numbers] = {}

    def step(
        self, stored: StoredFormat | None = None, memory: MemorySection | None = None
    ) -> SimulatedStep:
        """Simulate a step.

        Args:
            stored: How the blocks' matrices are kept; None as numbers of the run's precision.
            memory: Says which blocks are checkpointed; None for the run file's.
        """
        memory = memory or self.config.memory
        chosen = checkpointed_block_numbers(memory, sum(self._whole))
        in_ram = memory.checkpoint_inputs == "ram"
        if in_ram or 0 < len(chosen) < sum(self._whole):
            profile = self.profile(stored)
            found = profile.activations(chosen, in_ram), profile.computed(chosen)
        else:
            numbers = self._numbers(bool(chosen), stored)
            found = _peak(numbers, _PARTS) - numbers["adapter"], numbers["flops"]
        return SimulatedStep(self._numbers(bool(chosen))["adapter"], *found)

    def profile(self, stored: StoredFormat | None = None) -> StepProfile:
        """Simulate a step for every choice of checkpointed blocks."""
        again, dense, kept = self._numbers(True, stored), self._numbers(True), self._numbers(False)
        adapter = again["adapter"]
        waiting = [self._along(numbers, "waiting") for numbers in (kept, dense)]
        ends = [numbers[Phase("waiting")] for numbers in (kept, dense)]
        more = [x - y for x, y in zip(*waiting, strict=True)] + [ends[0] - ends[1]]
        flops = [*self._along(dense, "flops"), dense[Phase("flops")]]
        forward = [after - before for before, after in pairwise(flops)]
        share = (dense["flops"] - kept["flops"]) / max(sum(forward), 1)
        # Reading weights in another way takes the same for a moment, whatever else is there.
        peaks = [self._peaks(numbers) for numbers in (again, dense, kept)]
        blocks = [
            BlockTerms(
                checkpointed=first - adapter,
                kept=third + first - second - adapter,
                more=after - before,
                inputs=inputs,
                flops=round(share * products),
            )
            for first, second, third, before, after, inputs, products in zip(
                *peaks, more, more[1:], self._along(dense, "inputs"), forward, strict=False
            )
        ]
        outside, between = _peak(again, ("begin", "update")), _peak(again, ("end",))
        edges = outside - adapter, between - adapter
        return StepProfile(tuple(blocks), *edges, again["flops"], passes_of_step(self.config))

    def _peaks(self, numbers: Numbers) -> list[int]:
        """The peak of each block, in the order of their calls.

        No gradient reaches a block before the first adapted one, so that it has no backward pass.
        """
        found = self._along(numbers, "forward")
        backward = self._along({**_without_backward(numbers), **numbers}, "backward")
        return list(map(max, found, backward))

    def _along(self, numbers: Numbers, what: str) -> list[int]:
        """A number of each block, in the order of their calls; of those between by their ends."""
        found: list[int] = []
        for group, (few, whole) in enumerate(zip(self._few, self._whole, strict=True)):
            phase = Phase(what, group)
            if few == whole:
                found += [numbers[phase._replace(block=each)] for each in range(whole)]
                continue
            first = [numbers[phase._replace(block=each)] for each in range(self._edge)]
            last = [numbers[phase._replace(block=each)] for each in range(-self._edge, 0)]
            steps = whole - 2 * self._edge + 1
            between = [
                first[-1] + (last[0] - first[-1]) * each // steps for each in range(1, steps)
            ]
            found += [*first, *between, *last]
        return found

    def _numbers(self, checkpointing: bool, stored: StoredFormat | None = None) -> Numbers:
        """What a step of the whole base takes, with all blocks checkpointed or none."""
        key = checkpointing, stored
        if key not in self._known:
            self._known[key] = self._extrapolated(checkpointing, stored)
        return self._known[key]

    def _extrapolated(self, checkpointing: bool, stored: StoredFormat | None) -> Numbers:
        found = self._run_few(self._few, checkpointing, stored)
        total = dict(found)
        if stored is not None:
            # What a further block adds does not depend on how its weights are kept.
            whole, dense = self._numbers(checkpointing), self._few_dense[checkpointing]
            total = {key: each + whole[key] - dense[key] for key, each in found.items()}
            # Reading the weights in another way changes some products of every block.
            more = sum(self._whole) // sum(self._few) - 1
            total["flops"] += (found["flops"] - dense["flops"]) * more
            return total
        for group, counts in self._longer().items():
            longer = self._run_few(counts, checkpointing)
            further = self._whole[group] - self._few[group]
            for key in total:
                total[key] += (longer[key] - found[key]) * further
        self._few_dense[checkpointing] = found
        return total

    def _longer(self) -> dict[int, tuple[int, ...]]:
        """For each list that is cut, the numbers of blocks with one more of it."""
        return {
            group: tuple(n + (at == group) for at, n in enumerate(self._few))
            for group, (few, whole) in enumerate(zip(self._few, self._whole, strict=True))
            if few < whole
        }

    def _blocks_are_alike(self) -> bool:
        """Whether all blocks of a list but the last are the same, with their adapter."""
        transformer = self.transformer
        adapter = attach_adapter(transformer, self.family, self.config)
        plans = [(f"{p.path}.", (p.inputs, p.outputs, p.rank, p.kernel)) for p in adapter.plans]
        self.factors = tuple(tuple(each.shape) for each in adapter.parameters())
        self.trainable = sum(map(math.prod, self.factors))
        adapter.detach()
        for name in self.family.layers.repeated_blocks:
            found: list[object] = []
            for index, block in enumerate(_blocks(transformer, name)):
                place = f"{name}.{index}."
                adapted = [
                    (path.removeprefix(place), sizes)
                    for path, sizes in plans
                    if path.startswith(place)
                ]
                others = shapes_below(self._beside, place)
                weights = [(n, p.shape) for n, p in block.named_parameters()]
                found.append((adapted, others, weights))
            if any(each != found[0] for each in found[:-1]):
                return False
        return True

    def _run_few(
        self, counts: Sequence[int], checkpointing: bool, stored: StoredFormat | None = None
    ) -> Numbers:
        """Run a step of a model of so many blocks, unless it is known what that gives."""
        simulate = partial(self._run_blocks, counts, checkpointing, stored)
        if self._kept is None:
            return simulate()
        return self._kept.find((*counts, checkpointing, stored and stored.name), simulate)

    def _run_blocks(
        self, counts: Sequence[int], checkpointing: bool, stored: StoredFormat | None
    ) -> Numbers:
        family, live, marks = self.family, LiveBytes(Phase("begin")), Marks()
        model = self._model(counts)
        if stored is not None:
            pack_blocks(model, family.layers.repeated_blocks, _without_numbers(stored))
        family.layers.prepare(model)
        if checkpointing:
            family.layers.enable_checkpointing(model)
        options = {"merge": False, "partly": True}
        put = put_on_base(model, family.layers.key_map, self._beside, **options)
        adapter = attach_adapter(model, family, self.config).train()
        with FakeTensorMode():
            _give_sizes(model)
            if self.config.adapter.dora:
                for layer in adapter.layers.values():
                    # The part of it that is the weight's own is kept from here on.
                    layer.norm()
            states, update = self._optimizer(adapter)
            own = [*adapter.parameters(), *adapter.frozen_tensors().values(), *put.tensors()]
            average = averages_of(self.config.training.ema, dict(adapter.named_parameters()))
            states = [*states, *(() if average is None else average.held())]
            known = {id(each) for each in own}
            weights = [*model.parameters(), *model.buffers()]
            base = live.hold(each for each in weights if id(each) not in known)
            held = live.hold([*own, *states])
            live.hold(each for _, _, each in _tensors(model))
            for group, name in enumerate(family.layers.repeated_blocks):
                for index, block in enumerate(_blocks(model, name)):
                    watch_blocks(block, live, marks, Phase("", group, index))
            self._run(model, adapter, update, live, marks)
        gradients = sum(each.numel() * each.element_size() for each in adapter.parameters())
        numbers: Numbers = {"adapter": held + gradients, "flops": live.flops}
        points = {phase: peak - base for phase, peak in live.peaks.items()}
        for phase, value in {**points, **marks.numbers(self._worth)}.items():
            cut = phase.group >= 0 and self._few[phase.group] < self._whole[phase.group]
            if not cut or phase.block < self._edge:
                numbers[phase] = value
            if cut and phase.block >= counts[phase.group] - self._edge:
                from_end = phase.block - counts[phase.group]
                numbers[phase._replace(block=from_end)] = value
        return numbers

    def _model(self, counts: Sequence[int]) -> nn.Module:
        """A copy of the denoiser on the meta device, with the first blocks of each list."""
        replaced: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for name, count in zip(self.family.layers.repeated_blocks, counts, strict=True):
                parent, _, leaf = name.rpartition(".")
                modules: dict[str, Any] = self.transformer.get_submodule(parent)._modules
                replaced.append((modules, leaf, modules[leaf]))
                modules[leaf] = nn.ModuleList(_blocks(self.transformer, name)[:count])
            model = copy.deepcopy(self.transformer)
        finally:
            for modules, leaf, blocks in replaced:
                modules[leaf] = blocks
        return cast_base(model, self.inputs.dtype)

    def _optimizer(self, adapter: AttachedAdapter) -> tuple[list[Tensor], Callable[[], object]]:
        """The state that the run's optimizer has from the first step on, and its update."""
        settings = self.config.training.optimizer
        kind, parameters = OPTIMIZERS[settings.name], adapter.parameters()
        if not kind.pretended:
            sizes = (math.ceil(kind.kept_bytes(each.shape, settings)) for each in parameters)
            states = [torch.empty(size, dtype=torch.uint8) for size in sizes]
            # Such as the library's may be: one factor after the other, by way of some of its size.
            return states, lambda: [torch.stack([each.data] * 3).numel() for each in parameters]
        optimizer = make_optimizer(settings, parameter_groups(adapter, settings))
        for group in optimizer.param_groups:
            group["fused"] = self.inputs.fused
        allocate_state(optimizer)
        states = [each for state in optimizer.state.values() for each in state.values()]
        return states, optimizer.step

    def _text(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """What a sample's text is encoded to."""
        text = {name: torch.empty(each, dtype=self.inputs.dtype) for name, each in shapes.items()}
        own = self.family.text.trainable
        if own is not None and self.config.training.text_encoder.train:
            text[own.tokens] = torch.zeros(own.length, dtype=torch.int64)
        return text

    def _run(
        self,
        model: nn.Module,
        adapter: AttachedAdapter,
        update: Callable[[], object],
        live: LiveBytes,
        marks: Marks,
    ) -> None:
        """Make a step as the loop does; of its micro-batches the first two, which tell of all."""
        training, inputs = self.config.training, self.inputs
        samples, loss_of = training.batch_size, make_loss(training.loss)
        micro_batches = passes_of_step(self.config)
        config: Any = model.config
        predict: Predict = partial(
            self.family.prediction.predict, model, guidance=training.guidance
        )
        if routed_blocks(model, self.family, training.routing):
            predict = TokenRouting(model, self.family, training.routing, 0).routed(predict)
        shapes = self.family.text.conditioning_shapes(config, inputs.text)
        with live:
            image, *controls = (torch.empty(samples, *each) for each in inputs.images)
            target, sigma = torch.empty_like(image), torch.empty(samples)
            texts = [self._text(shapes) for _ in range(samples)]
            for _ in range(min(micro_batches, 2)):
                live.flops = 0
                live.begin(Phase("begin"))
                velocity = predict(image, sigma, texts, controls)
                loss = loss_of(velocity, target, sigma)[0].sum()
                live.begin(Phase("end"))
                marks.note(Phase(""), live, ())
                (loss / samples).backward()
                del velocity, loss
            live.flops *= micro_batches
            live.begin(Phase("update"))
            clip_gradients(adapter.parameters(), training.max_grad_norm)
            update()


class _Sizes(StoredFormat):
    """Stands for a format that needs numbers to be read, where it reads nothing but the result."""

    name = "sizes"

    def __init__(self, stored: StoredFormat) -> None:
        self._stored = stored

    def pack(self, weight: Tensor) -> dict[str, Tensor]:
        size = self.stored_bytes((weight.shape[0], weight.shape[1]))
        return {"weight": weight.new_empty(size, dtype=torch.uint8)}

    def dense(self, parts: Parts, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        return parts["weight"].new_empty(shape, dtype=dtype)

    def stored_bytes(self, shape: tuple[int, int]) -> int:
        return self._stored.stored_bytes(shape)

    def fits(self, shape: tuple[int, int]) -> bool:
        return self._stored.fits(shape)


def _without_numbers(stored: StoredFormat) -> StoredFormat:
    """The format, or what stands for it where its code leaves torch, as by a table on a CPU."""
    try:
        with FakeTensorMode():
            parts = stored.pack(torch.empty(64, 64))
            stored.dense(parts, (64, 64), torch.bfloat16)
    except (RuntimeError, TypeError):
        return _Sizes(stored)
    return stored


def shapes_below(adapters: Sequence[BaseAdapterFile], place: str) -> list[object]:
    """What adapters have for the layers of a block; of one that no factors divide, all of it."""
    return [
        (name.removeprefix(place), [(k, v.shape, v.dtype) for k, v in layer.tensors.items()])
        for adapter in adapters
        if adapter.strength
        for name, layer in adapter.state.layers.items()
        if name.startswith(place)
    ]


def _blocks(model: nn.Module, name: str) -> list[nn.Module]:
    return list(model.get_submodule(name).children())


def _tensors(model: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Where each tensor of a model is held, under which name, and the tensor."""
    for module in model.modules():
        for held in (module._parameters, module._buffers, vars(module)):
            for name, tensor in list(held.items()):
                if isinstance(tensor, Tensor):
                    yield held, name, tensor


def _give_sizes(model: nn.Module) -> None:
    """Put fake tensors of the CPU in the places of those of the meta device."""
    for held, name, tensor in _tensors(model):
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        if isinstance(tensor, nn.Parameter):
            fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        held[name] = fake


def _peak(numbers: Numbers, whats: Collection[str]) -> int:
    return max(n for key, n in numbers.items() if isinstance(key, Phase) and key.what in whats)
