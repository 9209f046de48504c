"""What lies on the host: every number format, byte for byte."""

import pytest
import torch
from torch import nn

from trainer_core.offload.host_weights import MappedMaster, PageableMaster, block_spans

DTYPES = (
    torch.float8_e4m3fn,
    torch.bfloat16,
    torch.uint8,
    torch.float64,
    torch.int8,
    torch.float32,
    torch.float16,
)


class Mixed(nn.Module):
    """Tensors of all formats, odd sizes, none, one that lies in two places."""

    def __init__(self):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for number, dtype in enumerate(DTYPES):
            count = (3 + number) * dtype.itemsize
            raw = torch.randint(0, 256, (5, count), generator=generator, dtype=torch.uint8)
            self.register_parameter(f"p{number}", nn.Parameter(raw.view(dtype), False))
        self.register_buffer("scalar", torch.tensor(3.25))
        self.register_buffer("empty", torch.empty(0, 4))
        self.register_buffer("turned", torch.arange(12.0).view(3, 4).t())
        self.register_parameter("bias", None)
        self.inner = nn.Linear(2, 2).requires_grad_(False)
        self.inner.also = self.p3


def raw(tensor):
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


@pytest.mark.parametrize("master", [PageableMaster(), MappedMaster(False)])
def test_every_byte_of_every_format_arrives(master):
    block = Mixed()
    before = {name: raw(each).clone() for name, each in block.state_dict().items()}
    held = master.hold(block_spans(block))
    slot = torch.full((held.size + 7,), 255, dtype=torch.uint8)
    for target, source in held.copies(slot):
        target.copy_(source)
    for span in held.spans:
        span.bind(span.bindable(span.view(slot), marked=True))
    after = block.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(raw(after[name]), before[name]) for name in before)
    assert block.inner.also is block.p3
    assert isinstance(block.p0, nn.Parameter)
    assert not isinstance(block.scalar, nn.Parameter)
    assert block.turned.shape == (4, 3)
    filled = [each for each in after.values() if each.numel()]
    assert {each.untyped_storage().data_ptr() for each in filled} == {slot.data_ptr()}
