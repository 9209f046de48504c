"""The pretended device itself: what it refuses as CUDA does, and that it notices what is wrong."""

import gc

import pytest
import torch

from tests.fixtures.pretend_cuda import runtime
from tests.gpu.memory import PRETENDED
from tests.gpu.test_block_swap import CUDA, make_blocks, passes
from tests.gpu.test_steps import measured
from trainer_core.diffusion.losses import FlowLoss
from trainer_core.offload.host_weights import PinnedMaster
from trainer_core.offload.machine import Machine, machine_budget
from trainer_core.offload.pinned_memory import PinnedMemory
from trainer_core.offload.streamed_blocks import StreamedBlocks
from trainer_core.offload.transfer import CudaTransfer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not PRETENDED, reason="a real one needs no proof"),
]
OTHER = torch.device("cuda", 1)
MIB = 2**20


def ones(*shape, dtype=torch.float32, device=CUDA):
    return torch.ones(shape, dtype=dtype, device=device)


# ---- What is refused ---------------------------------------------------------------------------

INT8, F8 = torch.int8, torch.float8_e4m3fn


def scaled(rows, inner, columns, scales=((), ()), **given):
    one, two = ones(rows, inner).to(F8), ones(columns, inner).to(F8).t()
    return torch._scaled_mm(one, two, *(ones(*each) for each in scales), **given)


