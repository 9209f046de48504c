"""Weights of 8 bits are widened by a table, bit for bit as torch does it."""

import pytest
import torch

from trainer_core.tensors.rounding import EIGHT_BIT
from trainer_core.tensors.widening import widened

WIDE = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def bits(tensor):
    """Its bits; of NaN only that it is one."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.dtype.itemsize]
    return torch.where(tensor.isnan(), 1, tensor.view(integers))


@pytest.mark.parametrize("wide", WIDE)
@pytest.mark.parametrize("stored", EIGHT_BIT)
def test_all_numbers_of_8_bits_are_those_of_torch(stored, wide):
    codes = torch.arange(256, dtype=torch.uint8).repeat(3, 1).view(stored)
    for values in (codes, codes[:, 3:77], codes.T, codes[:0], codes[1:]):
        found = widened(values, wide)
        assert found.dtype == wide
        assert found.shape == values.shape
        assert torch.equal(bits(found), bits(values.to(wide)))
        assert torch.equal(found.isnan(), values.to(wide).isnan())
