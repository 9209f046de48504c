"""``convert``: what is written, what is said, and the exit code."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.family_states import assert_same, family_state, key_map
from tests.fixtures.tables import table
from tests.unit.commands.conftest import OWN
from trainer_core.adapter_files.read.read_adapter import read_adapter
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.cli import main

FLUX = key_map("flux")


def run(*words):
    return main(["convert", *map(str, words)])


def events(capsys):
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_peft_folder_goes_both_ways(lora, tmp_path, capsys):
    assert run(lora, tmp_path / "peft", "--to", "peft") == 0
    assert "errors" not in capsys.readouterr().out, "there are none"
    assert run(tmp_path / "peft", tmp_path / "b.safetensors", "--to", "lycoris") == 0
    assert_same(read_adapter(tmp_path / "b.safetensors", FLUX), family_state("flux", "lora"))


def test_every_adapter_of_a_folder_is_converted(lora, tmp_path, capsys):
    folder, out = lora.parent, tmp_path / "out"
    write_adapter(folder / "lokr.safetensors", family_state("flux", "lokr"), "comfyui", FLUX, OWN)
    write_adapter(folder / "peft", family_state("flux", "loha"), "peft", FLUX, OWN)
    (folder / "bad.safetensors").write_bytes(b"no adapter")
    (folder / "notes.txt").write_text("mine")
    assert run(folder, out, "--to", "kohya", "--json") == 1
    found = events(capsys)
    assert [each["event"] for each in found] == [
        "failed",
        "failed",
        "converted",
        "converted",
        "done",
    ]
    done = {"event": "done", "converted": 2, "failed": 2, "skipped": ["notes.txt"]}
    assert found[-1] == done
    assert found[1]["input"].endswith("lokr.safetensors")
    assert all(found[1][part] for part in ("found", "expected", "remedy"))
    assert sorted(path.name for path in out.iterdir()) == ["lora.safetensors", "peft.safetensors"]
    # Again: what is there is not replaced, and nothing is converted twice.
    assert run(folder, out, "--to", "kohya") == 1
    said = capsys.readouterr()
    assert "0 of 4 converted" in said.out
    assert "--overwrite" in said.err
    (folder / "bad.safetensors").unlink()
    words = ("--to", "kohya", "--overwrite", "--approximate", "lora", "--rank", "3")
    assert run(folder, out, *words) == 0
    shown = capsys.readouterr().out
    assert "3 of 3 converted" in shown
    assert "proj_out: " in shown


def test_the_base_gives_its_weights(tmp_path, capsys):
    """The embedded base is a Qwen-Image, whose layers are what the adapter is made for."""
    from tests.fixtures.adapter_states import make_state
    from trainer_core.bases.base_weights import open_base

    base = open_base("embedded")
    name = "transformer_blocks.0.attn.to_q"
    outputs, inputs = base.shape(f"{name}.weight")
    state = make_state("lora", dora=True, dora_axis="output", sizes={name: (inputs, outputs)})
    source, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    names = key_map("qwen_image")
    write_adapter(source, state, "diffusers", names, {})
    given = (source, out, "--to", "comfyui", "--family", "qwen_image")
    assert run(*given) == 2
    assert "--base" in capsys.readouterr().err
    assert run(*given, "--base", "embedded") == 0
    (change,) = load_file(out).values()
    layer, weight = state.layers[name], base.weight(name)
    total = weight + layer.tensors["lora_up"] @ layer.tensors["lora_down"] * 1.5
    trained = layer.tensors["dora_scale"] * total / total.norm(dim=1, keepdim=True)
    torch.testing.assert_close(weight + change, trained, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("words", "message"), table(__file__, "refused_conversions"))
def test_bad_input_is_said_and_nothing_is_written(words, message, lora, tmp_path, capsys):
    from re import search

    empty = tmp_path / "empty"
    empty.mkdir()
    places = {
        "in": lora,
        "folder": lora.parent,
        "out": tmp_path / "out.safetensors",
        "there": tmp_path / "there.safetensors",
        "none": tmp_path / "none.safetensors",
        "empty": empty,
        "both": tmp_path / "both.safetensors",
        "foreign": tmp_path / "foreign.safetensors",
    }
    places["there"].write_bytes(b"mine")
    for name, layer in (("both", "transformer_blocks.0.attn.to_q"), ("foreign", "x.0.y")):
        pair = {"lora_A.weight": torch.ones(1, 3072), "lora_B.weight": torch.ones(3072, 1)}
        save_file({f"transformer.{layer}.{k}": t for k, t in pair.items()}, places[name])
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert run(*(word.format(**places) for word in words.split())) == 2
    shown = capsys.readouterr().err
    assert search(message, shown), shown
    assert shown.count("To do:") == 1
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("size", "exact"), [(1.0, True), (2e-6, False)])
def test_a_cast_that_loses_more_than_one_percent_is_not_exact(size, exact, tmp_path, capsys):
    state = family_state("flux", "lora")
    for layer in state.layers.values():
        layer.tensors["lora_up"].mul_(size / layer.tensors["lora_up"].abs().max())
    source, out = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write_adapter(source, state, "comfyui", FLUX, OWN)
    assert run(source, out, "--to", "comfyui", "--dtype", "fp16", "--json") == 0
    (report,) = events(capsys)
    assert report["exact"] is exact
    assert (report["dtype_error"] > 0.01) is not exact
    assert any("number format loses" in note for note in report["notes"]) is not exact
    assert run(source, out, "--to", "comfyui", "--dtype", "fp16", "--overwrite") == 0
    assert capsys.readouterr().out.count("exact") == exact
    assert run(tmp_path, tmp_path / "all", "--to", "comfyui", "--dtype", "fp16") == 0
    assert ("exact" in capsys.readouterr().out.partition("b.safetensors")[0]) is exact
