"""Sentences at the end of a command, and ``inspect`` in at most 30 lines with the verdict first."""

import torch
from safetensors.torch import save_file

from trainer_core.cli import main

MOST_LINES = 30


def adapter(path, layers, metadata=None, size=3072):
    tensors = {}
    for index in range(layers):
        name = f"diffusion_model.transformer_blocks.{index}.attn.to_q"
        tensors[f"{name}.lora_A.weight"] = torch.ones(1 + index % 7, size)
        tensors[f"{name}.lora_B.weight"] = torch.ones(size, 1 + index % 7)
    save_file(tensors, path, metadata)
    return path


def test_inspect_is_short_whatever_the_file_holds(tmp_path, capsys):
    header = {f"key {index}\n": "long " * 500 for index in range(300)}
    path = adapter(tmp_path / "many.safetensors", 60, header | {"ss_steps": "7\n8\n9" * 50}, size=8)
    assert main(["inspect", str(path)]) == 0
    short = capsys.readouterr().out
    assert len(short.splitlines()) <= MOST_LINES
    assert short.startswith("A lora of rank 1, 2, 3, 4, 5")
    assert "60 layers" in short.splitlines()[0]
    main(["inspect", str(path), "--verbose"])
    assert len(capsys.readouterr().out.splitlines()) > 300
    main(["inspect", str(path), "--prove", "--base", "embedded"])
    proved = capsys.readouterr().out
    assert len(proved.splitlines()) <= MOST_LINES
    assert proved.startswith(("Fine", "NOT FINE"))
    assert "A lora of rank 1, 2" in proved
