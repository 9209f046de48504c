"""The second architecture trains through the same loop: FLUX dev and Kontext at a tiny size."""

import numpy as np
import pytest
import torch
from PIL import Image
from runs import merge, noisy_images, tensors

from tests.fixtures.flux_base import make_flux_base
from trainer_core.adapter_files.write.write_adapter import layout_name
from trainer_core.config import RunConfig
from trainer_core.training import train


def make_images(folder, kontext):
    """Four images, with control images for Kontext."""
    if not kontext:
        return noisy_images(folder)
    for name in ("training_images", "control_images"):
        noisy_images(folder / name)
    return folder


def flux_run(tmp_path, *, kontext=False, **sections):
    """A run of a tiny base on four images."""
    usual = {
        "family": "flux",
        "base": {"path": str(make_flux_base(tmp_path / "base", kontext=kontext))},
        "dataset": {"path": str(make_images(tmp_path / "data", kontext)), "resolution": 64},
        "adapter": {"kind": "lora", "rank": 2},
        "training": {"steps": 1, "precision": "fp32"},
        "memory": {"device": "cpu", "threads": 1},
        "output": {"dir": str(tmp_path / "output")},
    }
    return RunConfig.model_validate(merge(usual, sections))


@pytest.mark.parametrize(("kontext", "kind"), [(False, "lora"), (True, "lokr")])
def test_tiny_flux_trains_and_exports(tmp_path, kontext, kind):
    # ComfyUI's fused layers hold no LoKr of their parts.
    layouts = ["comfyui", "diffusers", "peft", "lycoris", *(["kohya"] if kind == "lora" else [])]
    shown = [[str(tmp_path / "data/control_images/0.png")]] if kontext else []
    preview = {"every": 4, "prompts": ["an image"], "width": 64, "height": 64, "steps": 2}
    config = flux_run(
        tmp_path,
        kontext=kontext,
        adapter={"kind": kind},
        training={"steps": 4, "batch_size": 2, "optimizer": {"learning_rate": 1e-2}},
        preview={**preview, "controls": shown},
        output={"layouts": layouts, "dtype": "bf16" if kontext else "fp32"},
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
    assert {tensor.dtype for name, tensor in native.items() if "alpha" not in name} == {
        torch.bfloat16 if kontext else torch.float32
    }
