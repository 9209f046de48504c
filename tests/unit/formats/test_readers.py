"""Every cell of docs/adapter-readers.md."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from trainer_core.adapters import attach
from trainer_core.adapters.restoring import attach_state
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError
from trainer_core.formats import KeyMap, NativeKey, read_adapter, write_adapter

PAGE = Path(__file__).parents[3] / "docs" / "adapter-readers.md"
_ROW = re.compile(r"^\| (?P<name>[^|]+?) \| `(?P<settings>[^`]+)` \| (\w+) \| (\w+) \|$", re.M)
LAYOUTS = ("comfyui", "diffusers")
CELLS = [
    pytest.param(row["settings"], layout, cell, id=f"{row['name']} in {layout}")
    for row in _ROW.finditer(PAGE.read_text(encoding="utf-8"))
    for layout, cell in zip(LAYOUTS, (row[3], row[4]), strict=True)
]
KEY_MAP = KeyMap(lambda name: NativeKey(name), lambda name: name)


class Model(nn.Module):
    """One layer of each class."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 20)
        self.convolution = nn.Conv2d(24, 32, 3, padding=1)

    def forward(self, rows, picture):
        return [self.linear(rows), self.convolution(picture)]


def make():
    torch.manual_seed(0)
    return Model().double().requires_grad_(False)


def options(settings):
    values = dict(part.split("=") for part in settings.split())
    target = values.pop("on", "linear")
    words = {"true": True}
    typed = {k: int(v) if v.isdigit() else words.get(v, v) for k, v in values.items()}
    return AdapterConfig(**{"rank": 2, "alpha": 3.0, **typed}), target


def test_the_table_is_read_whole():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "kind=" in line]
    assert len(CELLS) == 2 * len(lines) > 30
    assert {cell.values[2] for cell in CELLS} == {"exact", "converted", "refused"}


@pytest.mark.parametrize(("settings", "layout", "cell"), CELLS)
def test_a_cell_says_what_happens(settings, layout, cell, tmp_path):
    config, target = options(settings)
    model = make()
    inputs = (torch.randn(3, 12).double(), torch.randn(2, 24, 5, 5).double())
    base = model(*inputs)
    adapter = attach(model, config, [target])
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += 0.5 * torch.rand_like(parameter)
    wanted, state = model(*inputs), adapter.state()
    adapter.detach()
    path = tmp_path / "adapter.safetensors"
    if cell == "refused":
        with pytest.raises(AdapterError) as error:
            write_adapter(path, state, layout, KEY_MAP, {})
        assert error.value.found
        assert error.value.remedy
        assert not path.exists()
        return
    write_adapter(path, state, layout, KEY_MAP, {})
    read = read_adapter(path, KEY_MAP)
    factors = {name: set(layer.tensors) for name, layer in state.layers.items()}
    same_form = factors == {name: set(layer.tensors) for name, layer in read.layers.items()}
    assert same_form == (cell == "exact")
    attach_state(model, read)
    for found, expected, plain in zip(model(*inputs), wanted, base, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        if plain.shape == wanted[0 if target == "linear" else 1].shape:
            assert (expected - plain).norm() > 0.05 * plain.norm()
