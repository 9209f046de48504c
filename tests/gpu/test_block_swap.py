"""Swapped blocks on CUDA: copies on a side stream, from pinned memory that is given back."""

import pytest
import torch
from runs import run_config
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.fixtures.machines import CountingMachine
from tests.gpu.memory import PRETENDED, given_back
from trainer_core.errors import RunError
from trainer_core.inference.pipeline import sample_prompts
from trainer_core.offload.host_weights import MappedMaster, PageableMaster, PinnedMaster
from trainer_core.offload.machine import Machine
from trainer_core.offload.streamed_blocks import StreamedBlocks
from trainer_core.offload.transfer import CudaTransfer
from trainer_core.training import train

pytestmark = pytest.mark.gpu
CUDA = torch.device("cuda", 0)
WIDTH, BLOCKS, ROWS = (256, 8, 64) if PRETENDED else (2048, 8, 4096)


MASTERS = {
    "pinned": lambda: PinnedMaster(True, Machine()),
    "half pinned": lambda: PinnedMaster(False, CountingMachine(BLOCKS // 2 * WIDTH**2 * 4 + 99)),
    "pageable": PageableMaster,
    "as they lie": lambda: MappedMaster(required=False),
}


def make_blocks(device):
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(BLOCKS)]
    return [block.requires_grad_(False).to(device) for block in blocks]


def passes(blocks):
    """Outputs and input gradients of some passes, told to the device without a wait between."""
    found = []
    for seed in range(4):
        generator = torch.Generator(CUDA).manual_seed(seed)
        x = start = torch.randn(ROWS, WIDTH, device=CUDA, generator=generator).requires_grad_()
        for block in blocks:
            x = checkpoint(block, x, use_reentrant=False)
        found += [x.detach(), torch.autograd.grad(x.sum(), start)[0]]
    return found


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("master", MASTERS)
def test_bits_are_those_of_resident_blocks(master, slots):
    wanted = passes(make_blocks(CUDA))
    blocks = make_blocks("cpu")
    held = MASTERS[master]()
    streamed = StreamedBlocks(blocks, CUDA, slots, held, CudaTransfer(CUDA))
    try:
        assert all(map(torch.equal, passes(blocks), wanted))
    finally:
        streamed.close()
    assert not any(block[0].weight.is_cuda or block[0].weight.is_pinned() for block in blocks)


def test_pinned_memory_is_counted_and_given_back():
    blocks, held = make_blocks("cpu"), PinnedMaster(True, Machine())
    streamed = StreamedBlocks(blocks, CUDA, 2, held, CudaTransfer(CUDA))
    assert held.pinned_bytes >= BLOCKS * WIDTH * WIDTH * 4
    assert all(block[0].weight.is_pinned() for block in blocks)
    streamed.close()
    assert held.pinned_bytes == 0
    assert not any(block[0].weight.is_pinned() for block in blocks)


def test_what_is_not_pinned_is_refused_or_left_pageable():
    blocks = make_blocks("cpu")
    with pytest.raises(RunError, match="cannot be pinned"):
        StreamedBlocks(blocks, CUDA, 2, PinnedMaster(True, CountingMachine(0)), CudaTransfer(CUDA))
    assert not any(block._forward_pre_hooks for block in blocks)


@pytest.mark.parametrize("master", ["auto", "pinned", "pageable", "file"])
def test_a_run_learns_as_a_resident_one_and_gives_all_memory_back(tmp_path, cache, master):
    def run(name, **memory):
        memory = {"device": "cuda", "gradient_checkpointing": True, **memory}
        training = {"steps": 6, "precision": "bf16"}
        return train(run_config(tmp_path / name, cache, memory=memory, training=training)).losses

    resident = run("resident")
    with given_back():
        swapped = run("swapped", blocks_to_swap=5, master=master)
    assert swapped == pytest.approx(resident, rel=2e-2)


def test_swapped_sampling_gives_the_images_of_a_resident_base(tmp_path, cache):
    """With encoders that are streamed too, and a VAE that leaves after each image."""

    class Short(Machine):
        """Has nothing free: all that can be swapped is."""

        def free_memory(self, device):
            return 0

    def images(name, machine=None):
        config = run_config(
            tmp_path,
            tmp_path / name,
            memory={"device": "cuda"},
            training={"precision": "bf16"},
            preview={"prompts": ["a red star on blue"], "width": 64, "height": 64, "steps": 4},
        )
        return list(sample_prompts(config, None, machine=machine))

    images("resident")
    with given_back():
        resident = images("resident")
        swapped = images("swapped", Short())
        assert all(map(torch.equal, swapped, resident))
        del resident, swapped
