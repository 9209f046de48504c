"""A base is packed on the GPU, wherever it is kept, and is what a CPU packs."""

import pytest
import torch
from fixtures.flux_base import make_flux_transformer
from fixtures.native_files import packed_layers

from tests.fixtures.combinations import pairwise
from tests.gpu.memory import PRETENDED, given_back
from trainer_core.families.registry import get_family
from trainer_core.quantization.registry import FORMATS
from trainer_core.weights.base_format import _AT_ONCE
from trainer_core.weights.base_location import BaseLocation

pytestmark = pytest.mark.gpu

FLUX, DEVICE = get_family("flux"), torch.device("cuda")


@pytest.fixture
def location(tmp_path):
    make_flux_transformer().to(torch.bfloat16).save_pretrained(tmp_path / "transformer")
    return BaseLocation(tmp_path, tmp_path, "generate", 8, "", embedded=False)


@pytest.mark.parametrize(("name", "kept"), pairwise(FORMATS, ["cpu", "cuda"]))
def test_what_the_gpu_packs_is_what_a_cpu_packs(location, name, kept, monkeypatch):
    monkeypatch.setitem(_AT_ONCE, "cuda", 1 << 12)  # several parts of a layer, as of a large one
    packed, stored = [], FORMATS[name]
    real = stored.pack
    monkeypatch.setattr(stored, "pack", lambda weight: packed.append(weight) or real(weight))
    with given_back():
        model = FLUX.load_transformer(location, torch.bfloat16, kept, name, False, DEVICE)
        assert {weight.device.type for weight in packed} == {"cuda"}
        assert len(packed) > len(packed_layers(model)), "layers are packed in parts"
        assert_same(model, FLUX.load_transformer(location, torch.bfloat16, "cpu", name), kept)
        packed.clear()
        del model


def assert_same(found, wanted, device):
    found, wanted = packed_layers(found), packed_layers(wanted)
    assert found.keys() == wanted.keys()
    for path, layer in found.items():
        for key, part in layer.parts().items():
            assert part.device.type == device
            # A GPU's division may differ in the last bit.
            other = wanted[path].parts()[key].view(torch.uint8)
            same = (part.cpu().view(torch.uint8) == other).float().mean()
            assert same == 1 if PRETENDED else same > 0.99
