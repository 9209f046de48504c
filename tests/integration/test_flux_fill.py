"""FLUX.1 Fill trains through the same loop: on masks that are drawn, and on those of a dataset."""

import numpy as np
import pytest
from PIL import Image
from runs import CancelAfter, noisy_images
from safetensors.torch import load_file

from tests.fixtures.combinations import some
from tests.fixtures.flux_base import make_fill_base
from trainer_core.commands.doctor import run_report
from trainer_core.config import RunConfig
from trainer_core.errors import ConfigError
from trainer_core.training import train

SHOWN = {"every": 2, "prompts": ["an image"], "steps": 2, "width": 84}
SIZE, FAST = 64, {"steps": 2, "batch_size": 2, "precision": "fp32"}


def write_images(folder, own_masks):
    """Two images, or these with control images whose upper half is transparent."""
    if not own_masks:
        return noisy_images(folder, 2)
    noisy_images(folder / "training_images", 2)
    (folder / "control_images").mkdir()
    alpha = np.full((SIZE, SIZE), 255, np.uint8)
    alpha[: SIZE // 2] = 0
    for path in (folder / "training_images").glob("*.png"):
        image = Image.open(path)
        image.putalpha(Image.fromarray(alpha))
        image.save(folder / "control_images" / path.name)
    return folder


def run_file(tmp_path, own_masks, **dataset):
    data = write_images(tmp_path / "data", own_masks)
    shown = next(data.rglob("0.png"))
    return RunConfig.model_validate(
        {
            "family": "flux",
            "base": {"path": str(make_fill_base(tmp_path / "base"))},
            "dataset": {"path": str(data), "resolution": SIZE, **dataset},
            "adapter": {"kind": "lora", "rank": 2, "targets": "all_linear"},
            "training": {**FAST, "optimizer": {"learning_rate": 1e-2}},
            "memory": {"device": "cpu", "threads": 1},
            "preview": {**SHOWN, "height": SIZE, "guidance": 30.0, "controls": [[str(shown)]]},
            "output": {"dir": str(tmp_path / "output")},
        }
    )


@pytest.mark.parametrize("masks", some(["drawn", "own"], "own"))
def test_tiny_fill_trains_and_shows_filled_images(tmp_path, masks):
    own_masks = masks == "own"
    config = run_file(tmp_path, own_masks)
    result = train(config, hears := CancelAfter())
    assert "84 x 64 become 80 x 64" in " ".join(hears.said())
    first, last = (np.asarray(Image.open(path)) for path in result.pictures)
    assert first.shape == (SIZE, SIZE + 16, 3)
    assert not np.array_equal(first, last), "training changed no image"
    (adapter,) = result.adapters
    shapes = {name: tuple(tensor.shape) for name, tensor in load_file(adapter).items()}
    assert shapes["diffusion_model.img_in.lora_down.weight"] == (2, 2 * 16 + 256)
    masks = []
    for path in sorted((tmp_path / "output" / "cache" / "latents").iterdir()):
        latents = load_file(path)["latents"]
        if len(latents) == 4 + 64:
            masks.append(latents[4:])
    assert len(masks) == 2
    for mask in masks:
        assert set(mask.unique().tolist()) <= {0.0, 1.0}
        if own_masks:
            assert (mask[:, : mask.shape[1] // 2] == 1).all()
            assert (mask[:, mask.shape[1] // 2 :] == 0).all()
    again = train(config.model_copy(update={"output": config.output}))
    assert again.losses == result.losses, "the masks are others"


def test_doctor_estimates_with_the_masked_image_and_refuses_another_size_of_it(tmp_path):
    report, problems = run_report(run_file(tmp_path, True))
    assert not problems
    assert "activations" in report["memory_estimate"], "the step could not be simulated"
    with pytest.raises(ConfigError, match="fills images"):
        train(run_file(tmp_path / "other", True, control_area=4096))
