"""Layers in another form: as the difference that they make, or approximated on request."""

import pytest
import torch
from safetensors.torch import load_file

from tests.fixtures.family_states import family_state, given_file, key_map, random_weights
from tests.fixtures.textbook import relative, textbook_delta
from trainer_core.adapter_files.convert.approximate import as_low_rank
from trainer_core.adapter_files.convert.convert import convert
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapters.dora_magnitude import DORA_SCALE
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.errors import AdapterError

FLUX = key_map("flux")
Q, K, V = (f"transformer_blocks.0.attn.to_{each}" for each in "qkv")
QKV = "double_blocks.0.img_attn.qkv"


def delta(kind, layer):
    factors = {n: t.double() for n, t in layer.tensors.items() if n != DORA_SCALE}
    return textbook_delta(kind, factors, layer.alpha, layer.rank)


def trained_weight(kind, layer, weight):
    """The weight with DoRA, by the paper's formula."""
    total, lengths = weight.double() + delta(kind, layer), layer.tensors[DORA_SCALE].double()
    axis = 0 if lengths.shape[0] == 1 else 1
    return lengths * total / total.norm(dim=axis, keepdim=True)


@pytest.mark.parametrize("layout", ["comfyui", "kohya"])
@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_lengths_of_rows_become_differences(kind, layout, tmp_path):
    source, state = given_file(tmp_path, "flux", f"{kind} output")
    target = tmp_path / "there.safetensors"
    with pytest.raises(AdapterError, match="--base"):
        convert(source, target, layout, FLUX)
    weights = random_weights("flux")
    report = convert(source, target, layout, FLUX, weight_of=weights.__getitem__)
    assert report.exact
    assert set(report.merged) == set(state.layers)
    changes = {
        name: trained_weight(kind, layer, weights[name]) - weights[name].double()
        for name, layer in state.layers.items()
    }
    wanted = {
        QKV: torch.cat([changes[name] for name in (Q, K, V)]),
        "single_blocks.3.linear2": changes["single_transformer_blocks.3.proj_out"],
        "final_layer.adaLN_modulation.1": changes["norm_out.linear"].roll(12, 0),
    }
    extras = read_adapter(target, FLUX).extras
    assert len(extras) == 6
    for native, change in wanted.items():
        assert set(extras[native]) == {"diff"}
        assert relative(extras[native]["diff"], change) < 1e-6
    prefix = "diffusion_model." if layout == "comfyui" else "lora_unet_"
    assert all(key.startswith(prefix) and key.endswith(".diff") for key in load_file(target))


@pytest.mark.parametrize("layout", ["comfyui", "kohya", "diffusers", "peft"])
@pytest.mark.parametrize("case", ["lora output", "loha input", "lokr output"])
def test_lengths_become_a_lora_on_request(case, layout, tmp_path):
    source, state = given_file(tmp_path, "flux", case)
    target, weights = tmp_path / "there", random_weights("flux")
    target = target if layout == "peft" else target.with_suffix(".safetensors")
    asked = {"approximate": "lora", "rank": 3}
    report = convert(source, target, layout, FLUX, weight_of=weights.__getitem__, **asked)
    read = read_adapter(target, FLUX)
    for name, layer in read.layers.items():
        kept = layer.tensors.get(DORA_SCALE)
        if kept is not None:
            assert torch.equal(kept, state.layers[name].tensors[DORA_SCALE])
            assert relative(delta("lora", layer), delta(state.kind, state.layers[name])) < 1
            continue
        change = trained_weight(state.kind, state.layers[name], weights[name])
        change -= weights[name].double()
        error = relative(layer_delta("lora", layer), change)
        values = torch.linalg.svdvals(change)
        assert error == pytest.approx(float(values[3:].norm() / values.norm()), abs=2e-6)
        assert report.errors.get(name, 0.0) == pytest.approx(error, abs=2e-6)


@pytest.mark.parametrize("rank", [1, 3, 8, 99])
@pytest.mark.parametrize("case", ["loha", "lokr", "lokr full", "lokr both"])
def test_the_nearest_lora_is_that_of_the_singular_values(case, rank):
    state = family_state("qwen_image", case)
    for name, layer in state.layers.items():
        wanted = delta(state.kind, layer)
        values = torch.linalg.svdvals(wanted)
        found = as_low_rank(name, state.kind, layer, rank)
        error = relative(delta("lora", found.layer), wanted)
        assert error == pytest.approx(float(values[rank:].norm() / values.norm()), abs=1e-6)
        assert found.error == pytest.approx(error, abs=1e-6)
        assert found.layer.rank <= rank


def test_parts_of_a_lokr_become_the_nearest_kronecker_product_on_request(tmp_path):
    source, state = given_file(tmp_path, "flux", "lokr full")
    target = tmp_path / "b.safetensors"
    with pytest.raises(AdapterError, match="approximate lokr"):
        convert(source, target, "kohya", FLUX)
    report = convert(source, target, "kohya", FLUX, approximate="lokr")
    assert set(report.errors) == {QKV, "single_blocks.3.linear1"}
    assert not report.exact
    tensors = load_file(target)
    name = "lora_unet_double_blocks_0_img_attn_qkv"
    found = torch.kron(tensors[f"{name}.lokr_w1"], tensors[f"{name}.lokr_w2"])
    wanted = torch.cat([delta("lokr", state.layers[n]) for n in (Q, K, V)])
    assert relative(found, wanted) == pytest.approx(report.errors[QKV], rel=1e-5)
    # Nearer than what any one part's factors say, and than nothing.
    assert report.errors[QKV] < 1
    for name in ("proj_out", "norm_out.linear"):
        assert name not in report.errors
