"""The device's memory, before and after, and what it is asked; also of a pretended device."""

import contextlib
import gc
from collections.abc import Callable, Iterator

import torch

from tests.fixtures.pretend_cuda import runtime

PRETENDED = runtime.is_here()


@contextlib.contextmanager
def given_back(most: int = 2**20) -> Iterator[None]:
    """Fail when what is done here keeps more than so many bytes of the device."""
    gc.collect()
    before = torch.cuda.memory_allocated()
    yield
    gc.collect()
    assert abs(torch.cuda.memory_allocated() - before) < most


@contextlib.contextmanager
def without_waits() -> Iterator[None]:
    """Fail when the host waits for the device, or uploads from memory that is not pinned."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def relative(value: torch.Tensor, reference: torch.Tensor) -> float:
    """How far a value is from a reference, wherever they lie."""
    value, reference = value.detach().float().cpu(), reference.detach().float().cpu()
    return float((value - reference).norm() / reference.norm())


def launches(work: Callable[[], object]) -> int:
    """How many kernels and copies are launched."""
    if PRETENDED:
        before = runtime.counts()
        work()
        return (runtime.counts() - before).launches
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        work()
    return sum(e.count for e in found.key_averages() if e.device_type.name == "CUDA")
