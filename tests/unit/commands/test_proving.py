"""``inspect --prove``: whose shapes are taken, what is printed, and the exit code."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.adapter_states import make_state
from tests.fixtures.family_states import key_map
from trainer_core.adapter_files.metadata import SETTINGS_KEY
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters.kinds.registry import KINDS
from trainer_core.bases.base_weights import known_bases, known_sizes, open_base
from trainer_core.cli import main
from trainer_core.families.registry import FAMILIES

WIDTH = 3072
SIZES = {
    "flux": {
        "transformer_blocks.18.attn.to_q": (WIDTH, WIDTH),
        "single_transformer_blocks.37.proj_mlp": (WIDTH, 4 * WIDTH),
        "x_embedder": (64, WIDTH),
    },
    "qwen_image": {
        "transformer_blocks.59.attn.to_q": (WIDTH, WIDTH),
        "transformer_blocks.0.img_mod.1": (WIDTH, 6 * WIDTH),
    },
}


def report_of(capsys, *words):
    code = main(["inspect", *map(str, words), "--prove", "--json"])
    out = capsys.readouterr().out
    assert "proof" in json.loads(out), out
    return code, json.loads(out)["proof"]


def write(folder, family, sizes, layout="comfyui"):
    path = folder / f"{family}.safetensors"
    state = make_state("lora", sizes=sizes)
    write_adapter(path, state, layout, key_map(family), {})
    return path


@pytest.mark.parametrize("family", SIZES)
def test_the_published_base_is_taken(family, capsys, tmp_path):
    path = write(tmp_path, family, SIZES[family])
    code, proof = report_of(capsys, path)
    assert (code, proof["ok"]) == (0, True)
    assert proof["base"] == f"{FAMILIES[family].title} as published"
    assert set(proof["layers"]) == set(SIZES[family])
    assert {each["outcome"] for each in proof["tensors"].values()} == {"loaded"}
    assert proof["tensors"].keys() == load_file(path).keys()


BASES = [
    (name, title)
    for name, family in FAMILIES.items()
    for title in ([] if family.headless else known_bases(family))
]
QUICK = {("flux2", "FLUX.2 klein 4B")}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "title"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.exhaustive) for case in BASES],
)
def test_what_was_exported_for_any_published_size_is_proven_without_a_base(
    name, title, kind, capsys, tmp_path
):
    family = FAMILIES[name]
    known, sizes = known_sizes(family)[title], {}
    for path, (outputs, inputs) in known.layers.items():
        last = known.blocks.get(path.partition(".{}")[0], 1) - 1
        module = path.replace("{}", str(last))
        if any(
            re.fullmatch(each, module) for each in (*family.layers.presets["default"], "x_embedder")
        ):
            sizes[module] = (inputs, outputs)
    state, path = make_state(kind, rank=2, sizes=sizes), tmp_path / "a.safetensors"
    for header in ({}, {SETTINGS_KEY: json.dumps({"family": name})}):
        write_adapter(path, state, "comfyui", family.layers.key_map, header)
        code, proof = report_of(capsys, path)
        assert (code, proof["ok"], proof["layers compared"]) == (0, True, len(sizes)), proof
        assert set(proof["tensors"]) == set(load_file(path))
    assert proof["base"] == title or kind == "oft"  # whose factors do not tell the inputs


@pytest.mark.parametrize("kind", KINDS)
def test_of_an_unknown_size_the_base_is_asked_for_and_nothing_is_said_of_comfyui(
    kind, capsys, tmp_path
):
    state, path = make_state(kind, sizes={"x_embedder": (64, 640)}), tmp_path / "a.safetensors"
    write_adapter(path, state, "lycoris", key_map("flux2"), {})
    assert main(["inspect", str(path), "--prove", "--family", "flux2"]) == 2
    shown = capsys.readouterr()
    assert "no other FLUX.2 that is known has its sizes" in shown.err
    assert "--base PATH" in shown.err
    assert "NOT FINE" not in shown.out


def test_a_person_reads_only_what_is_wrong(capsys, tmp_path):
    path = write(tmp_path, "flux", SIZES["flux"])
    tensors = load_file(path)
    tensors["lora_te1_text_model_encoder_layers_0_mlp_fc1.alpha"] = torch.tensor(1.0)
    tensors["diffusion_model.img_in.lora_magnet"] = torch.ones(2)
    save_file(tensors, path)
    assert main(["inspect", str(path), "--prove", "--family", "flux"]) == 1
    out = capsys.readouterr().out
    assert "it is for a text encoder" in out
    assert "ComfyUI knows no tensor of this name" in out
    assert "proj_mlp" not in out
    assert "the trainer does not read this file" in out


Q = "transformer_blocks.0.attn.to_q"


def embedded_lora(folder, change, *, lengths=None, axis="input", dtype=torch.float32):
    """A LoRA for the embedded base whose change is so large beside the weight."""
    weight = open_base("embedded").weight(Q)
    generator = torch.Generator().manual_seed(3)
    rows, columns = weight.shape
    up, down = (torch.randn(*s, generator=generator) for s in ((rows, 4), (4, columns)))
    up *= change * weight.norm() / (up @ down).norm()
    tensors = {"lora_up.weight": up.to(dtype), "lora_down.weight": down.to(dtype)}
    if lengths is not None:
        own = weight.norm(dim=0, keepdim=True) if axis == "input" else weight.norm(dim=1)[:, None]
        tensors["dora_scale"] = lengths * own
    path = folder / "a.safetensors"
    save_file({f"diffusion_model.{Q}.{end}": each for end, each in tensors.items()}, path)
    return path


def saved_base(folder, dtype):
    """The embedded base's weights as one file."""
    base, path = open_base("embedded"), folder / f"{str(dtype)[6:]}.safetensors"
    save_file({name: base.tensor(name).to(dtype) for name in base.names}, path)
    return path


@pytest.mark.parametrize(("stretch", "warned"), [(1.0, False), (1.1, False), (3.0, True)])
def test_lengths_that_are_not_the_bases_are_warned_of(stretch, warned, capsys, tmp_path):
    path = embedded_lora(tmp_path, 0.05, lengths=stretch)
    code, proof = report_of(capsys, path, "--base", "embedded")
    assert (code, proof["ok"]) == (0, True)
    assert any("DoRA magnitudes" in line for line in proof.get("warnings", [])) == warned
    # Without a base nothing is known of its lengths.
    assert "warnings" not in report_of(capsys, path)[1]


@pytest.mark.parametrize(("change", "warned"), [(0.05, False), (1e-5, True)])
def test_a_change_that_vanishes_in_the_bases_format_is_warned_of(change, warned, capsys, tmp_path):
    path, base = embedded_lora(tmp_path, change), saved_base(tmp_path, torch.bfloat16)
    code, proof = report_of(capsys, path, "--base", base)
    assert code == 0
    assert any("vanishes" in line for line in proof.get("warnings", [])) == warned
    # In float32 nothing of it does.
    precise = saved_base(tmp_path, torch.float32)
    assert "warnings" not in report_of(capsys, path, "--base", precise)[1]
    main(["inspect", str(path), "--prove", "--base", str(base)])
    assert ("bfloat16, whose steps are larger" in capsys.readouterr().out) == warned
