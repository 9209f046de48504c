"""Adapters of convolutions go to a file and back."""

import copy

import pytest
import torch
from fixtures.combinations import each_once
from torch import nn

from tests.fixtures.convolutions import WITH_DORA as OPTIONS
from tests.fixtures.convolutions import Shape, adapted_conv
from tests.fixtures.textbook import relative
from trainer_core.adapter_files.names.key_map import KeyMap, NativeKey
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters.attach_state import attach_state
from trainer_core.adapters.kinds.registry import layer_delta

KEY_MAP = KeyMap(NativeKey, lambda name: name)
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
    state = adapter.state()
    wanted = float(layer_delta(state.kind, state.layers["0"]).norm())
    assert inspect_adapter(path, KEY_MAP).norms["0"] == pytest.approx(wanted, rel=1e-5)
    other = nn.Sequential(copy.deepcopy(module[0].get_base_layer()))
    restored = attach_state(other, read_adapter(path, KEY_MAP))
    assert relative(restored.delta_weight("0"), adapter.delta_weight("0")) < 1e-6
    x = torch.randn(2, 12, *[5] * len(SHAPES[shape].kernel))
    torch.testing.assert_close(other(x), module(x), rtol=1e-4, atol=1e-4)
    # Only a LoKr's core changes its form, because ComfyUI reads no file that has one.
    same = set(restored.state().layers["0"].tensors) == set(state.layers["0"].tensors)
    assert same == ("lokr_t2" not in state.layers["0"].tensors)
