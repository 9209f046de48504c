"""A base that takes images apart trains through the same loop: samples of several frames."""

import numpy as np
import pytest
import torch
from PIL import Image
from runs import tensors

from tests.fixtures.qwen_base import make_qwen_base
from trainer_core.config import RunConfig
from trainer_core.inference.pipeline import sample_images
from trainer_core.training import train
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.cache_manifest import read_manifest
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest
from trainer_core.training.step.processes import SingleProcess

COUNTS = (1, 2, 1, 2, 1)
"""Layers of each image: a batch holds images with equally many."""


def make_layers(folder, counts=COUNTS):
    random = np.random.default_rng(0)
    for name in ("training_images", "layers"):
        (folder / name).mkdir(parents=True)
    for index, count in enumerate(counts):
        pixels = random.integers(0, 256, (64, 64, 4), dtype=np.uint8)
        Image.fromarray(pixels[..., :3]).save(folder / f"training_images/{index}.png")
        (folder / f"training_images/{index}.txt").write_text(f"image {index}")
        for layer in range(count):
            Image.fromarray(np.roll(pixels, 8 * layer + 8, 0)).save(
                folder / f"layers/{index}_{layer}.png"
            )
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_qwen_base(tmp_path_factory.mktemp("base"), "layered")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_layers(tmp_path_factory.mktemp("data") / "layered")


def config(base, data, output, **changes):
    values = {
        "family": "qwen_image",
        "base": {"path": str(base)},
        "dataset": {"path": str(data), "resolution": 64, "caption_dropout": 0.2},
        "cache": {"dir": str(output.parent / "cache")},
        "adapter": {"kind": "lora", "rank": 2, "targets": "all_linear"},
        "training": {
            "steps": 4,
            "batch_size": 2,
            "gradient_accumulation_steps": 2,
            "precision": "fp32",
            "checkpoint_every": 2,
            "optimizer": {"learning_rate": 1e-2},
        },
        "memory": {"device": "cpu", "threads": 1},
        "output": {"dir": str(output), "layouts": ["comfyui", "kohya"]},
    }
    for section, fields in changes.items():
        values[section] = {**values.get(section, {}), **fields}
    return RunConfig.model_validate(values)


@pytest.fixture(scope="module")
def finished(base, data, tmp_path_factory):
    """A whole run with previews, and preservation of what the base did before."""
    output = tmp_path_factory.mktemp("run") / "output"
    wanted = config(
        base,
        data,
        output,
        dataset={
            "path": str(data),
            "resolution": 64,
            "preservation": {"share": 0.5, "prompts": ["a thing"], "count": 1, "steps": 2},
        },
        preview={
            "every": 4,
            "prompts": ["an image"],
            "controls": [[str(data / "training_images/0.png")]],
            "guidance": 2.0,
            "width": 64,
            "height": 64,
            "steps": 2,
        },
    )
    return wanted, train(wanted)


def test_it_trains_exports_and_previews_an_image_with_its_layers(finished, tmp_path):
    wanted, result = finished
    assert result.status == "done"
    first, last = (Image.open(path) for path in result.pictures)
    # The whole image and one layer, as most images have, side by side and with transparency.
    assert (first.mode, first.size) == ("RGBA", (2 * 64, 64))
    assert np.asarray(first)[..., 3].std() > 0
    assert not np.array_equal(np.asarray(first), np.asarray(last)), "training changed no image"
    for layout, path in zip(("diffusion_model.", "lora_unet_"), result.adapters, strict=True):
        found = tensors(path)
        assert all(name.startswith(layout) for name in found)
        assert all(torch.isfinite(tensor).all() for tensor in found.values())
    # The verb generates as many layers as it is told.
    preview = wanted.preview.model_copy(update={"layers": 3})
    given = wanted.model_copy(update={"preview": preview})
    (image,) = sample_images(given, result.adapters[0], tmp_path)
    assert Image.open(image).size == (4 * 64, 64)


def test_a_finished_cache_holds_the_layers(finished):
    wanted, _ = finished
    prepared = prepare(wanted, SilentObserver(), SingleProcess(torch.device("cpu")))
    assert prepared.dataset.encoded == 0, "all is in the cache of the run"
    sample = prepared.dataset.load(1)
    assert sample.latents.shape == (6, 3, 8, 8)
    # The image is its own control image, and encoded once.
    assert torch.equal(sample.controls[0], sample.latents[:, 0])
    kept = read_manifest(save_manifest(wanted, prepared)).dataset
    assert kept.identity == prepared.dataset.identity
    assert torch.equal(kept.load(1).latents, sample.latents)
    assert kept.preserved[0].layers == 1
