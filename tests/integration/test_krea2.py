"""Krea 2 from template to adapter: encoded, trained and sampled, on dense and packed bases."""

from pathlib import Path

import pytest
import torch
from runs import command, noisy_images
from safetensors import safe_open

from tests.fixtures.krea2_base import make_krea2_base
from trainer_core.bases.adapter_family import adapter_family


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_krea2_base(tmp_path_factory.mktemp("krea2") / "base")


@pytest.mark.parametrize(
    "memory",
    [[], ["memory.base_format=int8", "memory.blocks_to_swap=1"]],
    ids=["dense", "packed and swapped"],
)
def test_a_run_goes_from_template_to_adapter(memory, base, tmp_path, capsys, monkeypatch):
    (template,) = command(capsys, "template", "krea2")
    assert "path: krea/Krea-2-Raw" in template["run_file"]
    (tmp_path / "run.yaml").write_text(template["run_file"])
    noisy_images(tmp_path / "images", 2)
    (tmp_path / "images" / "1.txt").write_text("a text that is longer than the other")
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
