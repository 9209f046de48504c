"""Which blocks are swapped, and how much that takes off the device."""

from itertools import pairwise

import torch
from torch import nn

from trainer_core.config import MemorySection
from trainer_core.offload.swapped import bytes_away, evenly_spread, swapped_blocks


def test_blocks_are_spread_evenly():
    assert evenly_spread(0, 5) == []
    assert evenly_spread(1, 5) == [2]
    assert evenly_spread(2, 8) == [2, 6]
    for blocks in range(1, 61):
        for count in range(1, blocks + 1):
            chosen = evenly_spread(count, blocks)
            gaps = {b - a for a, b in pairwise(chosen)}
            assert len(chosen) == count
            assert 0 <= min(chosen) <= max(chosen) < blocks
            assert gaps <= {blocks // count, -(-blocks // count)}
            assert all(gaps)


def denoiser(device="cpu"):
    with torch.device(device):
        model = nn.Module()
        model.doubles = nn.ModuleList(nn.Linear(4, 8) for _ in range(3))
        model.singles = nn.ModuleList(nn.Linear(4, 2) for _ in range(5))
    return model.requires_grad_(False)


def test_what_is_away_is_all_but_the_slots_of_each_size():
    model = denoiser("meta")
    blocks = swapped_blocks(model, ("doubles", "singles"), MemorySection(blocks_to_swap=8))

    def away(blocks, slots):
        return bytes_away(blocks, slots, lambda weight: 2 * weight.numel())

    assert away(blocks, 2) == 2 * (1 * 40 + 3 * 10)
    assert away(blocks, 4) == 2 * 1 * 10
    assert away(blocks, 9) == away([], 2) == 0
    blocks[0].weight.requires_grad_()  # an adapter's factor stays
    assert away(blocks[:1], 0) == 2 * 8
