"""A CONDITIONING is taken apart and put together again."""

import pytest
import torch

from tests.unit.nodes.conftest import pack_module


@pytest.mark.parametrize("shape", [(1, 7, 16), (1, 2, 7, 16), (1, 16), (2, 3, 4), (7,)])
def test_a_tensor_comes_back_with_its_axes(shape):
    conditioning = pack_module("host.conditioning")
    tensor = torch.randn(shape)
    more = {"pooled_output": torch.randn(1, 8), "guidance": 3.5, "reference_latents": [tensor]}
    stored = conditioning.stored_conditioning([[tensor, more]], "a caption")
    found = conditioning.restored_conditioning(stored, torch.device("cpu"))
    assert found.keys() == {"cross_attn", *more}
    assert torch.equal(found["cross_attn"], tensor)
    assert torch.equal(found["reference_latents"][0], tensor)
    assert torch.equal(found["pooled_output"], more["pooled_output"])
    assert found["guidance"] == 3.5
