"""Files that hold the adapters of both experts of Wan 2.2: told, and divided."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from trainer_core.adapter_files.read.expert_parts import experts_of
from trainer_core.adapter_files.read.read_adapter import open_file
from trainer_core.adapter_files.tools.inspect_adapter import inspect_adapter
from trainer_core.cli import main
from trainer_core.errors import AdapterFileError
from trainer_core.tensors.safetensors_reader import HeldTensors, open_tensors

WIDTH = 1536
AB, KOHYA = ("lora_A.weight", "lora_B.weight"), ("lora_down.weight", "lora_up.weight")
# Of each program the names of both experts' layers, with the endings of their factors.
NATIVE = ("blocks.0.self_attn.q", "blocks.29.cross_attn.k")
THEIRS = ("blocks.0.attn1.to_q", "blocks.29.attn2.to_k")
PROGRAMS = {
    "ai-toolkit": (
        ("diffusion_model.transformer_1.", "diffusion_model.transformer_2."),
        *(NATIVE, AB),
    ),
    "Diffusers": (("transformer.", "transformer_2."), THEIRS, AB),
    "DiffSynth": (
        ("pipe.dit.", "pipe.dit2."),
        *(NATIVE, ("lora_A.default.weight", "lora_B.default.weight")),
    ),
    "folders": (("high_noise_model.", "low_noise_model."), NATIVE, KOHYA),
    "flat": (
        ("lora_unet_transformer_1_", "lora_unet_transformer_2_"),
        *(tuple(name.replace(".", "_") for name in NATIVE), KOHYA),
    ),
}


def both(program):
    """A file's tensors, and by expert the change of each of ComfyUI's layers."""
    source = torch.Generator().manual_seed(2)
    prefixes, names, endings = PROGRAMS[program]
    tensors, wanted = {}, {"high_noise": {}, "low_noise": {}}
    for prefix, changes in zip(prefixes, wanted.values(), strict=True):
        for name, native in zip(names, NATIVE, strict=True):
            down = torch.randn(2, WIDTH, generator=source)
            up = torch.randn(WIDTH, 2, generator=source)
            tensors |= {f"{prefix}{name}.{endings[0]}": down, f"{prefix}{name}.{endings[1]}": up}
            changes[native] = up @ down
    return tensors, wanted


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_expert_gets_a_file_of_its_own(program, tmp_path, capsys):
    tensors, wanted = both(program)
    save_file(tensors, tmp_path / "both.safetensors")
    words = ["convert", str(tmp_path / "both.safetensors"), str(tmp_path / "own.safetensors")]
    assert main([*words, "--to", "comfyui"]) == 0
    assert capsys.readouterr().out.count("output: ") == 2
    assert not (tmp_path / "own.safetensors").exists()
    for expert, changes in wanted.items():
        path = tmp_path / f"own_{expert}.safetensors"
        found = load_file(path)
        for native, change in changes.items():
            up, down = (
                found[f"diffusion_model.{native}.lora_{end}.weight"] for end in ("up", "down")
            )
            assert torch.allclose(up @ down, change, atol=1e-5)
        assert len(found) == 6
        assert main(["inspect", str(path), "--prove"]) == 0


def test_a_file_of_both_is_refused_wherever_one_is_wanted(tmp_path, capsys):
    tensors, _ = both("ai-toolkit")
    path = tmp_path / "both.safetensors"
    save_file(tensors, path)
    for reader in (inspect_adapter, lambda path: open_file(path).__enter__()):
        with pytest.raises(AdapterFileError, match="4 tensors for high_noise and 4") as error:
            reader(path)
        assert "writes OUT_high_noise and OUT_low_noise" in error.value.remedy
    assert main(["inspect", str(path), "--prove"]) == 2
    assert "experts of Wan 2.2" in capsys.readouterr().err


def test_nothing_is_written_where_a_part_has_no_place_or_no_expert(tmp_path, capsys):
    tensors, _ = both("Diffusers")
    path, target = tmp_path / "both.safetensors", tmp_path / "own.safetensors"
    save_file(tensors, path)
    (tmp_path / "own_low_noise.safetensors").write_bytes(b"kept")
    words = ["convert", str(path), str(target), "--to", "comfyui"]
    assert main(words) == 2
    save_file({**tensors, "text_encoder.layers.0.fc1.lora_A.weight": torch.ones(1, 4)}, path)
    assert main([*words, "--overwrite"]) == 2
    assert "of neither" in capsys.readouterr().err
    assert [each.name for each in tmp_path.glob("own*")] == ["own_low_noise.safetensors"]


def test_one_expert_alone_and_tensors_in_memory_are_divided_too():
    tensors, _ = both("Diffusers")
    low = {name: each for name, each in tensors.items() if name.startswith("transformer_2.")}
    assert [*experts_of(HeldTensors("a", low))] == ["low_noise"]
    parts = experts_of(HeldTensors("a", tensors))
    with open_tensors(parts["high_noise"]) as file:
        first = file.read(f"{THEIRS[0]}.{AB[0]}")
    assert torch.equal(first, tensors[f"transformer.{THEIRS[0]}.{AB[0]}"])
    usual = {name: each for name, each in tensors.items() if name.startswith("transformer.")}
    assert experts_of(HeldTensors("a", usual)) == {}


def test_no_expert_of_a_folder_takes_the_place_of_another_file(tmp_path, capsys):
    given, new = tmp_path / "given", tmp_path / "new"
    given.mkdir()
    save_file(both("ai-toolkit")[0], given / "w.safetensors")
    words = ["convert", str(given), str(new), "--to", "comfyui"]
    assert main(words) == 0
    (new / "w_low_noise.safetensors").rename(given / "w_low_noise.safetensors")
    capsys.readouterr()
    assert main([*words, "--overwrite"]) == 1
    assert "would both become" in "".join(capsys.readouterr())
