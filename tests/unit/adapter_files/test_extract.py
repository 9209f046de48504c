"""An extracted adapter is the closest of its kind and size, and gives a merged one back."""

import pytest
import torch

from tests.fixtures.flux_files import FLUX, random_adapter, write_native
from tests.fixtures.native_files import make_native_flux
from tests.fixtures.textbook import relative, textbook_delta
from trainer_core.adapter_files.tools.resize_and_extract import extract_adapter, extract_layer
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.bases.base_difference import BaseDifferences
from trainer_core.bases.base_weights import open_base
from trainer_core.bases.write_merged import merge_into_base
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError, BaseModelError, NonFiniteError

ALL = FLUX.layers.presets["all_linear"]


def random_matrix(rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64)


def test_a_lora_is_the_closest_product_of_its_rank():
    matrix = random_matrix(40, 30)
    values = torch.linalg.svdvals(matrix)
    for rank in (1, 7, 30, 64):
        found = extract_layer("x", matrix, AdapterConfig(kind="lora", rank=rank))
        expected = float(values[rank:].norm() / values.norm())
        assert found.error == pytest.approx(expected, abs=1e-6)
        assert found.state.rank == min(rank, 30)
        assert relative(layer_delta("lora", found.state), matrix) == pytest.approx(
            expected, abs=1e-6
        )


@pytest.mark.parametrize("factor", [-1, 2, 4])
def test_a_lokr_is_the_closest_kronecker_product(factor):
    matrix = random_matrix(24, 16)
    config = AdapterConfig(kind="lokr", factor=factor, full_matrix=True)
    found = extract_layer("x", matrix, config)
    (a, c), (b, d) = (found.state.tensors[name].shape for name in ("lokr_w1", "lokr_w2"))
    assert (a * b, c * d) == (24, 16)
    # By definition: the blocks as rows have the product as their closest matrix of rank 1.
    blocks = matrix.reshape(a, b, c, d).permute(0, 2, 1, 3).reshape(a * c, b * d)
    values = torch.linalg.svdvals(blocks)
    assert found.error == pytest.approx(float(values[1:].norm() / values.norm()), abs=1e-6)
    other = textbook_delta("lokr", found.state.tensors, 1.0, 1)
    assert relative(other, matrix) == pytest.approx(found.error, abs=1e-6)


@pytest.fixture(scope="module")
def model():
    return make_native_flux(layers=1, single_layers=1)


@pytest.fixture(scope="module")
def native(model, tmp_path_factory):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return write_native(tmp_path_factory.mktemp("native") / "flux.safetensors", state)


KINDS = {
    "lora": ({"kind": "lora"}, {"rank": 4}),
    "lokr whole": ({"kind": "lokr", "factor": 4, "full_matrix": True}, {}),
    "lokr low": ({"kind": "lokr", "factor": 4, "rank": 2}, {}),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_merged_adapter_is_found_again(name, model, native, tmp_path):
    options, changed = KINDS[name]
    given = random_adapter(model, **options)
    merge_into_base(open_base(native), [(given, 1.0)], tmp_path / "m.safetensors")
    walk = BaseDifferences(open_base(native), open_base(tmp_path / "m.safetensors"), ALL)
    found, errors = extract_adapter(walk, AdapterConfig(**{**options, **changed}))
    assert set(found.layers) == set(given.layers)
    assert (walk.same, walk.left_out, walk.inexpressible) == ([], [], [])
    for layer, state in given.layers.items():
        delta = layer_delta(given.kind, state)
        assert relative(layer_delta(found.kind, found.layers[layer]), delta) < 1e-5, layer
        assert errors[layer] < 1e-5
        shapes = {n: t.shape for n, t in state.tensors.items()}
        assert {n: t.shape for n, t in found.layers[layer].tensors.items()} == shapes


def test_what_is_the_same_not_chosen_or_no_factors_is_named(model, native, tmp_path):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for name in (
        "transformer_blocks.0.attn.to_q.weight",
        "x_embedder.weight",
        "proj_out.bias",
        "transformer_blocks.0.attn.norm_k.weight",
        "norm_out.linear.weight",
    ):
        state[name] += torch.randn_like(state[name]) * 0.1
    tuned = open_base(write_native(tmp_path / "tuned.safetensors", state))
    walk = BaseDifferences(open_base(native), tuned, FLUX.layers.presets["attention"])
    found, _ = extract_adapter(walk, AdapterConfig(kind="lora", rank=2))
    assert set(found.layers) == {"transformer_blocks.0.attn.to_q"}
    assert "transformer_blocks.0.attn.to_k" in walk.same
    assert len(walk.same) == len(walk.modules) - 1
    assert walk.left_out == ["x_embedder"]
    assert set(walk.inexpressible) == {
        "proj_out.bias",
        "double_blocks.0.img_attn.norm.key_norm.weight",
        "final_layer.adaLN_modulation.1.weight",
    }


def test_what_cannot_be_extracted_is_refused(model, native, tmp_path):
    base = open_base(native)
    with pytest.raises(AdapterError, match="without a difference"):
        extract_adapter(BaseDifferences(base, base, ALL), AdapterConfig(kind="lora"))
    with pytest.raises(AdapterError, match="matches no layer"):
        BaseDifferences(base, base, ["nothing"])
    with pytest.raises(AdapterError, match="regular expression"):
        BaseDifferences(base, base, ["("])
    with pytest.raises(BaseModelError, match="family qwen_image"):
        BaseDifferences(base, open_base("embedded"), ALL)
    with pytest.raises(AdapterError, match="closest loha"):
        extract_layer("x", torch.ones(3, 3), AdapterConfig(kind="loha"))
    other = make_native_flux(layers=1, single_layers=1, joint=32)
    wider = open_base(write_native(tmp_path / "wide.safetensors", other.state_dict()))
    with pytest.raises(BaseModelError, match=r"context_embedder.*48.*32"):
        list(BaseDifferences(base, wider, ALL))
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state["proj_out.weight"][0, 0] = torch.nan
    broken = open_base(write_native(tmp_path / "nan.safetensors", state))
    with pytest.raises(NonFiniteError, match="proj_out"):
        extract_adapter(BaseDifferences(base, broken, ALL), AdapterConfig(kind="lora"))
