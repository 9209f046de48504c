"""Verbs that are killed while they write: the next one in that place tidies up and says so."""

import os

import pytest
import torch

from tests.fixtures.flux_files import FLUX, random_adapter, write_folder, write_native
from tests.fixtures.leftovers import killed_while_writing
from tests.fixtures.native_files import make_native_flux
from tests.fixtures.tables import table
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.cli import main
from trainer_core.filesystem.temporary import temporary_beside

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
LIMIT = 20_000


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Two bases that differ, one of them as a folder too, and an adapter."""
    place = tmp_path_factory.mktemp("place")
    model = make_native_flux(layers=1, single_layers=1)
    write_folder(place / "folder", model)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    write_native(place / "base.safetensors", state)
    tuned = {name: t + 0.1 * torch.randn_like(t) for name, t in state.items() if t.ndim == 2}
    write_native(place / "tuned.safetensors", {**state, **tuned})
    adapter = random_adapter(model, kind="lora", rank=8)
    (place / "adapters").mkdir()
    # The header of a file of this program, whose base may have had any size.
    own = {"adapter_trainer": '{"family": "flux"}'}
    for path in (place / "lora.safetensors", place / "adapters" / "lora.safetensors"):
        write_adapter(path, adapter, "comfyui", FLUX.layers.key_map, own)
    return place


@pytest.mark.parametrize("words", table(__file__, "writing").values())
def test_a_verb_that_was_killed_leaves_nothing_for_long(
    words, place, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for path in place.iterdir():
        (tmp_path / path.name).symlink_to(path)
    out = tmp_path / "out"
    killed_while_writing(lambda: main(words.split()), LIMIT)
    (left,) = out.iterdir()
    assert left.name.startswith(".writing-"), "a half has a name"
    with temporary_beside(out / "living") as living:
        living.write_bytes(b"")
        assert main(words.split()) == 0
        shown = capsys.readouterr()
        assert "Note: Removed an unfinished file or folder" in shown.out, shown
        assert left.name in shown.out
        assert {path.name for path in out.iterdir()} - {living.name} <= {
            "x",
            "x.safetensors",
            "x.sft",
            "lora.safetensors",
        }
        assert living.exists()
