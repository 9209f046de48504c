"""Infinity and NaN are found wherever they stand, in every number format, without a copy."""

import itertools

import pytest
import torch

from trainer_core.tensors.rounding import all_finite

FORMATS = (
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
    torch.float8_e5m2,
    torch.float8_e4m3fn,
)
INFINITY, NAN = float("inf"), float("nan")


@pytest.mark.parametrize("dtype", FORMATS)
def test_one_value_anywhere_is_found(dtype):
    cases = [[NAN], [INFINITY], [-INFINITY], [INFINITY, -INFINITY]]
    if dtype == torch.float8_e4m3fn:
        cases = [[NAN], [NAN, NAN]]  # it has no infinity
    for values, place in itertools.product(cases, (0, 1, 511, 998)):
        tensor = torch.randn(1000)
        tensor[place : place + len(values)] = torch.tensor(values)
        tensor = tensor.to(dtype)
        assert not all_finite(tensor)
        assert not all_finite(tensor.view(40, 25).t())
