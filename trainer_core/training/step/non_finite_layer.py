"""Where in the model a step broke: in which layer, and with or without the adapter."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from ...adapters import AttachedAdapter
from ...device import is_out_of_memory, release_memory
from ...tensors.rounding import all_finite
from .gradients import forget_gradients
from .micro_batch import MicroBatchResult
from .processes import Processes

_KINDS = ("", "the weight", "the output", "the gradient")


def broken_place(
    adapter: AttachedAdapter,
    compute: Callable[[bool], list[MicroBatchResult]],
    processes: Processes,
) -> str:
    """Compute a broken step once more, and look where it breaks.

    Every process looks at its own samples; what the first of them found is told by all.

    Args:
        compute: Computes this process's part of the step, with gradients or without; the same
            numbers each time.

    Returns:
        Such as `` (of the adapted layers: first the output of blocks.3.to_q; without the adapter
        the loss is finite)``.
    """
    names, full = list(adapter.layers), False
    kind, name, alone = 0, "", True
    try:
        kind, name, alone = _looked_for(adapter, compute)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        # The others wait for what this one found.
        full = True
        traceback.clear_frames(error.__traceback__)
    forget_gradients(adapter.parameters())
    if full:
        release_memory(processes.device)
    own = [float(kind), float(names.index(name)) if kind else 0.0, float(alone), float(full)]
    size = len(own) * processes.count
    sent = [0.0] * size
    sent[len(own) * processes.index : len(own) * (processes.index + 1)] = own
    received = processes.sum_numbers(sent)
    rows = [received[at : at + len(own)] for at in range(0, size, len(own))]
    # The base's own fault is nobody else's.
    row = min(rows, key=lambda each: (each[2], not each[0]))
    if row[2] and not row[0] and any(each[3] for each in rows):
        return " (the device's memory was full when the layer was looked for)"
    where = f"first {_KINDS[int(row[0])]} of {names[int(row[1])]}" if row[0] else "in no such layer"
    base = "finite" if row[2] else "not finite either"
    return f" (of the adapted layers: {where}; without the adapter the loss is {base})"


def _looked_for(
    adapter: AttachedAdapter, compute: Callable[[bool], list[MicroBatchResult]]
) -> tuple[int, str, bool]:
    """What is not finite, as a place in `_KINDS`, in which layer, and whether the base is."""
    with _outputs_watched(adapter) as broken:
        compute(True)
    kind, name = _first(adapter, broken)
    forget_gradients(adapter.parameters())
    before, adapter.strength = adapter.strength, 0.0
    try:
        with torch.no_grad():
            return kind, name, all(all_finite(part.loss) for part in compute(False))
    finally:
        adapter.strength = before


@contextlib.contextmanager
def _outputs_watched(adapter: AttachedAdapter) -> Iterator[list[str]]:
    """Collects, in the order of the calls, the layers whose output is not finite."""
    broken: list[str] = []

    def watch(name: str) -> Callable[[nn.Module, object, object], None]:
        def look(_: nn.Module, __: object, output: object) -> None:
            if not broken and isinstance(output, Tensor) and not all_finite(output.detach()):
                broken.append(name)

        return look

    handles = [
        layer.register_forward_hook(watch(name))
        for name, layer in adapter.layers.items()
        if isinstance(layer, nn.Module)
    ]
    try:
        yield broken
    finally:
        for handle in handles:
            handle.remove()


def _first(adapter: AttachedAdapter, outputs: list[str]) -> tuple[int, str]:
    """What is not finite, as a place in `_KINDS`, and in which layer."""
    for name, layer in adapter.layers.items():
        if not all(all_finite(each.detach()) for each in layer.factors().values()):
            return 1, name
    if outputs:
        return 2, outputs[0]
    # Backward reaches the last layer first, and what it breaks there all before it have.
    for name, layer in reversed(list(adapter.layers.items())):
        gradients = (each.grad for each in layer.factors().values())
        if not all(all_finite(each) for each in gradients if each is not None):
            return 3, name
    return 0, ""
