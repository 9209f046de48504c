"""Images from a run file and an adapter file."""

import gc
import weakref

import numpy as np
import pytest
import torch
from PIL import Image

from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters import attach
from trainer_core.config import RunConfig
from trainer_core.data.image import from_pixels
from trainer_core.demo.run import dataset_folder
from trainer_core.errors import ConfigError
from trainer_core.inference.encoder_source import LazyEncoders
from trainer_core.inference.pipeline import open_pipeline, sample_images, sample_prompts
from trainer_core.inference.sampler import SampleSettings

PROMPTS = ["a red circle on a blue background", "a white cross on a green background"]


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


def run_config(cache, **preview):
    return RunConfig.model_validate(
        {
            "cache": {"dir": str(cache)},
            "training": {"precision": "fp32"},
            "memory": {"device": "cpu", "threads": 1},
            "preview": {"prompts": PROMPTS, "width": 64, "height": 64, "steps": 3, **preview},
        }
    )


@pytest.fixture(scope="module")
def adapter_file(tmp_path_factory, cache):
    """An adapter of random factors, large enough to change every image."""
    config = run_config(cache)
    pipeline = open_pipeline(config, has_controls=False)
    family, transformer = pipeline.sampler.family, pipeline.sampler.transformer
    settings = config.adapter.model_copy(update={"kind": "lora", "rank": 2, "alpha": 1.0})
    adapter = attach(transformer, settings, presets=family.layers.presets)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in adapter.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    path = tmp_path_factory.mktemp("adapter") / "a.safetensors"
    write_adapter(path, adapter.state(), "comfyui", family.layers.key_map, {})
    return path


def drawn(paths):
    return [np.asarray(Image.open(path), dtype=np.int16) for path in paths]


@pytest.mark.exhaustive
def test_one_image_for_each_prompt_with_seeds_counting_up(tmp_path, cache):
    config = run_config(cache, seed=5, guidance=2.0, negative_prompt="a red square")
    paths = sample_images(config, None, tmp_path / "new" / "folder")
    assert paths == [tmp_path / "new" / "folder" / f"{index}.png" for index in (0, 1)]
    pipeline = open_pipeline(config, has_controls=False)
    size = SampleSettings(64, 64, 3, 2.0)
    for index, (found, text) in enumerate(zip(drawn(paths), PROMPTS, strict=True)):
        request = pipeline.request(text, 5 + index, negative="a red square")
        expected = np.asarray(from_pixels(pipeline.sample([request], size)[0]), dtype=np.int16)
        assert np.array_equal(found, expected)


def test_control_images_choose_the_editing_base(tmp_path, cache):
    controls = [dataset_folder("edit") / "control_images" / name for name in ("001.png", "002.png")]
    # A width that no base has: what is generated is smaller, and so are its control images.
    preview = {"prompts": ["make the shape green"] * 2, "seed": 3, "steps": 4, "width": 72}
    listed = [[str(path)] for path in controls]
    one, two = drawn(sample_images(run_config(cache, controls=listed, **preview), None, tmp_path))
    assert np.abs(one - two).mean() > 5, "the control images have no effect"
    listed[1] = [str(tmp_path / "absent.png")]
    with pytest.raises(ConfigError, match=r"preview\.controls: .*absent\.png is not a file"):
        sample_images(run_config(cache, controls=listed, **preview), None, tmp_path)


def test_encoders_are_gone_before_the_denoiser_is_loaded(tmp_path, adapter_file):
    """Together they would need the memory of both."""
    seen = []

    def denoisers():
        gc.collect()
        names = (type(each).__name__ for each in gc.get_objects())
        return sum(name == "QwenImageTransformer2DModel" for name in names)

    # Other tests of this process may hold some.
    before = denoisers()

    class Watched(LazyEncoders):
        def open(self):
            encoders = super().open()
            seen.append(weakref.ref(encoders.text_encoder))
            return encoders

        def close(self):
            super().close()
            seen.append(denoisers())

    def make(family, location):
        config = run_config(tmp_path)
        assert seen == []
        return Watched(config, family, location, torch.device("cpu"))

    images = sample_prompts(run_config(tmp_path), adapter_file, make_source=make)
    gc.collect()
    next(images)
    gc.collect()
    *texts, held = seen
    assert len(texts) == len(PROMPTS)
    assert [each() for each in texts] == [None] * len(texts)
    assert held == before
