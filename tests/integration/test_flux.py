"""The second architecture trains through the same loop: FLUX dev and Kontext at a tiny size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from runs import metrics, tensors

from tests.fixtures.flux_base import make_flux_base
from trainer_core.adapter_files.write.adapter_file import layout_name
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection, RunConfig
from trainer_core.errors import AdapterError
from trainer_core.families.registry import get_family
from trainer_core.training import train


def make_images(folder, kontext):
    """Four images, with control images for Kontext."""
    random = np.random.default_rng(0)
    targets = folder / "training_images" if kontext else folder
    targets.mkdir(parents=True)
    for index in range(4):
        name = f"{index}.png"
        pixels = random.integers(0, 256, (64, 64, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(targets / name)
        (targets / f"{index}.txt").write_text(f"image {index}")
        if kontext:
            (folder / "control_images").mkdir(exist_ok=True)
            Image.fromarray(255 - pixels).save(folder / "control_images" / name)
    return folder


@pytest.mark.parametrize("kontext", [False, True], ids=["dev", "kontext"])
@pytest.mark.parametrize("kind", ["lora", "lokr"])
def test_tiny_flux_trains_resumes_and_exports(tmp_path, kontext, kind):
    base = make_flux_base(tmp_path / "base", kontext=kontext)
    # ComfyUI's fused layers hold no LoKr of their parts.
    layouts = ["comfyui", "diffusers", "peft", "lycoris", *(["kohya"] if kind == "lora" else [])]
    config = RunConfig.model_validate(
        {
            "family": "flux",
            "base": {"path": str(base)},
            "dataset": {"path": str(make_images(tmp_path / "data", kontext)), "resolution": 64},
            "adapter": {"kind": kind, "rank": 2},
            "training": {
                "steps": 4,
                "batch_size": 2,
                "precision": "fp32",
                "checkpoint_every": 2,
                "optimizer": {"learning_rate": 1e-2},
            },
            "memory": {"device": "cpu", "threads": 1},
            "preview": {
                "every": 4,
                "prompts": ["an image"],
                "controls": [[str(tmp_path / "data/control_images/0.png")]] if kontext else [],
                "width": 64,
                "height": 64,
                "steps": 2,
            },
            "output": {"dir": str(tmp_path / "output"), "layouts": layouts},
        }
    )
    result = train(config)
    assert result.status == "done"
    assert [path.parent.name for path in result.pictures] == ["000000", "000004"]
    first, last = (np.asarray(Image.open(path)) for path in result.pictures)
    assert not np.array_equal(first, last), "training changed no image"
    assert [path.name for path in result.adapters] == [
        layout_name("adapter", layout) for layout in layouts
    ]
    native, diffusers, *others = (
        tensors(path / "adapter_model.safetensors" if path.is_dir() else path)
        for path in result.adapters
    )
    for layout, names in zip(layouts[2:], others, strict=True):
        prefix = {"peft": "base_model.model.", "lycoris": "lycoris_", "kohya": "lora_unet_"}[layout]
        assert all(name.startswith(prefix) for name in names)
    assert any(name.startswith("diffusion_model.double_blocks.") for name in native)
    assert any(name.startswith("transformer.transformer_blocks.") for name in native)
    assert all(name.startswith("transformer.") for name in diffusers)
    assert all(torch.isfinite(tensor).all() for tensor in native.values())


def test_a_layout_that_cannot_hold_the_adapter_is_refused_before_training(tmp_path):
    base = make_flux_base(tmp_path / "base", kontext=False)
    config = {
        "family": "flux",
        "base": {"path": str(base)},
        "dataset": {"path": str(make_images(tmp_path / "data", False)), "resolution": 64},
        "adapter": {"kind": "lokr", "factor": -1, "rank": 2},
        "training": {"steps": 1, "precision": "fp32"},
        "memory": {"device": "cpu", "threads": 1},
        "output": {"dir": str(tmp_path / "output"), "layouts": ["comfyui", "kohya"]},
    }
    with pytest.raises(AdapterError, match="is one layer in this file"):
        train(RunConfig.model_validate(config))
    assert not list((tmp_path / "output").rglob("run.json"))


def test_unset_shift_is_the_bases_at_the_images_size_in_pixels(tmp_path):
    base = make_flux_base(tmp_path / "base", kontext=False)
    location = locate_base(BaseSection(path=str(base)), get_family("flux"), has_controls=False)
    shift = get_family("flux").training_shift(location, 64, 64)
    assert shift != get_family("flux").training_shift(location, 8 * 64, 8 * 64), "it never changes"
    data = str(make_images(tmp_path / "data", kontext=False))

    def sigma_mean(name, value):
        training = {
            "steps": 1,
            "precision": "fp32",
            "sigma": {"density": "shifted", "shift": value},
        }
        config = {
            "family": "flux",
            "base": {"path": str(base)},
            "dataset": {"path": data, "resolution": 64},
            "adapter": {"kind": "lora", "rank": 2},
            "training": training,
            "memory": {"device": "cpu", "threads": 1},
            "output": {"dir": str(tmp_path / "output"), "name": name},
        }
        folder = train(RunConfig.model_validate(config)).folder
        return metrics(folder)[0]["sigma_mean"]

    assert sigma_mean("unset", None) == sigma_mean("given", shift)
