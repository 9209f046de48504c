"""An edit base is trained with texts in turns, and now and then without its control images."""

import dataclasses

import pytest
import torch
from PIL import Image, ImageOps
from runs import noisy_images, run_config

from trainer_core.data.choose_view import Views
from trainer_core.families.registry import get_family
from trainer_core.training import SingleProcess, train
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare
from trainer_core.types import View

CAPTIONS = ["make it red, circle, green", "paint it blue, square, red"]
SEED = 7


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """Six images in two captions, each with a control image."""
    folder = tmp_path_factory.mktemp("pairs")
    for kind in ("training_images", "control_images"):
        noisy_images(folder / kind, 6)
    for number in range(6):
        (folder / "training_images" / f"{number}.txt").write_text(CAPTIONS[number % 2])
        image = folder / "control_images" / f"{number}.png"
        ImageOps.invert(Image.open(image)).save(image)
    return folder


def edit_run(folder, cache, pairs, /, **overrides):
    dataset = {
        "path": str(pairs),
        "resolution": 64,
        "caption_dropout": 0.1,
        "control_dropout": 0.3,
        "captions": {"shuffle": 4},
        **overrides.pop("dataset", {}),
    }
    base = {"path": "embedded", "variant": "edit"}
    return run_config(folder, cache, base=base, dataset=dataset, **overrides)


@pytest.fixture(scope="module")
def cached(pairs, tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def test_what_is_cached_is_exactly_what_can_be_trained(pairs, cached, tmp_path):
    config = edit_run(tmp_path, cached, pairs, training={"steps": 2})
    # Counted by hand: each of 6 images with 4 orders and no text; without control images 4 orders
    # of each of 2 captions and no text, which images share; 12 images in the VAE.
    assert train(config).step == 2
    assert len(list((cached / "text").iterdir())) == 6 * 5 + 2 * 4 + 1
    assert len(list((cached / "latents").iterdir())) == 12
    data = prepare(config, SilentObserver(), SingleProcess(torch.device("cpu")))
    assert (data.dataset.encoded, data.dataset.reused) == (0, 39 + 12)
    # All of them are trained in time: every file belongs to a view that is chosen.
    views, used = Views.of(config.dataset, SEED), set()
    for item in data.dataset.items:
        for step in range(1, 400):
            view = views.of_sample(item, step, 0, step)
            used.add(item.text_of(view).path)
    assert used == set((cached / "text").iterdir())


def test_without_control_the_text_and_the_velocity_are_those_of_text_to_image(pairs, cached):
    config = edit_run(cached, cached, pairs)
    data = prepare(config, SilentObserver(), SingleProcess(torch.device("cpu")))
    sample = data.dataset.load(0, View(0, controls=False))
    assert not sample.controls
    family = get_family("qwen_image")
    location = dataclasses.replace(data.location, variant="generate")
    generate = family.load_encoders(location, torch.float32, "cpu")
    plain = generate.encode_text(CAPTIONS[0])["text_embeddings"]
    torch.testing.assert_close(sample.conditioning["text_embeddings"], plain)
    given = data.dataset.load(0).conditioning["text_embeddings"]
    assert given.shape != plain.shape, "an image is part of the text"