ROWS = ((32, 1), (1, 48))
REFUSED = {
    "mixed devices": (lambda: ones(3) + torch.ones(3), "same device"),
    "two devices": (lambda: ones(3) + ones(3, device=OTHER), "same device"),
    "a third device": (lambda: ones(3, device="cuda:2"), "invalid device ordinal"),
    "few rows": (lambda: torch._int_mm(ones(16, 8, dtype=INT8), ones(8, 8, dtype=INT8)), "than 16"),
    "odd sum": (lambda: torch._int_mm(ones(32, 12, dtype=INT8), ones(12, 8, dtype=INT8)), "of 8"),
    "odd columns": (lambda: torch._int_mm(ones(32, 8, dtype=INT8), ones(8, 9, dtype=INT8)), "of 8"),
    "odd float8": (lambda: scaled(32, 24, 48), "divisible by 16"),
    "rows of float8": (
        lambda: torch._scaled_mm(ones(32, 32).to(F8), ones(32, 32).to(F8), ones(), ones()),
        "column-major",
    ),
    "wrong scales": (lambda: scaled(32, 16, 48, ((32,), (48,))), "scaling configuration"),
    "wide scaled rows": (lambda: scaled(32, 16, 48, ROWS, out_dtype=torch.float32), "bfloat16"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cuda_refuses_is_refused(name):
    call, words = REFUSED[name]
    with pytest.raises(RuntimeError, match=words):
        call()


WAITING = {
    "item": lambda x: x.sum().item(),
    "download": lambda x: x.cpu(),
    "upload": lambda x: x.copy_(torch.zeros(4)),
    "a list": lambda x: torch.tensor([1.0], device=CUDA),
    "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "indices": lambda x: x[torch.tensor([1])],
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
}


@pytest.mark.parametrize("name", WAITING)
def test_what_waits_is_told(name):
    x = ones(4)
    try:
        torch.cuda.set_sync_debug_mode("error")
        with pytest.raises(RuntimeError, match="synchronizing CUDA operation"):
            WAITING[name](x)
        torch.cuda.set_sync_debug_mode("warn")
        with pytest.warns(UserWarning, match="synchronizing CUDA operation"):
            WAITING[name](x)
        torch.cuda.set_sync_debug_mode("error")
        x.copy_(torch.zeros(4).pin_memory(), non_blocking=True)
        (x @ x).to("cpu", non_blocking=True)
    finally:
        torch.cuda.set_sync_debug_mode("default")


# ---- Memory ------------------------------------------------------------------------------------


def test_bytes_are_counted_and_the_last_one_is_refused():
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
    held = torch.empty(3 * MIB, dtype=torch.uint8, device=CUDA)
    assert not (held == 0).any(), "what nobody wrote is not a zero"
    gone = held.float()
    del gone
    assert torch.cuda.memory_allocated() - before == 3 * MIB
    assert torch.cuda.max_memory_allocated() - before >= 15 * MIB
    assert torch.cuda.memory_reserved() - before >= 15 * MIB
    torch.cuda.empty_cache()
    assert free - torch.cuda.mem_get_info()[0] == 3 * MIB
    with runtime.device_bytes(runtime.memory().allocated + MIB):
        ones(MIB // 4)
        torch.cuda.empty_cache()
        assert torch.cuda.mem_get_info() == (MIB, runtime.memory().total)
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            ones(MIB // 4 + 1)
    assert torch.cuda.memory_allocated(1) == 0


def test_a_full_device_tells_its_speed_and_no_plan_fits():
    torch.cuda.empty_cache()
    with runtime.device_bytes(runtime.memory().allocated + 2 * MIB):
        budget = machine_budget(Machine(), CUDA, torch.bfloat16)
    assert budget.device_free == 2 * MIB < budget.reserve
    assert min(budget.link_bytes_per_s, budget.flops_per_s, budget.moved_per_s) > 0


# ---- Devices, generators, streams --------------------------------------------------------------


def test_copies_are_put_off_until_somebody_waits():
    side, target = torch.cuda.Stream(), torch.zeros(4, device=CUDA)
    host, back = torch.arange(4.0).pin_memory(), torch.zeros(4).pin_memory()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        target.copy_(host, non_blocking=True)
        done = side.record_event()
    host += 1  # which the copy reads, because nobody has waited for it
    torch.cuda.current_stream().wait_event(done)
    back.copy_(target, non_blocking=True)
    assert not back.any()
    torch.cuda.current_stream().synchronize()
    assert back.tolist() == [1, 2, 3, 4]


# ---- The harness notices ------------------------------------------------------------------------


def streamed():
    """Some passes through swapped blocks."""
    blocks = make_blocks("cpu")
    held = StreamedBlocks(blocks, CUDA, 2, PinnedMaster(True, Machine()), CudaTransfer(CUDA))
    try:
        passes(blocks)
    finally:
        held.close()


def early(self, copies, before):
    with torch.cuda.stream(self._stream):
        self._stream.wait_event(before)
        event = self._stream.record_event()
        for target, source in copies:
            target.copy_(source, non_blocking=True)
        return event


def at_once(self, copies, before):
    with torch.cuda.stream(self._stream):
        for target, source in copies:
            target.copy_(source, non_blocking=True)
        return self._stream.record_event()


@pytest.mark.parametrize(
    ("name", "fault"), [("wait", lambda self, ticket: None), ("_copy", early), ("_copy", at_once)]
)
def test_a_wait_that_is_missing_is_noticed(monkeypatch, tmp_path, cache, name, fault):
    streamed()
    monkeypatch.setattr(CudaTransfer, name, fault)
    for work in (streamed, lambda: measured(tmp_path, cache, swap="inputs")):
        with pytest.raises(RuntimeError, match="no event orders them"):
            work()
        assert runtime.faults()


def test_memory_that_is_given_back_too_early_is_noticed():
    side, host = torch.cuda.Stream(), torch.ones(4).pin_memory()
    target = torch.empty(4, device=CUDA)
    with torch.cuda.stream(side):
        target.copy_(host, non_blocking=True)
    del target
    side.synchronize()
    assert "given back" in runtime.faults()[0]


def test_a_block_that_stays_pinned_is_noticed(monkeypatch):
    before, unpin = runtime.pinned_bytes(), PinnedMemory.unpin
    streamed()
    assert runtime.pinned_bytes() == before
    kept = []
    monkeypatch.setattr(PinnedMemory, "unpin", lambda self, flat: kept.append((self, flat)))
    streamed()
    assert runtime.pinned_bytes() > before
    for memory, flat in kept:
        unpin(memory, flat)


def spoilt_loss(monkeypatch, spoil):
    loss = FlowLoss.__call__

    def spoilt(self, *given, **named):
        total, plain = loss(self, *given, **named)
        return spoil(total), plain

    monkeypatch.setattr(FlowLoss, "__call__", spoilt)


def test_a_wait_in_a_step_is_noticed(monkeypatch, tmp_path, cache):
    spoilt_loss(monkeypatch, lambda total: total * (1 if total.item() else 2))
    steps, _ = measured(tmp_path, cache)
    assert [each.reads for each in steps] == [3, 3]  # of two micro-batches


def test_a_tensor_of_the_cpu_in_a_step_is_noticed(monkeypatch, tmp_path, cache):
    spoilt_loss(monkeypatch, lambda total: total + torch.zeros(1))
    with pytest.raises(RuntimeError, match="same device"):
        measured(tmp_path, cache)
