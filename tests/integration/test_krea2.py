"""Krea 2 from template to adapter: encoded, trained and sampled, on dense and packed bases."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import safe_open

from tests.fixtures.krea2_base import make_krea2_base
from trainer_core.bases.adapter_family import adapter_family
from trainer_core.cli import main


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_krea2_base(tmp_path_factory.mktemp("krea2") / "base")


def command(capsys, *words):
    """What a command prints as JSON; it ends well."""
    code = main([*map(str, words), "--json"])
    lines = capsys.readouterr().out.splitlines()
    assert code == 0, lines
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    "memory",
    [[], ["memory.base_format=int8", "memory.blocks_to_swap=1"]],
    ids=["dense", "packed and swapped"],
)
def test_a_run_goes_from_template_to_adapter(memory, base, tmp_path, capsys, monkeypatch):
    (template,) = command(capsys, "template", "krea2")
    assert "path: krea/Krea-2-Raw" in template["run_file"]
    (tmp_path / "run.yaml").write_text(template["run_file"])
    (tmp_path / "images").mkdir()
    for index, caption in enumerate(("one", "a text that is longer than the other")):
        pixels = np.random.default_rng(index).integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / "images" / f"{index}.png")
        (tmp_path / "images" / f"{index}.txt").write_text(caption)
    monkeypatch.chdir(tmp_path)
    settings = [
        f"base.path={base}",
        "dataset.resolution=64",
        "adapter.targets=all_linear",
        "training.steps=2",
        "training.batch_size=2",
        "training.schedule.warmup_steps=0",
        "training.precision=fp32",
        "preview.prompts=[an image]",
        "preview.every=2",
        "preview.width=64",
        "preview.height=64",
        "preview.steps=2",
        "memory.device=cpu",
        "output.layouts=[comfyui]",
        *memory,
    ]
    result = command(capsys, "train", "run.yaml", *settings)[-1]["result"]
    (adapter,) = result["adapters"]
    assert adapter_family(Path(adapter), any_size=True).name == "krea2"
    with safe_open(adapter, "pt") as file:
        names = list(file.keys())
        assert file.metadata()["modelspec.architecture"] == "Krea-2/lora"
        assert all(torch.isfinite(file.get_tensor(name)).all() for name in names)
    # Two blocks, four of the text's, and seven layers outside them.
    assert sum(name.endswith(".alpha") for name in names) == 6 * 8 + 7
    assert len(result["pictures"]) == 2
