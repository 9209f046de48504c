"""What a training step needs in memory, from a step that is only pretended.

A model of few blocks with the real adapter runs forward, backward and the optimizer on tensors that
have sizes and no numbers (torch's fake tensors), while `LiveBytes` counts. It takes a second and no
memory. What the step of the whole base needs follows from it: blocks are alike, so that from one
landmark of a step to the next (`_Phase`) the bytes grow by the same with each further block, and
the peak is the largest of all phases'. Where blocks are not alike, all of them run.

Torch has a tracker of its own (`torch.distributed._tools.mem_tracker`). It is private, absent where
torch was built without `distributed`, and puts hooks on every module and parameter, which the
adapter's layers would take for somebody's wish to be called; so it is not used.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from ..adapters import AttachedAdapter, attach
from ..adapters.parameter_groups import parameter_groups
from ..config import RunConfig
from ..diffusion.flow import flow_loss
from ..families.family import Family
from ..offload.model_bytes import cast_base, pack_blocks
from ..quantization.stored_format import Parts, StoredFormat
from .live_bytes import LiveBytes
from .optimizer import allocate_state, make_optimizer
from .step import clip_gradients

NOT_SIMULATED = (DataDependentOutputException, DynamicOutputShapeException)
"""What a simulation raises where a model asks for numbers while it computes."""

EDGE = 2
"""Blocks at either end of a list that are looked at one by one; all others lie between them."""


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What goes through a base in a step, and how it is computed.

    Attributes:
        images: Latents ``(C, h, w)`` of a sample's image, and of its control images behind it.
        text: Text tokens of a sample.
        dtype: What the base is computed in.
        fused: Whether the optimizer updates all factors at once, as on a GPU.
    """

    images: tuple[tuple[int, int, int], ...]
    text: int
    dtype: torch.dtype
    fused: bool = True


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """What a step needs.

    Attributes:
        adapter: Bytes of trained and frozen factors, gradients and the optimizer's state.
        activations: Most bytes of everything else but the base's weights, at the peak.
        flops: Of the products; a multiplication with its addition are two.
    """

    adapter: int
    activations: int
    flops: int


class _Phase(NamedTuple):
    """A part of a step: of a block, or outside of blocks.

    Attributes:
        what: ``forward`` and ``backward`` of a block; else ``begin``, ``end`` or ``update``.
        group: Which list of blocks.
        block: Which of them; below 0 it is counted from the end.
    """

    what: str
    group: int = -1
    block: int = 0


_Numbers = dict[_Phase | str, int]
"""Peaks of phases, in bytes beside the base; and ``adapter`` (bytes) and ``flops``."""


