"""`Processes`: how a step is shared among processes (accelerate): sums, barriers, shares.

A step trains the same samples, however many processes there are: whole micro-batches are dealt out,
or the samples of each micro-batch are. A process that is left without any makes a pass that counts
for nothing, so that all make equally many. Gradients are
summed over the adapter's parameters only, so nothing has to wrap the base; where it fits no single
device, each process keeps a part of it (`sharding`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...config import TrainingSection
from ...device import send
from ...errors import ConfigError, InputError
from ..observer import RunCancelledError
from .sharding import is_requested, leading, make_mesh, shard

if TYPE_CHECKING:
    from accelerate import Accelerator


class Processes:
    """The processes that share a run: here a single one, which all others build upon.

    It keeps no process-wide state, so that ComfyUI can host it.

    Attributes:
        device: Where this one computes.
        index: This one.
        count: How many there are.
        sharded: Whether each keeps a part of the base; a pass through it then takes all of them.
    """

    index: int = 0
    count: int = 1
    sharded: bool = False

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def backward(self, loss: Tensor) -> None:
        """Add the loss's gradients to the parameters of this process."""
        loss.backward()

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Replace each gradient by its sum over all processes.

        One that no process has stays absent: an optimizer passes over such a parameter, while a
        gradient of zero would decay it.
        """

    def sum_numbers(
        self, numbers: Sequence[float], on_device: Sequence[Tensor] = ()
    ) -> list[float]:
        """Sum each number over all processes.

        Args:
            on_device: Scalars of one dtype that the device may still compute; they are read
                together, so that the run waits for it once.

        Returns:
            The sums of ``numbers``, then those of ``on_device``.
        """
        return [*numbers, *(torch.stack(list(on_device)).tolist() if on_device else ())]

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor by that of the first process, in place."""

    def barrier(self) -> None:
        """Wait until every process is here."""

    def turn(self) -> AbstractContextManager[None]:
        """Wait for this process's turn, where a base in parts is loaded.

        One after the other, because each needs the system memory of the whole base until it has
        its part.
        """
        return nullcontext()

    def shard(
        self,
        module: torch.nn.Module,
        blocks: Iterable[torch.nn.Module],
        whole: Iterable[torch.nn.Parameter],
    ) -> None:
        """Keep a part of a module on the CPU here, and no more; see `sharding.shard`.

        Nothing happens where the base is not sharded.
        """

    def leading(self, module: torch.nn.Module) -> AbstractContextManager[bool]:
        """Let the first process run the base alone; the others help where it is in parts.

        Returns:
            A context that says whether this process is the first; every process enters it.
        """
        del module
        return nullcontext(True)

    def passes(self, own: int) -> int:
        """How many passes through the base this process makes where it has use for ``own``.

        In a base in parts as many as that one which has most; each has to ask at the same time.
        """
        return own


class SingleProcess(Processes):
    """One process on one device."""


