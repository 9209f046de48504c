"""Inputs of checkpointed blocks that wait in RAM, on CUDA: pinned, on a side stream, given back."""

import gc

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.fixtures.machines import CountingMachine
from tests.gpu.memory import PRETENDED
from trainer_core.offload.host_inputs import HostArena, HostInputs
from trainer_core.offload.pinned_memory import PinnedMemory
from trainer_core.offload.transfer import CudaTransfer

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
WIDTH, BLOCKS, ROWS = (128, 12, 2048) if PRETENDED else (2048, 12, 4096)
INPUT = ROWS * WIDTH * 4


def make_blocks():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.1)) for _ in range(12)]
    return [layer.requires_grad_(False).to(CUDA) for layer in layers]


def passes(blocks, call):
    """Outputs and input gradients of some passes, told to the device without a wait between."""
    found = []
    for seed in range(4):
        torch.manual_seed(seed)
        start = torch.randn(ROWS, WIDTH, device=CUDA).requires_grad_()
        x = start + 0
        for number, block in enumerate(blocks):
            x = call(block, number, (x,))
        found.append(torch.autograd.grad(x.sum(), start)[0])
    return found


def plain(block, number, args):
    return checkpoint(block, *args, use_reentrant=False)


@pytest.mark.parametrize("limit", [1 << 40, BLOCKS // 2 * INPUT, 0])
def test_bits_are_those_of_inputs_on_the_device(limit):
    blocks, machine = make_blocks(), CountingMachine(limit)
    wanted = passes(blocks, plain)
    inputs = HostInputs(HostArena(PinnedMemory(machine)), CudaTransfer(CUDA))
    try:
        assert all(map(torch.equal, passes(blocks, inputs.call), wanted))
        assert inputs.arena.size == BLOCKS * INPUT
        assert machine.pinned == min(limit, BLOCKS * INPUT) // INPUT * INPUT
    finally:
        inputs.close()
    assert machine.pinned == 0


def test_the_device_has_the_inputs_of_few_blocks_at_a_time():
    blocks, peaks = make_blocks(), []
    inputs = HostInputs(HostArena(PinnedMemory(CountingMachine(1 << 40))), CudaTransfer(CUDA))
    for call in (plain, inputs.call):
        passes(blocks, call)
        gc.collect()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        passes(blocks, call)
        peaks.append(torch.cuda.max_memory_allocated() - before)
    inputs.close()
    # All but those of the block that is computed again, and of the next one; torch rounds sizes.
    assert peaks[0] - peaks[1] > (BLOCKS - 4) * INPUT
