"""A step of a base that is cut to its first blocks, on tensors that have sizes and no numbers.

Forward, backward and the optimizer of the real adapter run on torch's fake tensors, while
`LiveBytes` counts. It takes no memory, and nearly all of its seconds are Python's part of fake
tensors (torch's meta device is no faster). `step_simulation` says what follows for a whole base.

Torch has a tracker of its own (`torch.distributed._tools.mem_tracker`). It is private, absent where
torch was built without `distributed`, and puts hooks on every module and parameter, which the
adapter's layers would take for somebody's wish to be called; so it is not used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from ...adapter_files.factors.put_on_base import BaseAdapterFile, put_on_base
from ...adapters import AttachedAdapter
from ...adapters.parameter_groups import parameter_groups
from ...config import RunConfig
from ...families.family import Family
from ...offload.model_bytes import cast_base, pack_blocks
from ...offload.step_profile import Work
from ...quantization.quantized_linear import set_compute
from ...quantization.stored_format import Parts, StoredFormat
from ..checkpoints.ema import averages_of
from ..optimizers import OPTIMIZERS, allocate_state, make_optimizer
from ..prepare.attach_adapter import attach_adapter
from ..step.gradients import clip_gradients
from ..step.make_loss import make_loss, passes_of_step
from ..step.micro_batch import Predict
from ..step.token_routing import TokenRouting, routed_blocks
from .simulated_bytes import ADAPTER, STEP_WORK, LiveBytes, Marks, Numbers, Phase, watch_blocks


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
class ShortBase:
    """A base of which only the first blocks of each list are run.

    Attributes:
        transformer: The whole denoiser on the meta device, without an adapter; it stays as it is.
        beside: Outlines of the adapters that are part of the base. They are simulated beside its
            weights, also where they would be merged, which takes less.
        worth: Bytes of a block's input that can wait in RAM; smaller ones stay on the device.
    """

    transformer: nn.Module
    family: Family
    config: RunConfig
    inputs: StepInputs
    beside: Sequence[BaseAdapterFile]
    worth: int

    def step(
        self, counts: Sequence[int], checkpointing: bool, stored: StoredFormat | None
    ) -> Numbers:
        """Run one step.

        Args:
            counts: Blocks of each list.
            checkpointing: Whether all blocks are checkpointed, or none.
            stored: How the blocks' matrices are kept; None as numbers of the run's precision.

        Returns:
            The peak of each `Phase`, in bytes beside the base's weights, and what `Marks` noted;
            bytes of the adapter with gradients, averages and the optimizer's state; and work.
        """
        family, live, marks = self.family, LiveBytes(Phase("begin")), Marks()
        model = self._model(counts)
        if stored is not None:
            pack_blocks(model, family.layers.repeated_blocks, _without_numbers(stored))
            set_compute(model, self.config.memory.compute)
        family.layers.prepare(model)
        if checkpointing:
            family.layers.enable_checkpointing(model)
        put = put_on_base(model, family.layers.key_map, self.beside, merge=False, partly=True)
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
                for index, block in enumerate(blocks_of(model, name)):
                    watch_blocks(block, live, marks, Phase("", group, index))
            self._forward_backward_update(model, adapter, update, live=live, marks=marks)
        gradients = sum(each.numel() * each.element_size() for each in adapter.parameters())
        return {
            ADAPTER: held + gradients,
            **dict(zip(STEP_WORK, astuple(live.work), strict=True)),
            **{phase: peak - base for phase, peak in live.peaks.items()},
            **marks.numbers(self.worth),
        }

    def _model(self, counts: Sequence[int]) -> nn.Module:
        """A copy of the denoiser on the meta device, with the first blocks of each list."""
        replaced: list[tuple[dict[str, Any], str, Any]] = []
        try:
            for name, count in zip(self.family.layers.repeated_blocks, counts, strict=True):
                parent, _, leaf = name.rpartition(".")
                modules: dict[str, Any] = self.transformer.get_submodule(parent)._modules
                replaced.append((modules, leaf, modules[leaf]))
                modules[leaf] = nn.ModuleList(blocks_of(self.transformer, name)[:count])
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

    def _forward_backward_update(
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
                live.work = Work()
                live.begin(Phase("begin"))
                velocity = predict(image, sigma, texts, controls)
                loss = loss_of(velocity, target, sigma)[0].sum()
                live.begin(Phase("end"))
                marks.note(Phase(""), live, ())
                (loss / samples).backward()
                del velocity, loss
            live.work *= micro_batches
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
        return parts["weight"].new_zeros(shape, dtype=dtype)

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


def blocks_of(model: nn.Module, name: str) -> list[nn.Module]:
    """The blocks of a list, in the order in which they are called."""
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
