"""Diffusers' own pipelines load the embedded base and our files, and draw our images."""

import pytest
import torch
from PIL import Image
from runs import run_config

from tests.fixtures.qwen_base import open_qwen_pipeline
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.demo.run import dataset_folder
from trainer_core.families.diffusers_parts import pack
from trainer_core.families.registry import get_family
from trainer_core.inference.pipeline import open_pipeline
from trainer_core.inference.sampler import SampleSettings

FAMILY = get_family("qwen_image")
FOLDER = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False).folder
SIZE = 64
PIPELINE_AREA = 1024 * 1024


def noise(seed):
    shape = FAMILY.latent_shape(
        locate_base(BaseSection(), get_family("qwen_image"), False), SIZE, SIZE
    )
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def drawn_by_pipeline(pipeline, prompt, seed, steps, guidance, **given):
    image = pipeline(
        prompt=prompt,
        negative_prompt="",
        true_cfg_scale=guidance,
        latents=pack(noise(seed)[None]),
        width=SIZE,
        height=SIZE,
        num_inference_steps=steps,
        output_type="pt",
        **given,
    ).images
    return image * 2 - 1


@pytest.fixture(scope="module")
def studio(tmp_path_factory):
    work = tmp_path_factory.mktemp("studio")
    return open_pipeline(run_config(work, work / "cache"), has_controls=False)


@pytest.fixture(scope="module")
def pipeline():
    import transformers
    from diffusers import QwenImagePipeline

    # Transformers 4 knows the tokenizer that model_index.json names by the files of its slow
    # variant alone, and Diffusers takes no other class from `from_pretrained`.
    old = int(transformers.__version__.split(".")[0]) < 5
    loaded = QwenImagePipeline.from_pretrained(FOLDER, **({"tokenizer": None} if old else {}))
    if old:
        tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER / "tokenizer")
        loaded.register_modules(tokenizer=tokenizer)
    loaded.set_progress_bar_config(disable=True)
    return loaded


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_pipeline_from_the_folder_draws_our_image(studio, pipeline, guidance):
    prompt = "a red circle on a blue background"
    expected = drawn_by_pipeline(pipeline, prompt, 5, 8, guidance)
    request = studio.request(prompt, 5)
    found = studio.sample([request], SampleSettings(SIZE, SIZE, 8, guidance))
    assert expected.std() > 0.05, "a flat image would prove nothing"
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_many_images_at_once_are_the_single_ones(studio):
    prompts = ["a red circle on a blue background", "white cross on green"]
    requests = [studio.request(text, seed) for seed, text in enumerate(prompts)]
    size = SampleSettings(SIZE, SIZE, 6, 3.0)
    together = studio.sample(requests, size)
    for index, request in enumerate(requests):
        torch.testing.assert_close(
            studio.sample([request], size)[0], together[index], atol=1e-3, rtol=0
        )


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.parametrize("variant", ["edit", "edit_plus"])
def test_edit_pipelines_from_the_folder_draw_our_images(tmp_path, variant):
    """The pipelines resize controls to an area of 1024 x 1024, so ours does it here too."""
    pipeline = open_qwen_pipeline(FOLDER, variant)
    config = run_config(tmp_path, tmp_path / "cache", base={"variant": variant})
    studio = open_pipeline(config, has_controls=True)
    image = dataset_folder("edit") / "control_images" / "001.png"
    control = Image.open(image).convert("RGB")
    given = {"image": [control] if variant == "edit_plus" else control}
    prompt = "make the shape green"
    expected = drawn_by_pipeline(pipeline, prompt, 0, 2, 1.0, **given)
    side = FAMILY.latents.control_size(*control.size, PIPELINE_AREA)
    shown = control.resize(side, Image.Resampling.LANCZOS)
    found = studio.sample([studio.request(prompt, 0, [shown])], SampleSettings(SIZE, SIZE, 2, 1.0))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
