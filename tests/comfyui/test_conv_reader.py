"""ComfyUI's own reader turns exported adapters of convolutions into our delta."""

import pytest
from comfyui.readings import ALPHA, drawn_base, drawn_state, read_by_comfyui, relative, with_lengths
from fixtures.convolutions import textbook_delta
from fixtures.tables import table
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.names.key_map import KeyMap, NativeKey
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters.dora_magnitude import DORA_SCALE

pytestmark = pytest.mark.comfy

SHAPES = {
    "line": (20, 12, 3),
    "plane": (20, 12, 3, 2),
    "point": (12, 20, 1, 1),
    "space": (18, 12, 2, 3, 1),
    "head": (18, 30),
}
GROUPED = {"grouped": (20, 3, 3, 3), "alone": (12, 1, 5)}
"""The weights of convolutions with groups: of 12 channels in 4, and of 12 single ones."""

KEY_MAP = KeyMap(NativeKey, lambda name: name)
CASES = table(__file__, "adapters of convolutions")
CONTROLS = {
    "alpha": ("lora", "plane", "alpha is doubled"),
    "stretched": ("lokr dora", "plane", "the lengths are doubled"),
    "turned": ("loha tucker", "plane", "the core is turned"),
    "core of a lokr": ("lokr tucker", "plane", "ComfyUI 0.33 cannot multiply this core in"),
    "own shape": ("lokr full", "line", "the window of a Conv1d has one axis in the file"),
}


BASE = drawn_base({**SHAPES, **GROUPED})


def make_state(**options):
    return drawn_state(SHAPES if options["kind"] == "lokr" else {**SHAPES, **GROUPED}, **options)


def spoil(change, tensors, state):
    if change == "alpha":
        tensors["diffusion_model.plane.alpha"] = tensors["diffusion_model.plane.alpha"] * 2
    elif change == "stretched":
        tensors["diffusion_model.plane.dora_scale"] *= 2
    elif change == "turned":
        key = "diffusion_model.plane.hada_t1"
        tensors[key] = tensors[key].transpose(0, 1).contiguous()
    elif change == "core of a lokr":
        for factor, tensor in state.layers["plane"].tensors.items():
            tensors[f"diffusion_model.plane.{factor}"] = tensor
    else:
        tensors["diffusion_model.line.lokr_w2"] = state.layers["line"].tensors["lokr_w2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The base, every case, and every control."""
    path = tmp_path_factory.mktemp("comfyui")
    save_file(BASE, path / "base.safetensors")
    for case, options in CASES.items():
        write_adapter(path / f"{case}.safetensors", make_state(**options), "comfyui", KEY_MAP, {})
    for change, (case, _, _) in CONTROLS.items():
        tensors = load_file(path / f"{case}.safetensors")
        spoil(change, tensors, make_state(**CASES[case]))
        save_file(tensors, path / f"{change}.safetensors")
    return path


@pytest.fixture(scope="module")
def readings(comfy_host, folder):
    """Everything read by ComfyUI: weights, messages, patched layers."""
    names = {f"diffusion_model.{name}": f"{name}.weight" for name in {**SHAPES, **GROUPED}}
    return read_by_comfyui(comfy_host, folder, (*CASES, *CONTROLS), names)


def expected_delta(state, name, options):
    """Textbook: the delta of the factors and, with DoRA, the channels' new lengths."""
    layer, shape = state.layers[name], {**SHAPES, **GROUPED}[name]
    factors = dict(layer.tensors)
    lengths = factors.pop(DORA_SCALE, None)
    whole = "lokr_w1" in factors and "lokr_w2" in factors
    scale = 1.0 if whole else ALPHA / options.get("rank", 2)
    delta = textbook_delta(state.kind, factors, scale, shape)
    return delta if lengths is None else with_lengths(BASE[f"{name}.weight"], delta, lengths)


def delta_of(weights, name):
    return weights[f"{name}.weight"] - BASE[f"{name}.weight"]


@pytest.mark.parametrize("case", CASES)
def test_comfyui_reads_our_delta_and_every_key(case, readings):
    options = CASES[case]
    state = make_state(**options)
    weights, messages, patched = readings[case]
    assert messages == []
    assert patched == len(state.layers)
    for name in state.layers:
        expected = expected_delta(state, name, options)
        assert relative(delta_of(weights, name), expected) < 2e-6, name


@pytest.mark.parametrize("change", CONTROLS)
def test_a_changed_file_is_noticed_by_these_checks(change, readings):
    case, name, fault = CONTROLS[change]
    state = make_state(**CASES[case])
    weights, _, _ = readings[change]
    error = relative(delta_of(weights, name), expected_delta(state, name, CASES[case]))
    assert error > 0.1, fault
