"""Merging holds a few tensors at a time, however large the base is."""

import contextlib
import gc

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.flux_files import FLUX, random_adapter, write_native
from tests.fixtures.native_files import flux_to_native, make_native_flux, to_scaled
from trainer_core.adapter_files.read.read_adapter import open_adapter
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.bases.base_weights import open_base
from trainer_core.bases.write_merged import merge_into_base


def living_bytes():
    """Memory of all tensors that somebody holds; what shares memory counts once."""
    sizes = {}
    for each in gc.get_objects():
        if issubclass(type(each), torch.Tensor) and not each.is_meta:  # not what a proxy stands for
            storage = each.untyped_storage()
            # What earlier tests compiled leaves tensors in this process that have no memory.
            with contextlib.suppress(RuntimeError):
                sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    model = make_native_flux(layers=6, single_layers=6)
    write_native(folder / "fp32.safetensors", dict(model.state_dict()))
    tensors, metadata = to_scaled(flux_to_native(model.state_dict()), "new")
    save_file(tensors, folder / "fp8.safetensors", metadata)
    state = random_adapter(model, kind="lora")
    write_adapter(folder / "lora.safetensors", state, "comfyui", FLUX.layers.key_map, {})
    return folder


def peak(files, name, dtype, target):
    """Most bytes that were held while merging, over those of the base in float32."""
    before, most, calls = living_bytes(), 0, 0

    def watch(done, total, layer):
        nonlocal most, calls
        calls += 1
        if calls in (40, 80):  # to walk over all objects takes a while
            most = max(most, living_bytes() - before)

    base = open_base(files / f"{name}.safetensors")
    with open_adapter(files / "lora.safetensors", FLUX.layers.key_map) as adapter:
        merge_into_base(base, [(adapter.state, 1.0)], target, dtype, progress=watch)
    assert calls > 80
    return most / sum(each.numel() * 4 for each in load_file(files / "fp32.safetensors").values())


@pytest.mark.parametrize(("name", "dtype"), [("fp8", "keep"), ("fp32", "bf16")])
def test_a_few_tensors_are_held(name, dtype, files, tmp_path):
    assert 0 < peak(files, name, dtype, tmp_path / "m.safetensors") < 0.25
