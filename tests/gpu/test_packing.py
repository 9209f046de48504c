"""A base is packed on the GPU, wherever it is kept, and is what a CPU packs."""

import contextlib

import pytest
import torch
from fixtures.flux_base import make_flux_transformer
from fixtures.native_files import packed_layers

from tests.fixtures.combinations import pairwise
from tests.gpu.memory import PRETENDED, given_back
from trainer_core.config import MemorySection
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family
from trainer_core.offload.host_weights import PageableMaster, _present
from trainer_core.offload.load_base import load_base
from trainer_core.offload.machine import Machine
from trainer_core.quantization.formats import FORMATS
from trainer_core.weights.base_location import BaseLocation
from trainer_core.weights.layer_packing import _AT_ONCE

pytestmark = pytest.mark.gpu

FLUX, DEVICE = get_family("flux"), torch.device("cuda")


FITTING = [name for name, stored in FORMATS.items() if stored.fits((32, 32))]
"""Those that every layer of the small base can be kept in."""


@pytest.fixture
def location(tmp_path):
    make_flux_transformer().to(torch.bfloat16).save_pretrained(tmp_path / "transformer")
    return BaseLocation(tmp_path, tmp_path, "generate", 8, "", embedded=False)


@pytest.mark.parametrize(("name", "swapped"), pairwise(FITTING, [0, 1]))
def test_what_the_gpu_packs_is_what_a_cpu_packs(location, name, swapped, monkeypatch):
    monkeypatch.setitem(_AT_ONCE, "cuda", 1 << 12)  # several parts of a layer, as of a large one
    packed, stored = [], FORMATS[name]
    real = stored.pack
    monkeypatch.setattr(stored, "pack", lambda weight: packed.append(weight.device) or real(weight))
    holds, hold = [], PageableMaster.hold

    def recorded(self, spans):
        holds.append({each.device.type for _, each in _present(spans)})
        return hold(self, spans)

    monkeypatch.setattr(PageableMaster, "hold", recorded)
    memory = MemorySection(base_format=name, blocks_to_swap=swapped, gradient_checkpointing=True)
    with given_back(), contextlib.ExitStack() as at_end:
        kept = memory, FLUX, location, torch.bfloat16, DEVICE, Machine()
        model = load_base(*kept, at_end).transformer
        assert {device.type for device in packed} == {"cuda"}
        assert len(packed) > len(packed_layers(model)), "layers are packed in parts"
        wanted = FLUX.load_transformer(location, torch.bfloat16, "cpu", name)
        assert_same(model, wanted, ["cuda", "cpu"][: 1 + swapped])
        assert holds == [{"cpu", "cuda"}] * swapped, "copied once, as the GPU packed it"
        del model


def test_what_has_to_lie_in_a_file_is_not_packed_on_the_gpu(location):
    memory = MemorySection(
        base_format="nf4", blocks_to_swap=1, gradient_checkpointing=True, master="file"
    )
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with (
        contextlib.ExitStack() as at_end,
        pytest.raises(BaseModelError, match=r"memory\.master is file"),
    ):
        load_base(memory, FLUX, location, torch.bfloat16, DEVICE, Machine(), at_end)
    assert torch.cuda.max_memory_allocated() == before


def assert_same(found, wanted, devices):
    found, wanted = packed_layers(found), packed_layers(wanted)
    assert {layer.weight.device.type for layer in found.values()} == set(devices)
    assert found.keys() == wanted.keys()
    for path, layer in found.items():
        for key, part in layer.parts().items():
            # A GPU's division may differ in the last bit.
            other = wanted[path].parts()[key].view(torch.uint8)
            same = (part.cpu().view(torch.uint8) == other).float().mean()
            assert same == 1 if PRETENDED else same > 0.99
