"""A base's weights are found by Diffusers' names, whatever form it has."""

import json

import pytest
import torch

from tests.fixtures.flux_files import write_folder, write_native
from tests.fixtures.native_files import make_native_flux
from trainer_core.bases.base_weights import open_base
from trainer_core.errors import BaseModelError


@pytest.fixture(scope="module")
def model():
    return make_native_flux(layers=1, single_layers=1)


@pytest.fixture(scope="module")
def state(model):
    return dict(model.state_dict())


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("base") / "flux", model)


def assert_same(base, state):
    for name, tensor in state.items():
        assert base.shape(name) == tuple(tensor.shape), name
        assert torch.equal(base.tensor(name), tensor), name


def test_every_tensor_of_a_native_file_is_found_by_diffusers_name(state, tmp_path):
    base = open_base(write_native(tmp_path / "flux.safetensors", state))
    assert (base.family.name, base.native, base.is_folder) == ("flux", True, False)
    assert_same(base, state)
    # Halves in the opposite order, and norms, have no name that could be turned round.
    other = {name for name in base.names if name not in state}
    assert len(base.names) == len(state)
    assert all("norm" in name or "adaLN" in name for name in other)
    assert "norm_out.linear" not in base.modules
    assert {"single_transformer_blocks.0.proj_mlp", "transformer_blocks.0.attn.to_k"} <= set(
        base.modules
    )


def test_an_index_that_leads_out_of_the_folder_is_refused(model, tmp_path):
    folder = write_folder(tmp_path / "flux", model)
    path = folder / "transformer" / "diffusion_pytorch_model.safetensors.index.json"
    index = json.loads(path.read_text())
    shard = next(iter(set(index["weight_map"].values())))
    (tmp_path / "outside.safetensors").write_bytes((folder / "transformer" / shard).read_bytes())
    index["weight_map"] = {
        name: "../../outside.safetensors" if file == shard else file
        for name, file in index["weight_map"].items()
    }
    path.write_text(json.dumps(index))
    with pytest.raises(BaseModelError, match=r"names of \.safetensors files beside it"):
        open_base(folder)