class AccelerateProcesses(Processes):
    """The processes of ``accelerate launch``, or a single one without it.

    Args:
        device: What ``memory.device`` means here. Several processes take one accelerator each, in
            accelerate's order, or stay on the CPU when this is the CPU.

    Raises:
        InputError: When the launcher asks for weights in parts by anything but FSDP2 (FSDP1,
            DeepSpeed, Megatron).
    """

    def __init__(self, device: torch.device) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DistributedType

        requested = is_requested()
        # Number formats are the run's own business: an Accelerator would keep the first run's
        # choice for the whole process.
        self._accelerator: Accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision="no")
        kind = self._accelerator.distributed_type
        refused = {DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM}
        if kind in refused or (kind == DistributedType.FSDP and not requested):
            raise InputError(
                f"accelerate is set up for {kind.value}",
                "one process, or several with a whole copy of the base each (MULTI_GPU, MULTI_CPU) "
                "or a part of it (FSDP2)",
                "Run `accelerate config` again, or launch with --multi_gpu or, where the base does "
                "not fit into one GPU, with --use_fsdp --fsdp_version 2.",
            )
        self.index = self._accelerator.process_index
        self.count = self._accelerator.num_processes
        super().__init__(device if self.count == 1 else self._accelerator.device)
        self._mesh = make_mesh(self.device, self.count) if requested and self.count > 1 else None
        self.sharded = self._mesh is not None

    def backward(self, loss: Tensor) -> None:
        """Run autograd through accelerate."""
        self._accelerator.backward(loss)

    def sum_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Sum all gradients in one flat message, with who has which at its end."""
        if self.count == 1 or not parameters:
            return
        # A layer whose output is unused has no gradient, and not on every process alike.
        absent = [index for index, each in enumerate(parameters) if each.grad is None]
        there = torch.ones(len(parameters), dtype=parameters[0].dtype)
        there[absent] = 0.0
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        flat = torch.cat([*(each.reshape(-1) for each in own), send(there, self.device)])
        sizes = [each.numel() for each in own]
        # Each is freed below, when its sum takes its place.
        del own
        *sums, counts = self._sum(flat).split([*sizes, len(parameters)])
        # Whoever has all of them knows; the others wait for the device.
        found = counts[absent].tolist() if absent else []
        nowhere = {index for index, count in zip(absent, found, strict=True) if not count}
        for index, (parameter, total) in enumerate(zip(parameters, sums, strict=True)):
            parameter.grad = None if index in nowhere else total.view_as(parameter).clone()

    def sum_numbers(
        self, numbers: Sequence[float], on_device: Sequence[Tensor] = ()
    ) -> list[float]:
        """Sum in one message."""
        if self.count == 1:
            return super().sum_numbers(numbers, on_device)
        exact = torch.float32 if self.device.type == "mps" else torch.float64
        own = [send(torch.tensor(numbers, dtype=exact), self.device)]
        own += [torch.stack(list(on_device)).to(exact)] if on_device else []
        return self._sum(torch.cat(own)).tolist()

    def share(self, tensors: Sequence[Tensor]) -> None:
        """Sum in one message, to which the first process alone adds something."""
        if self.count == 1 or not tensors:
            return
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        total = self._sum(flat if self.index == 0 else torch.zeros_like(flat))
        with torch.no_grad():
            for tensor, part in zip(
                tensors, total.split([tensor.numel() for tensor in tensors]), strict=True
            ):
                tensor.copy_(part.view_as(tensor))

    def barrier(self) -> None:
        """Wait for the others."""
        self._accelerator.wait_for_everyone()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for those before this one, and let those behind it wait."""
        places = self.count if self.sharded else 0
        for place in range(places):
            if place == self.index:
                yield
            self.barrier()
        if not places:
            yield

    def shard(
        self,
        module: torch.nn.Module,
        blocks: Iterable[torch.nn.Module],
        whole: Iterable[torch.nn.Parameter],
    ) -> None:
        """Keep this process's part."""
        if self._mesh is not None:
            shard(module, blocks, whole, mesh=self._mesh, device=self.device)

    def leading(self, module: torch.nn.Module) -> AbstractContextManager[bool]:
        """The others follow through a base in parts, and have nothing to do for a whole one."""
        if not self.sharded:
            return nullcontext(self.index == 0)
        return leading(module, self.index, self.device)

    def passes(self, own: int) -> int:
        """The most of all where the base is in parts."""
        if not self.sharded:
            return own
        counts = [float(own * (place == self.index)) for place in range(self.count)]
        return int(max(self.sum_numbers(counts)))

    def _sum(self, tensor: Tensor) -> Tensor:
        total = self._accelerator.reduce(tensor, reduction="sum")
        if not isinstance(total, Tensor):
            raise TypeError(f"accelerate returned {type(total).__name__} instead of a tensor")
        return total


def cancel_together(processes: Processes, requested: bool) -> None:
    """End in every process what one of them was asked to end; all wait here for each other.

    Raises:
        RunCancelledError: In every process.
    """
    if processes.sum_numbers([float(requested)])[0]:
        raise RunCancelledError


class Shares:
    """Which micro-batches, or which part of each, this process computes.

    Attributes:
        dealt: ``(index, count)``: it computes every ``count``-th micro-batch of a step, from
            ``index`` on.
        part: ``(index, count)`` of its part of each of them.

    Raises:
        ConfigError: When a step cannot be dealt out evenly.
    """

    def __init__(self, training: TrainingSection, index: int, count: int) -> None:
        steps = training.gradient_accumulation_steps
        if steps % count == 0:
            self.dealt, self.part = (index, count), (0, 1)
        elif training.batch_size % count == 0:
            self.dealt, self.part = (0, 1), (index, count)
        else:
            raise ConfigError(
                f"training.batch_size={training.batch_size}, "
                f"training.gradient_accumulation_steps={steps} and {count} processes",
                f"one of the two to be a multiple of {count}, because a step trains the same "
                "samples on any number of processes",
                f"Set training.gradient_accumulation_steps={count}, or start fewer processes.",
            )
