"""The estimate of a run's memory: its parts, and what is said of it."""

from __future__ import annotations

import pytest
import torch

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection, MemorySection
from trainer_core.errors import ConfigError, RunError
from trainer_core.families.registry import get_family
from trainer_core.offload.empty_base import bytes_on_device, empty_base
from trainer_core.training.memory_estimate import check_memory


def test_what_cannot_fit_is_refused_and_what_may_not_fit_is_warned_of():
    gib = 1 << 30
    estimate = {"base": 20 * gib, "adapter": 5 * gib, "activations": 10 * gib, "total": 35 * gib}
    device = torch.device("cpu")
    assert check_memory(estimate, 35 * gib, device) is None
    assert "gradient checkpointing" in check_memory(estimate, 34 * gib, device)
    assert check_memory(estimate, 25 * gib, device) is not None
    with pytest.raises(RunError) as error:
        check_memory(estimate, 24 * gib, device)
    assert "35.00 GiB on cpu" in error.value.found
    assert "base 20.00 GiB, adapter 5.00 GiB, activations 10.00 GiB" in error.value.found
    assert "24.00 GiB are free" in error.value.found
    assert "smaller base" in error.value.remedy


def test_swapped_blocks_take_no_more_than_their_slots():
    family = get_family("qwen_image")
    location = locate_base(BaseSection(), family, has_controls=False)
    base = empty_base(location, family)
    block = sum(each.numel() for each in base.transformer.transformer_blocks[0].parameters())

    def size(**memory):
        return bytes_on_device(MemorySection(**memory), base, torch.float32)

    assert base.blocks == 5
    assert size() == size(blocks_to_swap=2) == 4 * base.parameters
    assert size(blocks_to_swap=4) == 4 * (base.parameters - 2 * block)
    assert size(blocks_to_swap=5, swap_slots=1) == 4 * (base.parameters - 4 * block)
    # What is kept in fewer bits leaves fewer, and so does the rest of it that is swapped.
    packed = size(base_format="int8")
    assert packed < 2 * base.parameters
    assert (packed - size(base_format="int8", blocks_to_swap=4)) % 2 == 0
    assert 0 < packed - size(base_format="int8", blocks_to_swap=4) < 4 * block
    with pytest.raises(ConfigError, match="the base has 5 blocks"):
        size(blocks_to_swap=6)
