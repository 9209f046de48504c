"""Adapters of convolutions go to a file and back."""

import copy

import pytest
import torch
from fixtures.combinations import each_once
from safetensors.torch import load_file, save_file
from torch import nn

from tests.fixtures.convolutions import Shape, adapted_conv, relative
from trainer_core.adapter_files.names.key_map import KeyMap, NativeKey
from trainer_core.adapter_files.read.adapter_file import read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapter_files.write.adapter_file import write_adapter
from trainer_core.adapters.attach_state import attach_state
from trainer_core.adapters.kinds.registry import layer_delta
from trainer_core.errors import AdapterError, AdapterFileError
from trainer_core.types import AdapterState, LayerState

KEY_MAP = KeyMap(NativeKey, lambda name: name)
OPTIONS = {
    "lora": {"kind": "lora", "rank": 2},
    "lora tucker": {"kind": "lora", "rank": 2, "tucker": True},
    "lora dora": {"kind": "lora", "rank": 2, "dora": True},
    "loha": {"kind": "loha", "rank": 2},
    "loha tucker": {"kind": "loha", "rank": 2, "tucker": True},
    "loha dora": {"kind": "loha", "rank": 2, "dora": True},
    "lokr": {"kind": "lokr", "factor": -1, "rank": 1},
    "lokr tucker": {"kind": "lokr", "factor": -1, "rank": 1, "tucker": True},
    "lokr full": {"kind": "lokr", "factor": -1, "full_matrix": True},
    "lokr unbalanced": {"kind": "lokr", "rank": 1, "unbalanced": True, "factor": 2},
    "lokr both": {
        "kind": "lokr",
        "factor": -1,
        "rank": 1,
        "decompose_both": True,
        "unbalanced": True,
    },
    "lokr dora": {"kind": "lokr", "factor": -1, "full_matrix": True, "dora": True},
}
SHAPES = {
    "1d": Shape((3,), padding=1),
    "2d": Shape((3, 2)),
    "2d point": Shape((1, 1)),
    "3d": Shape((2, 3, 1)),
}


def make(options, shape):
    chosen = {**OPTIONS[options]}
    if shape == "2d point":
        chosen.pop("tucker", None)
    return adapted_conv(SHAPES[shape], {"alpha": 3.0, **chosen}, dtype=torch.float32)


@pytest.mark.parametrize(("options", "shape"), each_once(OPTIONS, SHAPES))
def test_a_file_is_put_on_the_same_layer(options, shape, tmp_path):
    module, adapter = make(options, shape)
    path = tmp_path / "adapter.safetensors"
    write_adapter(path, adapter.state(), "comfyui", KEY_MAP, {})
    other = nn.Sequential(copy.deepcopy(module[0].get_base_layer()))
    restored = attach_state(other, read_adapter(path, KEY_MAP))
    assert relative(restored.delta_weight("0"), adapter.delta_weight("0")) < 1e-6
    x = torch.randn(2, 12, *[5] * len(SHAPES[shape].kernel))
    torch.testing.assert_close(other(x), module(x), rtol=1e-4, atol=1e-4)
    # Only a LoKr's core changes its form, because ComfyUI reads no file that has one.
    same = set(restored.state().layers["0"].tensors) == set(adapter.state().layers["0"].tensors)
    assert same == ("lokr_t2" not in adapter.state().layers["0"].tensors)


@pytest.mark.parametrize(("options", "shape"), each_once(OPTIONS, SHAPES))
def test_the_report_knows_the_size_of_the_delta(options, shape, tmp_path):
    _, adapter = make(options, shape)
    state = adapter.state()
    path = tmp_path / "adapter.safetensors"
    write_adapter(path, state, "comfyui", KEY_MAP, {})
    wanted = float(layer_delta(state.kind, state.layers["0"]).norm())
    assert inspect_adapter(path, KEY_MAP).norms["0"] == pytest.approx(wanted, rel=1e-5)


@pytest.mark.parametrize("kind", ["lora", "loha", "lokr"])
def test_what_lycoris_files_is_read_too(kind, tmp_path):
    """Windows as the layer has them, and a LoKr's core as it is."""
    module, adapter = make(f"{kind} tucker", "3d")
    layer = adapter.state().layers["0"]
    tensors = {
        f"diffusion_model.0.{name}{'.weight' if kind == 'lora' else ''}": tensor
        for name, tensor in layer.tensors.items()
    }
    tensors["diffusion_model.0.alpha"] = torch.tensor(layer.alpha)
    path = tmp_path / "adapter.safetensors"
    save_file(tensors, path)
    other = nn.Sequential(copy.deepcopy(module[0].get_base_layer()))
    restored = attach_state(other, read_adapter(path, KEY_MAP))
    assert torch.equal(restored.delta_weight("0"), adapter.delta_weight("0"))


@pytest.mark.parametrize("options", [each for each in OPTIONS if "tucker" not in each])
def test_the_diffusers_layout_is_refused(options, tmp_path):
    _, adapter = make(options, "2d")
    path = tmp_path / "adapter.safetensors"
    message = "0 is a convolution" if "dora" not in options else "0 is a convolution|magnitude"
    with pytest.raises(AdapterError, match=message):
        write_adapter(path, adapter.state(), "diffusers", KEY_MAP, {})
    assert not path.exists()


def broken(name, change):
    def apply(tensors):
        tensors[f"diffusion_model.0.{name}"] = change(tensors[f"diffusion_model.0.{name}"])

    return apply


BROKEN = {
    "a core of another rank": (
        "loha tucker",
        broken("hada_t1", lambda t: t[:1].contiguous()),
        "beside a core",
    ),
    "a core of lora of another rank": (
        "lora tucker",
        broken("lora_mid.weight", lambda t: t[:, :1].contiguous()),
        "beside a core",
    ),
    "one core missing": (
        "loha tucker",
        lambda tensors: tensors.pop("diffusion_model.0.hada_t2"),
        "a factor is missing",
    ),
    "too many axes": (
        "lora",
        broken("lora_down.weight", lambda t: t[..., None, None]),
        "up to three axes more",
    ),
    "lengths of other channels": (
        "lora dora",
        broken("dora_scale", lambda t: t[:, :5].contiguous()),
        "does not fit its factors",
    ),
    "lengths with a window": (
        "lora dora",
        broken("dora_scale", lambda t: t.expand(-1, -1, 3, 2).contiguous()),
        "does not fit its factors",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_refused(case, tmp_path):
    options, change, message = BROKEN[case]
    _, adapter = make(options, "2d")
    path = tmp_path / "adapter.safetensors"
    write_adapter(path, adapter.state(), "comfyui", KEY_MAP, {})
    read_adapter(path, KEY_MAP)
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(AdapterFileError, match=message):
        read_adapter(path, KEY_MAP)


def test_the_kernel_of_a_state_marks_flat_factors_as_those_of_a_convolution(tmp_path):
    """A LoHa's factors alone look like those of a Linear."""
    tensors = {
        "hada_w1_a": torch.randn(4, 2),
        "hada_w1_b": torch.randn(2, 27),
        "hada_w2_a": torch.randn(4, 2),
        "hada_w2_b": torch.randn(2, 27),
    }
    for kernel in ((3, 3), ()):
        state = AdapterState("loha", {"0": LayerState(tensors, 2.0, 2, kernel)}, {})
        path = tmp_path / f"adapter{len(kernel)}.safetensors"
        if kernel:
            with pytest.raises(AdapterError, match="0 is a convolution"):
                write_adapter(path, state, "diffusers", KEY_MAP, {})
        else:
            write_adapter(path, state, "diffusers", KEY_MAP, {})
