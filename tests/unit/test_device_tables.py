"""What is read at every call of a layer is sent to a device once."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from trainer_core.quantization.formats import FORMATS
from trainer_core.quantization.rotated_integers import ConvRotW4A4
from trainer_core.quantization.rotation import rotate
from trainer_core.tensors.device_tables import forget_tables

SHAPE = (64, 256)
META = torch.device("meta")


class Tables(TorchFunctionMode):
    """Counts the tables that are made, and the tensors that are sent to another device."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        made = func in (torch.tensor, torch.as_tensor, torch.arange, torch.eye)
        self.count += made or (func is torch.Tensor.to and args[0].device != result.device)
        return result


def pack(name):
    return FORMATS[name].pack(torch.empty(SHAPE, device=META))


def read(name):
    parts = pack(name)
    return lambda: FORMATS[name].dense(parts, SHAPE, torch.bfloat16)


def read_rotated_file():
    parts = {"weight": torch.zeros(64, 128, dtype=torch.int8), "weight_scale": torch.ones(64, 1)}
    return ConvRotW4A4().dense(parts, SHAPE, torch.bfloat16)


WORK = {f"read {name}": read(name) for name in FORMATS}
WORK |= {f"pack {name}": lambda name=name: pack(name) for name in ("nf4", "int8_rotated")}
WORK |= {
    "read a file": read_rotated_file,
    "rotate": lambda: rotate(torch.empty(SHAPE, device=META)),
}

WITHOUT = {"read int8", "read fp8"}


@pytest.mark.parametrize("name", WORK)
def test_a_second_call_sends_nothing_to_the_device(name):
    WORK[name]()
    with Tables() as second:
        WORK[name]()
    forget_tables()
    with Tables() as anew:
        WORK[name]()
    assert second.count == 0
    assert (anew.count > 0) == (name not in WITHOUT)
