"""The proof compares in float32 first, and is as sharp as float64 all the same."""

from dataclasses import replace

import pytest

from tests.fixtures.family_states import family_state
from trainer_core.adapter_files.verify.proof import prove, require_loadable
from trainer_core.adapter_files.write.adapter_file import write_adapter
from trainer_core.errors import RunError
from trainer_core.families.registry import get_family

FLUX = get_family("flux").key_map
LAYER = "transformer_blocks.0.attn.to_out.0"
UP = {"lora": "lora_up", "loha": "hada_w1_a", "lokr": "lokr_w1"}


def changed(state, change):
    layer = state.layers[LAYER]
    name = UP[state.kind]
    tensors = {**layer.tensors, name: change(layer.tensors[name])}
    return replace(state, layers={**state.layers, LAYER: replace(layer, tensors=tensors)})


@pytest.mark.parametrize("size", [1.0, 1e-12, 1e-15, 1e15])
@pytest.mark.parametrize("kind", UP)
def test_a_difference_just_above_rounding_is_refused_at_every_size(kind, size, tmp_path):
    state = changed(family_state("flux", kind), lambda up: up * size)
    path = tmp_path / "a.safetensors"
    write_adapter(path, state, "comfyui", FLUX, {}, proof=False)
    require_loadable(path, state, FLUX)
    require_loadable(path, changed(state, lambda up: up * (1 + 5e-6)), FLUX)
    with pytest.raises(RunError, match=LAYER):
        require_loadable(path, changed(state, lambda up: up * (1 + 1.5e-5)), FLUX)


def test_what_vanishes_in_float32_is_compared_in_float64(tmp_path):
    """Products of 1e-50, of which float32 would see nothing on either side."""
    state = family_state("flux", "lora")
    small = {
        name: replace(layer, tensors={n: each * 1e-25 for n, each in layer.tensors.items()})
        for name, layer in state.layers.items()
    }
    state = replace(state, layers=small)
    path = tmp_path / "a.safetensors"
    write_adapter(path, state, "comfyui", FLUX, {}, proof=False)
    proof = prove(path, FLUX, state=state)
    assert proof.ok
    assert not proof.still
    with pytest.raises(RunError, match=LAYER):
        require_loadable(path, changed(state, lambda up: up * 2), FLUX)


def test_one_wrong_number_of_a_large_layer_is_seen(tmp_path):
    state = family_state("flux", "lora")
    path = tmp_path / "a.safetensors"
    write_adapter(path, state, "comfyui", FLUX, {}, proof=False)

    def one(up):
        other = up.clone()
        other[0, 0] += up.norm() * 1e-4
        return other

    with pytest.raises(RunError, match=LAYER):
        require_loadable(path, changed(state, one), FLUX)