class StepSimulation:
    """Steps of one base with one adapter.

    Args:
        transformer: The whole denoiser on the meta device, without an adapter; it stays as it is.
        family: Its family.
        config: The run file.
        inputs: What goes through.
        whole: Run all blocks; it takes some ten times as long, and gives the same.

    Attributes:
        transformer: As given.
        family: As given.
        config: As given, without what is left to chance.
        inputs: As given.
        trainable: Parameters of the adapter.
    """

    trainable: int

    def __init__(
        self,
        transformer: nn.Module,
        family: Family,
        config: RunConfig,
        inputs: StepInputs,
        *,
        whole: bool = False,
    ) -> None:
        self.transformer, self.family, self.inputs = transformer, family, inputs
        # A layer that is left out by chance needs less than one that is not.
        alone = config.adapter.model_copy(update={"module_dropout": 0.0})
        self.config = config.model_copy(update={"adapter": alone})
        self._whole = tuple(len(_blocks(transformer, name)) for name in family.repeated_blocks)
        cut = self._blocks_are_alike() and not whole
        few = 2 * EDGE - 1
        # Two runs, of so many and of one more, have to be quicker than one of all.
        self._few = tuple(few if cut and n > 2 * few else n for n in self._whole)
        self._dense: dict[bool, tuple[_Numbers, list[_Numbers]]] = {}

    def step(
        self, checkpointing: bool | None = None, stored: StoredFormat | None = None
    ) -> SimulatedStep:
        """Simulate a step.

        Args:
            checkpointing: Whether activations are computed again; None as the run file says.
            stored: How the blocks' matrices are kept; None as numbers of the run's precision.
        """
        if checkpointing is None:
            checkpointing = self.config.memory.gradient_checkpointing
        if checkpointing not in self._dense:
            self._dense[checkpointing] = (
                self._numbers(self._few, checkpointing),
                [self._numbers(counts, checkpointing) for counts in self._longer().values()],
            )
        dense, longer = self._dense[checkpointing]
        found = dense if stored is None else self._numbers(self._few, checkpointing, stored)
        total = dict(found)
        # What a further block adds does not depend on how its weights are kept.
        for group, numbers in zip(self._longer(), longer, strict=True):
            further = self._whole[group] - self._few[group]
            for key in total:
                total[key] += (numbers[key] - dense[key]) * further
        # Reading the weights in another way changes some products of every block.
        flops = total.pop("flops") + (found["flops"] - dense["flops"]) * (
            sum(self._whole) // sum(self._few) - 1
        )
        adapter = total.pop("adapter")
        return SimulatedStep(adapter, max(total.values()) - adapter, flops)

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
        adapter = _attach(transformer, self.family, self.config)
        plans = [(f"{p.path}.", (p.inputs, p.outputs, p.rank, p.kernel)) for p in adapter.plans]
        self.trainable = sum(each.numel() for each in adapter.parameters())
        adapter.detach()
        for name in self.family.repeated_blocks:
            found: list[object] = []
            for index, block in enumerate(_blocks(transformer, name)):
                place = f"{name}.{index}."
                adapted = [
                    (path.removeprefix(place), sizes)
                    for path, sizes in plans
                    if path.startswith(place)
                ]
                found.append((adapted, [(n, p.shape) for n, p in block.named_parameters()]))
            if any(each != found[0] for each in found[:-1]):
                return False
        return True

    def _numbers(
        self, counts: Sequence[int], checkpointing: bool, stored: StoredFormat | None = None
    ) -> _Numbers:
        """Run a step of a model of so many blocks."""
        family, live = self.family, LiveBytes(_Phase("begin"))
        model = self._model(counts)
        if stored is not None:
            pack_blocks(model, family.repeated_blocks, _without_numbers(stored))
        family.prepare(model)
        if checkpointing:
            family.enable_checkpointing(model)
        adapter = _attach(model, family, self.config).train()
        with FakeTensorMode():
            _give_sizes(model)
            if self.config.adapter.dora:
                for layer in adapter.layers.values():
                    # The part of it that is the weight's own is kept from here on.
                    layer.norm()
            optimizer = self._optimizer(adapter)
            own = [*adapter.parameters(), *adapter.frozen_tensors().values()]
            states = [each for state in optimizer.state.values() for each in state.values()]
            known = {id(each) for each in own}
            weights = [*model.parameters(), *model.buffers()]
            base = live.hold(each for each in weights if id(each) not in known)
            held = live.hold([*own, *states])
            live.hold(each for _, _, each in _tensors(model))
            for group, name in enumerate(family.repeated_blocks):
                for index, block in enumerate(_blocks(model, name)):
                    _watch(block, live, group, index)
            self._run(model, adapter, optimizer, live)
        gradients = sum(each.numel() * each.element_size() for each in adapter.parameters())
        numbers: _Numbers = {"adapter": held + gradients, "flops": live.flops}
        for phase, peak in live.peaks.items():
            cut = phase.group >= 0 and self._few[phase.group] < self._whole[phase.group]
            if not cut or phase.block < EDGE:
                numbers[phase] = peak - base
            if cut and phase.block >= counts[phase.group] - EDGE:
                from_end = phase.block - counts[phase.group]
                numbers[phase._replace(block=from_end)] = peak - base
        return numbers

    def _model(self, counts: Sequence[int]) -> nn.Module:
        """A copy of the denoiser on the meta device, with the first blocks of each list."""
        replaced: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for name, count in zip(self.family.repeated_blocks, counts, strict=True):
                parent, _, leaf = name.rpartition(".")
                modules: dict[str, Any] = self.transformer.get_submodule(parent)._modules
                replaced.append((modules, leaf, modules[leaf]))
                modules[leaf] = nn.ModuleList(_blocks(self.transformer, name)[:count])
            model = copy.deepcopy(self.transformer)
        finally:
            for modules, leaf, blocks in replaced:
                modules[leaf] = blocks
        return cast_base(model, self.inputs.dtype)

    def _optimizer(self, adapter: AttachedAdapter) -> torch.optim.Optimizer:
        """The run's, with the state that it has from the first step on."""
        settings = self.config.training.optimizer
        optimizer = make_optimizer(settings, parameter_groups(adapter, settings))
        for group in optimizer.param_groups:
            group["fused"] = self.inputs.fused
        allocate_state(optimizer)
        return optimizer

    def _run(
        self,
        model: nn.Module,
        adapter: AttachedAdapter,
        optimizer: torch.optim.Optimizer,
        live: LiveBytes,
    ) -> None:
        """Make a step as the loop does; of its micro-batches the first two, which tell of all."""
        training, inputs = self.config.training, self.inputs
        samples, micro_batches = training.batch_size, training.gradient_accumulation_steps
        config: Any = model.config
        shapes = self.family.conditioning_shapes(config, inputs.text)
        with live:
            image, *controls = (torch.empty(samples, *each) for each in inputs.images)
            target, sigma = torch.empty_like(image), torch.empty(samples)
            texts = [
                {name: torch.empty(shape, dtype=inputs.dtype) for name, shape in shapes.items()}
                for _ in range(samples)
            ]
            for _ in range(min(micro_batches, 2)):
                live.flops = 0
                live.begin(_Phase("begin"))
                velocity = self.family.predict(
                    model, image, sigma, texts, controls, training.guidance
                )
                loss = flow_loss(velocity, target).sum()
                live.begin(_Phase("end"))
                (loss / samples).backward()
                del velocity, loss
            live.flops *= micro_batches
            live.begin(_Phase("update"))
            clip_gradients(adapter.parameters(), training.max_grad_norm)
            optimizer.step()


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


def _attach(model: nn.Module, family: Family, config: RunConfig) -> AttachedAdapter:
    return attach(
        model,
        config.adapter,
        presets=family.presets,
        unused=family.unused_layers(model),
        shared=family.shared_inputs,
    )


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


def _watch(block: nn.Module, live: LiveBytes, group: int, index: int) -> None:
    """Tell when the forward pass comes to a block, and when the backward pass does."""
    forward, backward = (_Phase(what, group, index) for what in ("forward", "backward"))

    def enter(*args: object) -> None:
        del args
        # In a backward pass it is called to compute its activations again.
        if torch._C._current_graph_task_id() < 0:
            live.begin(forward)

    def leave(module: nn.Module, args: object, output: Any) -> None:
        del module, args
        if torch._C._current_graph_task_id() < 0:
            for each in output if isinstance(output, tuple) else (output,):
                if isinstance(each, Tensor) and each.requires_grad:
                    each.register_hook(partial(_begin, live, backward))

    block.register_forward_pre_hook(enter)
    block.register_forward_hook(leave)


def _begin(live: LiveBytes, phase: _Phase, gradient: Tensor) -> None:
    del gradient
    live.begin(phase)
