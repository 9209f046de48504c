"""ComfyUI's own reader turns an exported file into our delta."""

import pytest
import torch
from comfyui.readings import drawn_base, drawn_state, read_by_comfyui, relative, with_lengths
from safetensors.torch import load_file, save_file

from tests.fixtures.tables import table
from trainer_core.adapter_files.names.key_map import KeyMap, NativeKey
from trainer_core.adapter_files.write.adapter_file import write_adapter
from trainer_core.adapters.dora import DORA_SCALE
from trainer_core.adapters.kinds.registry import layer_delta

pytestmark = pytest.mark.comfy

FUSED = "blocks.0.qkv"
NATIVE = {
    "blocks.0.to_q": NativeKey(FUSED, part=True),
    "blocks.0.to_v": NativeKey(FUSED, part=True),
    "blocks.0.out": NativeKey("layers.0.final"),
    "head": NativeKey("head"),
}
SHAPES = {
    "blocks.0.to_q": (20, 12),
    "blocks.0.to_v": (20, 12),
    "blocks.0.out": (12, 20),
    "head": (18, 30),
}
SLICES = {"blocks.0.to_q": (0, 0, 20), "blocks.0.to_v": (0, 40, 20)}
KEY_MAP = KeyMap(NATIVE.__getitem__, lambda name: None)
TO_LOAD = {
    "transformer.blocks.0.to_q": [f"{FUSED}.weight", SLICES["blocks.0.to_q"]],
    "transformer.blocks.0.to_v": [f"{FUSED}.weight", SLICES["blocks.0.to_v"]],
    "diffusion_model.layers.0.final": "layers.0.final.weight",
    "diffusion_model.head": "head.weight",
}
CASES = table(__file__, "adapters of linear layers")
BYPASSED = [case for case, options in CASES.items() if "dora" not in options and case != "oft"]
"""ComfyUI's bypass passes over DoRA's magnitudes, and turns an OFT's biases too."""

SLOW = "LoHa bypass mode is inefficient"


BASE = drawn_base({FUSED: (60, 12), "layers.0.final": (12, 20), "head": (18, 30)})


def make_state(**options):
    return drawn_state(SHAPES, **options)


CONTROLS = {
    "renamed": ("lokr", "a layer is renamed"),
    "alpha": ("lokr", "alpha is doubled"),
    "swapped": ("lokr full", "w1 and w2 are exchanged"),
    "stretched": ("lokr dora", "the lengths are doubled"),
}


def spoil(change, tensors):
    if change == "renamed":
        for key in [key for key in tensors if ".head." in key]:
            tensors[key.replace(".head.", ".haed.")] = tensors.pop(key)
    elif change == "alpha":
        tensors["diffusion_model.head.alpha"] = tensors["diffusion_model.head.alpha"] * 2
    elif change == "stretched":
        tensors["diffusion_model.head.dora_scale"] *= 2
    else:
        first, second = "diffusion_model.head.lokr_w1", "diffusion_model.head.lokr_w2"
        tensors[first], tensors[second] = tensors[second], tensors[first]


@pytest.fixture(scope="module")
def readings(comfy_host, tmp_path_factory):
    """Every case and control read by ComfyUI: weights, messages, patched layers."""
    folder = tmp_path_factory.mktemp("comfyui")
    save_file(BASE, folder / "base.safetensors")
    for case, options in CASES.items():
        path = folder / f"{case}.safetensors"
        write_adapter(path, make_state(**options), "comfyui", KEY_MAP, {})
    for change, (case, _) in CONTROLS.items():
        tensors = load_file(folder / f"{case}.safetensors")
        spoil(change, tensors)
        save_file(tensors, folder / f"{change}.safetensors")
    found = read_by_comfyui(comfy_host, folder, (*CASES, *CONTROLS), TO_LOAD, BYPASSED)
    return {
        name: (weights, [text for text in said if not text.startswith(SLOW)], patched)
        for name, (weights, said, patched) in found.items()
    }


def expected_delta(state, name):
    """Textbook: the delta of the factors and, with DoRA, the columns' new lengths."""
    layer, base = state.layers[name], BASE[f"{NATIVE[name].name}.weight"]
    if name in SLICES:
        base = base.narrow(*SLICES[name])
    delta, lengths = layer_delta(state.kind, layer, base), layer.tensors.get(DORA_SCALE)
    return delta if lengths is None else with_lengths(base, delta, lengths)


def delta_of(weights, name):
    found, before = (each[f"{NATIVE[name].name}.weight"] for each in (weights, BASE))
    if name in SLICES:
        found, before = found.narrow(*SLICES[name]), before.narrow(*SLICES[name])
    return found - before


@pytest.mark.parametrize("case", CASES)
def test_comfyui_reads_our_delta_and_every_key(case, readings):
    state = make_state(**CASES[case])
    weights, messages, patched = readings[case]
    assert messages == []
    assert patched == len(NATIVE)
    for name, layer in state.layers.items():
        assert relative(delta_of(weights, name), expected_delta(state, name)) < 1e-6
        if DORA_SCALE in layer.tensors:
            assert relative(delta_of(weights, name), layer_delta(state.kind, layer)) > 0.1
    # The slice of the fused layer that no adapter names stays as it is.
    untouched = BASE[f"{FUSED}.weight"][20:40]
    assert torch.equal(weights[f"{FUSED}.weight"][20:40], untouched)


@pytest.mark.parametrize("case", BYPASSED)
def test_the_bypass_of_comfyui_adds_our_delta(case, readings):
    state = make_state(**CASES[case])
    for name, layer in state.layers.items():
        expected = layer_delta(state.kind, layer)
        label = f"{NATIVE[name].name}.weight"
        if name in SLICES:
            label += f"@{SLICES[name][1]}"
        x = torch.linspace(-1, 1, 3 * expected.shape[1]).reshape(3, expected.shape[1])
        assert relative(readings[case][0][f"bypass:{label}"], x @ expected.T) < 1e-5


@pytest.mark.parametrize("change", CONTROLS)
def test_a_changed_file_is_noticed_by_these_checks(change, readings):
    case, fault = CONTROLS[change]
    state = make_state(**CASES[case])
    weights, messages, _ = readings[change]
    error = relative(delta_of(weights, "head"), expected_delta(state, "head"))
    assert error > 0.1, fault
    assert bool(messages) == (change == "renamed")
