"""A file that ComfyUI has packed is read here bit for bit as ComfyUI reads it."""

import json

import pytest
import torch
from fixtures.native_files import flux_to_native, make_native_flux
from safetensors.torch import load_file, save_file

from trainer_core.bases.base_weights import open_base
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family
from trainer_core.weights.tensor_reader import TensorReader

pytestmark = [pytest.mark.comfy, pytest.mark.slow]


@pytest.fixture(scope="module")
def folder(comfy_host, tmp_path_factory):
    """What ComfyUI made of a small FLUX."""
    folder = tmp_path_factory.mktemp("quantized")
    native = flux_to_native(make_native_flux().state_dict())
    save_file({k: v.contiguous() for k, v in native.items()}, folder / "plain.safetensors")
    comfy_host.run("quantized_process.py", folder / "plain.safetensors", folder / "own")
    return folder / "own"


def load(path, dtype):
    section, family = BaseSection(path=str(path)), get_family("flux")
    location = locate_base(section, family, has_controls=False, needs_encoders=False)
    return family.load_transformer(location, dtype, "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_weight_is_comfyuis(dtype, folder):
    expected = load_file(folder / f"{str(dtype).split('.')[1]}.safetensors")
    expected = {k.replace("_norm.weight", "_norm.scale"): v for k, v in expected.items()}
    loaded = load(folder / "packed.safetensors", dtype)
    found = flux_to_native(loaded.state_dict())
    assert found.keys() == expected.keys()
    kinds = json.loads((folder / "kinds.json").read_text())
    assert len(set(kinds.values())) == 9
    assert [
        (name, kinds.get(name.removesuffix(".weight")))
        for name, value in expected.items()
        if not torch.equal(found[name], value)
    ] == []


def test_packed_rows_are_the_rows_of_the_dense_weight(folder):
    base = open_base(folder / "packed.safetensors")
    (file,) = base.files
    reader = TensorReader(file.weights, file.formats, torch.device("cpu"))
    seen = set()
    for module in base.modules:
        place = base.place(f"{module}.weight")
        if place.name not in file.weights.packed:
            continue
        stored, parts = reader.packed(place.name, place.rows)
        assert torch.equal(stored.dense(parts, place.shape, torch.float32), base.weight(module))
        seen.add(stored.name)
    assert seen == {"nvfp4", "mxfp8", "int8_tensorwise", "convrot_w4a4", "asym_w4a8_int8"}
