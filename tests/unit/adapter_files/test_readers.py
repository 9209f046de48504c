"""Every cell of docs/adapter-readers.md."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from trainer_core.adapter_files.names.key_map import KeyMap, NativeKey, Part
from trainer_core.adapter_files.read.read_adapter import read_adapter, read_file
from trainer_core.adapter_files.write.write_adapter import LAYOUTS as LAYOUT_WRITERS
from trainer_core.adapter_files.write.write_adapter import layout_name, write_adapter
from trainer_core.adapters import attach
from trainer_core.adapters.attach_state import attach_state
from trainer_core.config import AdapterConfig
from trainer_core.errors import AdapterError

PAGE = Path(__file__).parents[3] / "docs" / "adapter-readers.md"
LAYOUTS = ("comfyui", "diffusers", "peft", "kohya", "lycoris")
_ROW = re.compile(
    r"^\| (?P<name>[^|]+?) \| `(?P<settings>kind=[^`]+)` \|(?P<cells>( \w+ \|){5})$", re.M
)
CELLS = [
    pytest.param(row["settings"], layout, cell, id=f"{row['name']} in {layout}")
    for row in _ROW.finditer(PAGE.read_text(encoding="utf-8"))
    for layout, cell in zip(LAYOUTS, re.findall(r"\w+", row["cells"]), strict=True)
]
NATIVE = {
    "linear": NativeKey("linear"),
    "convolution": NativeKey("convolution"),
    **{part: NativeKey("qkv", part=True) for part in "qkv"},
}
KEY_MAP = KeyMap(
    NATIVE.get,
    lambda name: name if name in ("linear", "convolution") else None,
    lambda native: tuple(map(Part, "qkv")) if native == "qkv" else (),
    tuple(NATIVE),
)


class Model(nn.Module):
    """One layer of each class, and three that are one in ComfyUI's model."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(12, 20)
        self.convolution = nn.Conv2d(24, 32, 3, padding=1)
        self.q, self.k, self.v = (nn.Linear(12, 20) for _ in range(3))

    def forward(self, rows, image):
        parts = torch.cat([self.q(rows), self.k(rows), self.v(rows)])
        return {"linear": self.linear(rows), "convolution": self.convolution(image), "q": parts}


def make():
    torch.manual_seed(0)
    return Model().double().requires_grad_(False)


def options(settings):
    values = dict(part.split("=") for part in settings.split())
    on = values.pop("on", "linear")
    targets = list("qkv") if on == "parts" else [on]
    words = {"true": True}
    typed = {k: int(v) if v.isdigit() else words.get(v, v) for k, v in values.items()}
    return AdapterConfig(**{"rank": 2, "alpha": 3.0, **typed}), targets


def test_the_table_is_read_whole():
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if "`kind=" in line]
    assert len(CELLS) == 5 * len(lines) > 100
    assert {cell.values[2] for cell in CELLS} == {"exact", "converted", "refused"}
    assert set(LAYOUTS) == set(LAYOUT_WRITERS)


@pytest.mark.parametrize(("settings", "layout", "cell"), CELLS)
def test_a_cell_says_what_happens(settings, layout, cell, tmp_path):
    config, targets = options(settings)
    model = make()
    inputs = (torch.randn(3, 12).double(), torch.randn(2, 24, 5, 5).double())
    base = model(*inputs)
    adapter = attach(model, config, targets)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter += 0.5 * torch.rand_like(parameter)
    wanted, state = model(*inputs), adapter.state()
    adapter.detach()
    path = tmp_path / layout_name("adapter", layout)
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
    same_form = same_form and len(read_file(path).layers) == len(factors)
    assert same_form == (cell == "exact")
    attach_state(model, read)
    found = model(*inputs)
    for name in wanted:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-5, atol=1e-5)
    change = wanted[targets[0]] - base[targets[0]]
    assert change.norm() > 0.05 * base[targets[0]].norm()
