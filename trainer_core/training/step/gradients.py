"""Forward and backward of a step's micro-batches; clipping and freeing of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from .micro_batch import MicroBatchResult, merge_results


def forward_and_backward(
    parts: Iterable[MicroBatchResult], samples: int, backward: Callable[[Tensor], None]
) -> MicroBatchResult:
    """Compute the gradients of a micro-batch, each part before the next is computed.

    Args:
        parts: Of the micro-batch; a single one where it is whole.

    Returns:
        The micro-batch as a whole, so that processes tell each other equally much of a step
        however each of them divides it.
    """
    done: list[MicroBatchResult] = []
    for part in parts:
        backward(part.loss / samples)
        done.append(part)
    if len(done) == 1:
        return done[0]
    errors = [each.errors for each in done if each.errors is not None]
    return merge_results(done, [each.loss.detach() for each in done], errors)


def forget_gradients(parameters: Sequence[torch.nn.Parameter]) -> None:
    """Give the gradients' memory back."""
    for parameter in parameters:
        parameter.grad = None


@torch.no_grad()
def clip_gradients(parameters: Sequence[torch.nn.Parameter], limit: float) -> Tensor:
    """Scale gradients down to a norm, without a wait for the device.

    The arithmetic of `torch.nn.utils.clip_grad_norm_`, to the last bit, for parameters of one
    device and dtype: it sorts them by these twice, and asks of each norm where it is.

    Args:
        parameters: Those without a gradient are passed over.
        limit: The largest norm; 0 leaves the gradients as they are.

    Returns:
        The norm of all gradients together before, a scalar on their device.
    """
    gradients = [grad for each in parameters if (grad := each.grad) is not None]
    if not gradients:
        return torch.zeros(())
    norms = torch._foreach_norm(gradients)  # pyright: ignore[reportPrivateImportUsage]
    norm = torch.linalg.vector_norm(torch.stack(norms))
    if limit:
        share = (limit / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, share)  # pyright: ignore[reportPrivateImportUsage]
    return norm
