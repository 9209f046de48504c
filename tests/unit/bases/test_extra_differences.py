"""Differences in ComfyUI's names reach the right rows of a base in either naming."""

import pytest
import torch

from tests.fixtures.flux_files import write_folder, write_native
from tests.fixtures.native_files import flux_to_native, make_native_flux
from trainer_core.bases.base_weights import open_base
from trainer_core.bases.write_merged import merge_into_base
from trainer_core.errors import AdapterError
from trainer_core.types import AdapterState, LayerState

ENDINGS = {
    "double_blocks.0.img_attn.qkv": ("diff", "diff_b"),
    "single_blocks.0.linear1": ("set_weight",),
    "double_blocks.0.img_attn.norm.query_norm": ("w_norm",),
    "final_layer.adaLN_modulation.1": ("diff", "diff_b"),
    "img_in": ("diff_b",),
}


@pytest.fixture(scope="module")
def model():
    return make_native_flux(layers=1, single_layers=1)


@pytest.fixture(scope="module")
def native_state(model):
    state = flux_to_native({name: t.clone() for name, t in model.state_dict().items()})
    return {name.replace("_norm.scale", "_norm.weight"): t for name, t in state.items()}


@pytest.fixture(scope="module")
def bases(model, tmp_path_factory):
    place = tmp_path_factory.mktemp("bases")
    write_native(place / "flux.safetensors", dict(model.state_dict()))
    return [open_base(place / "flux.safetensors"), open_base(write_folder(place / "flux", model))]


@pytest.fixture(scope="module")
def extras(native_state):
    generator = torch.Generator().manual_seed(0)
    return {
        layer: {
            ending: torch.randn(
                native_state[f"{layer}.{'bias' if ending == 'diff_b' else 'weight'}"].shape,
                generator=generator,
            )
            for ending in endings
        }
        for layer, endings in ENDINGS.items()
    }


def target_of(base, folder):
    return folder / ("merged" if base.is_folder else "merged.safetensors")


def test_both_forms_of_base_get_the_same(bases, extras, native_state, tmp_path):
    merged = []
    for base in bases:
        target = target_of(base, tmp_path)
        report = merge_into_base(base, [(AdapterState("lora", {}, {}, extras), 0.5)], target)
        assert max(loss.error for loss in report.losses.values()) < 1e-6
        merged.append(open_base(target))
    single, folder = merged
    assert all(torch.equal(single.tensor(n), folder.tensor(n)) for n in folder.names)
    for layer, tensors in extras.items():
        for ending, value in tensors.items():
            name = f"{layer}.{'bias' if ending == 'diff_b' else 'weight'}"
            expected = value if ending == "set_weight" else native_state[name] + 0.5 * value
            assert torch.allclose(single.tensor(name), expected, atol=1e-6), name
    changed = {n for n, t in native_state.items() if not torch.equal(single.tensor(n), t)}
    assert len(changed) == sum(len(endings) for endings in ENDINGS.values())


def test_of_several_for_one_tensor_comfyuis_choice_is_taken(bases, native_state, tmp_path):
    shape = native_state["img_in.weight"].shape
    both = {"img_in": {"diff": torch.ones(shape), "set_weight": torch.zeros(shape)}}
    state = AdapterState("lora", {}, {}, both)
    merge_into_base(bases[0], [(state, 1.0)], tmp_path / "m.safetensors")
    assert not open_base(tmp_path / "m.safetensors").tensor("img_in.weight").any()


def test_what_is_not_in_the_base_is_refused(bases, tmp_path):
    for base in bases:
        for wrong, words in (
            ({"img_in": {"diff": torch.ones(2, 2)}}, r"img_in\.diff is \(2, 2\)"),
            ({"double_blocks.9.img_mod.lin": {"diff_b": torch.ones(3)}}, "is not in"),
        ):
            with pytest.raises(AdapterError, match=words):
                merge_into_base(
                    base, [(AdapterState("lora", {}, {}, wrong), 1.0)], target_of(base, tmp_path)
                )
    assert not list(tmp_path.iterdir())


def test_factors_and_a_difference_of_one_weight_are_refused(bases, native_state, tmp_path):
    width = native_state["img_in.weight"].shape[1]
    factors = {"lora_down": torch.ones(1, 128), "lora_up": torch.ones(128, 1)}
    qkv = torch.ones(native_state["double_blocks.0.img_attn.qkv.weight"].shape)
    state = AdapterState(
        "lora",
        {"transformer_blocks.0.attn.to_k": LayerState(factors, 1.0, 1)},
        {},
        {"double_blocks.0.img_attn.qkv": {"diff": qkv}, "img_in": {"diff": torch.ones(128, width)}},
    )
    for base in bases:
        with pytest.raises(AdapterError, match=r"to_k and the difference double_blocks"):
            merge_into_base(base, [(state, 1.0)], target_of(base, tmp_path))
