"""Gradients of attention do not depend on what another layer's gradients looked like."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from tests.gpu.memory import relative
from trainer_core.device import borrowed_attention

pytestmark = pytest.mark.gpu

HEADS, SIZE = 8, 64
WIDTH = HEADS * SIZE


def gradients(inputs, part, dtype, device):
    """Of queries, keys and values; the output's gradient is a part of wider rows."""
    query, key, value = (
        each.to(device, dtype).unflatten(2, (HEADS, SIZE)).transpose(1, 2).requires_grad_(True)
        for each in inputs
    )
    output = scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
    rows = query.shape[2]
    wide = torch.randn(1, rows, part * WIDTH, generator=torch.Generator().manual_seed(part))
    output.backward(wide.to(device, dtype)[..., :WIDTH])
    return [each.grad for each in (query, key, value)]


@pytest.mark.parametrize("order", [(5, 1), (1, 5)], ids=["wide rows first", "narrow rows first"])
def test_a_layer_with_other_gradients_changes_nothing(order):
    """As the single blocks of FLUX do, whose attention is one part of what a layer reads."""
    rows = 320 + 64 * order[0]  # no plan of another case fits
    inputs = torch.randn(3, 1, rows, WIDTH, generator=torch.Generator().manual_seed(0))
    with borrowed_attention():
        for part in order:
            found = gradients(inputs, part, torch.bfloat16, "cuda")
            wanted = gradients(inputs.bfloat16(), part, torch.float64, "cpu")
            for one, other in zip(found, wanted, strict=True):
                assert relative(one, other) < 2e-2
