"""Which blocks are swapped, and how much that takes off the device."""

from itertools import pairwise

from trainer_core.offload.block_selection import evenly_spread


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
