"""PEFT and LyCORIS load what is written for them, and compute the same."""

import pytest
import torch
from torch import nn

from tests.fixtures.adapter_states import KEY_MAP, make_state
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters.attach_state import attach_state
from trainer_core.errors import AdapterError
from trainer_core.types import AdapterState

SIZES = {"blocks.0.attn.to_q": (12, 20), "blocks.0.out": (20, 12), "head": (12, 9), "out": (9, 12)}
"""``out`` is the end of another name, and the first two have the sizes of LoKr's cases."""


class Model(nn.Module):
    """Layers one behind the other, named as in `SIZES`."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Module()])
        self.blocks[0].attn = nn.Module()
        for name, (inputs, outputs) in SIZES.items():
            path, _, leaf = name.rpartition(".")
            setattr(self.get_submodule(path), leaf, nn.Linear(inputs, outputs))

    def forward(self, x):
        for name in SIZES:
            x = torch.tanh(self.get_submodule(name)(x))
        return x


def make():
    torch.manual_seed(0)
    return Model().requires_grad_(False)


def mixed(kind, **options):
    """Layers of several ranks and alphas."""
    layers = {}
    for index, (name, size) in enumerate(SIZES.items()):
        made = make_state(kind, 1 + index % 3, 1.5 + index % 2, index, {name: size}, **options)
        layers |= made.layers
    return AdapterState(kind, layers)


STATES = {
    "lora": mixed("lora"),
    "lora dora": mixed("lora", dora=True, dora_axis="output"),
    "loha": mixed("loha"),
    "lokr": make_state("lokr", 1, 0.5, sizes=SIZES),
    "lokr whole": make_state("lokr", 1, 0.5, sizes=SIZES, full_matrix=True),
    "lokr both": make_state("lokr", 1, 0.5, sizes=SIZES, decompose_both=True),
    "lokr factor": make_state("lokr", 2, 3.0, sizes={"blocks.0.attn.to_q": (12, 20)}, factor=2),
}
X = torch.randn(5, 12, generator=torch.Generator().manual_seed(1))


def wanted(state):
    model = make()
    attach_state(model, state)
    return model(X)


@pytest.fixture(params=STATES)
def state(request):
    return STATES[request.param]


def test_peft_loads_the_folder(state, tmp_path):
    from peft import PeftModel

    write_adapter(tmp_path / "folder", state, "peft", KEY_MAP, {})
    found = PeftModel.from_pretrained(make(), str(tmp_path / "folder"))(X)
    torch.testing.assert_close(found, wanted(state), rtol=1e-5, atol=1e-5)
    assert (found - make()(X)).norm() > 0.05 * found.norm()


@pytest.mark.parametrize(
    ("state", "message"),
    [
        # Both layers are split by 16, where PEFT would split 64 into (16, 4) unsorted.
        (
            make_state("lokr", sizes={"head": (64, 64), "out": (256, 256)}, factor=16),
            "other shapes",
        ),
        (mixed("lora", dora=True), "magnitude of the input axis"),
        (mixed("loha", dora=True, dora_axis="output"), "magnitude of the output axis"),
        (
            AdapterState(
                "lora", {**STATES["lora dora"].layers, "head": STATES["lora"].layers["head"]}
            ),
            "head has none",
        ),
    ],
)
def test_what_peft_would_compute_otherwise_is_refused(state, message, tmp_path):
    with pytest.raises(AdapterError, match=message) as error:
        write_adapter(tmp_path / "folder", state, "peft", KEY_MAP, {})
    assert error.value.remedy
    assert not (tmp_path / "folder").exists()


def test_lycoris_loads_the_file(state, tmp_path):
    from lycoris import create_lycoris_from_weights

    path = tmp_path / "a.safetensors"
    write_adapter(path, state, "lycoris", KEY_MAP, {})
    model = make()
    network, _ = create_lycoris_from_weights(1.0, str(path), model)
    assert len(network.loras) == len(state.layers)
    network.apply_to()
    torch.testing.assert_close(model(X), wanted(state), rtol=1e-5, atol=1e-5)
