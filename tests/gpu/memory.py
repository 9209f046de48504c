"""The device's memory, before and after."""

import contextlib
import gc
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def given_back(most: int = 2**20) -> Iterator[None]:
    """Fail when what is done here keeps more than so many bytes of the device."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    yield
    gc.collect()
    assert abs(torch.cuda.memory_allocated() - before) < most


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    """How far a value is from a reference, wherever they lie."""
    value, reference = value.detach().float().cpu(), reference.detach().float().cpu()
    return float((value - reference).norm() / reference.norm())
