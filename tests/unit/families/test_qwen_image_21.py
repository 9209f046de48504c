"""Qwen-Image 2.1 against Diffusers, beyond what every family's record shows; ComfyUI has none."""

import dataclasses

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.fixtures.families.qwen_image_21 import AREA, clear_image, small, to_comfyui
from tests.fixtures.qwen21_base import (
    SCHEDULER,
    WIDTH,
    make_qwen21_base,
    make_qwen21_transformer,
    open_qwen21_pipeline,
)
from tests.fixtures.recorded_calls import relative_error
from trainer_core.bases.distilled import distilled_note
from trainer_core.bases.locate import detect_base, locate_base
from trainer_core.config import BaseSection
from trainer_core.data.image import on_white, to_pixels
from trainer_core.errors import BaseModelError
from trainer_core.families.qwen_image_21.predict import BEFORE_IMAGE, prepare
from trainer_core.families.registry import get_family

FAMILY = get_family("qwen_image_21")
CAPTION = "a red circle on a green field"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_qwen21_base(tmp_path_factory.mktemp("base"))


def locate(path, controls=False, **settings):
    section = BaseSection(path=str(path), **settings)
    return locate_base(section, FAMILY, has_controls=controls)


@pytest.fixture(scope="module")
def encoders(folder):
    return {
        edits: FAMILY.load_encoders(locate(folder, edits), torch.float32, "cpu")
        for edits in (False, True)
    }


@pytest.fixture(scope="module")
def pipeline(folder):
    return open_qwen21_pipeline(folder)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def inputs(lengths, sizes=(), seed=0):
    """Latents, sigma, conditionings and controls; ``lengths`` of the texts before each image."""
    batch = len(lengths)
    texts = []
    for index, runs in enumerate(lengths):
        rows = [randn(run, WIDTH, seed=seed + 10 * index + at) for at, run in enumerate(runs)]
        before = {BEFORE_IMAGE.format(at + 1): run for at, run in enumerate(rows[:-1])}
        texts.append({**before, "text_embeddings": rows[-1]})
    controls = [randn(batch, 8, *size, seed=at + 50) for at, size in enumerate(sizes)]
    return randn(batch, 8, 4, 6, seed=9), torch.linspace(0.3, 0.8, batch), texts, controls


CASES = {
    "text": ([(7,), (7,)], ()),
    "one reference": ([(3, 5), (3, 5)], [(4, 4)]),
    "references side by side": ([(2, 0, 4)], [(4, 2), (2, 6)]),
}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_model_that_was_prepared_computes_what_diffusers_does(case, causal):
    transformer, given = make_qwen21_transformer(causal_condition=causal), inputs(*CASES[case])
    plain = FAMILY.prediction.predict(transformer, *given)
    prepare(transformer)
    assert relative_error(FAMILY.prediction.predict(transformer, *given), plain) <= 1e-5
    given[0].mul_(1.01)
    assert relative_error(FAMILY.prediction.predict(transformer, *given), plain) > 1e-4


@pytest.mark.parametrize("lengths", [[(5,), (5,)], [(5,), (3,)]])
def test_processes_that_share_the_weights_call_the_model_equally_often(lengths):
    """Each call gathers weights from all processes, whose samples have texts of other lengths."""
    from torch.distributed.fsdp import FSDPModule

    transformer, calls = make_qwen21_transformer(), []
    transformer.register_forward_hook(lambda *_: calls.append(1))
    plain = FAMILY.prediction.predict(transformer, *inputs(lengths))
    assert len(calls) == len(set(lengths))
    calls.clear()
    # As torch's fully_shard does it.
    kind = type(transformer)
    transformer.__class__ = type(f"FSDP{kind.__name__}", (FSDPModule, kind), {})
    assert relative_error(FAMILY.prediction.predict(transformer, *inputs(lengths)), plain) <= 1e-5
    assert len(calls) == len(lengths)


def test_texts_are_the_pipelines(encoders, pipeline):
    for caption in (CAPTION, "", "{braces} in it"):
        expected, _, _ = pipeline.encode_prompt(caption)
        found = encoders[False].encode_text(caption)["text_embeddings"]
        assert relative_error(found, expected[0]) <= 1e-4
    # The trap: behind the model's own last norm they are others.
    norm = pipeline.text_encoder.model.language_model.norm
    assert relative_error(norm(found), expected[0]) > 0.01


def test_texts_with_references_are_the_pipelines(encoders, pipeline):
    images = [clear_image(64, 96, 1), clear_image(64, 32, 2)]
    expected, _, places = pipeline.encode_prompt(CAPTION, image=images)
    found = encoders[True].encode_text(CAPTION, [on_white(each) for each in images])
    assert list(found) == [BEFORE_IMAGE.format(1), BEFORE_IMAGE.format(2), "text_embeddings"]
    assert places.sum() == 2 * 3 + 2 * 1
    assert relative_error(torch.cat(list(found.values())), expected[~places]) <= 1e-4
    runs = [int(each) for each in places[0].int().diff().nonzero()]
    starts = [len(found[BEFORE_IMAGE.format(1)]), runs[1] + 1 + len(found[BEFORE_IMAGE.format(2)])]
    assert starts == [runs[0] + 1, runs[2] + 1]
    # What is seen counts: other images are other texts.
    other = encoders[True].encode_text(CAPTION, [on_white(each.rotate(180)) for each in images])
    assert relative_error(other["text_embeddings"], found["text_embeddings"]) > 1e-4


def test_a_long_caption_is_cut_and_an_image_is_not(folder):
    location = dataclasses.replace(locate(folder, True), text_length=8)
    short = FAMILY.load_encoders(location, torch.float32, "cpu")
    found = short.encode_text("x" * 100, [Image.new("RGB", (64, 64))])
    # The tag's end closes the image; nothing of the caption is left.
    assert len(found["text_embeddings"]) == 1
    count = FAMILY.text.load_token_counter(location)
    assert count(CAPTION, 1) > count(CAPTION, 0) > len(CAPTION)


def test_the_vae_reads_and_gives_transparency(encoders, pipeline):
    pixels = to_pixels(clear_image(96, 64, 3), 4)[None]
    found = encoders[False].encode_image(pixels)
    expected = pipeline._encode_vae_image(pixels.unsqueeze(2), None)[:, :, 0]
    assert found.shape == (1, 8, 4, 6)
    assert relative_error(found, expected) <= 1e-5
    opaque = torch.cat([pixels[:, :3], torch.ones_like(pixels[:, :1])], dim=1)
    assert relative_error(encoders[False].encode_image(opaque), expected) > 1e-3
    decoded = encoders[False].vae.decode(found)
    config = pipeline.vae.config
    mean, std = (torch.tensor(each)[:, None, None] for each in
                 (config.latents_mean, config.latents_std))  # fmt: skip
    plain = pipeline.vae.decode((found * std + mean).unsqueeze(2), return_dict=False)[0][:, :, 0]
    assert decoded.shape == (1, 4, 64, 96)
    assert relative_error(decoded, plain.clamp(-1, 1)) <= 1e-4


def test_noise_levels_are_the_pipelines(folder, pipeline):
    found = FAMILY.sampling_sigmas(locate(folder), 4, 1024, 512)
    tokens = 64 * 32
    mu = 0.5 + (1.15 - 0.5) / (4096 - 256) * (tokens - 256)
    pipeline.scheduler.set_timesteps(sigmas=[1.0, 0.75, 0.5, 0.25], mu=mu)
    assert torch.allclose(found, pipeline.scheduler.sigmas, atol=1e-6)
    assert FAMILY.latent_shape(locate(folder), 1024, 512) == (8, 32, 64)


@pytest.fixture(scope="module")
def large():
    return small()


@pytest.mark.parametrize("native", [False, True], ids=["diffusers", "comfyui"])
def test_single_files_are_read_by_either_naming(tmp_path, folder, large, native):
    state = large.state_dict()
    names = to_comfyui(state) if native else state
    path = tmp_path / "qwen_image_2.1_bf16.safetensors"
    save_file({f"model.diffusion_model.{k}": v.contiguous() for k, v in names.items()}, path)
    assert detect_base(path) == "qwen_image_21"
    location = locate(path, encoders=str(folder))
    assert location.variant == "generate"
    assert locate(path, True, encoders=str(folder)).variant == "edit_plus"
    loaded = FAMILY.load_transformer(location, torch.float32, "cpu")
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, state[name])
    given = inputs(*CASES["one reference"])
    expected = FAMILY.prediction.predict(large, *given)
    assert relative_error(FAMILY.prediction.predict(loaded, *given), expected) <= 1e-5
    # Tables that no file holds are computed, also for Diffusers' own way of computing.
    del loaded.forward
    assert relative_error(FAMILY.prediction.predict(loaded, *given), expected) <= 1e-5
    # The scheduler beside the encoders counts, as a file has none.
    assert FAMILY.prediction.shift(location, 4).terminal == SCHEDULER["shift_terminal"]
    assert (
        FAMILY.prediction.shift(dataclasses.replace(location, encoders=tmp_path), 4).terminal
        is None
    )


def test_turbo_is_told_by_its_noise_levels_or_its_name(tmp_path, large):
    turbo = make_qwen21_base(tmp_path / "model", sample_sigmas=[1.0, 0.9, 0.4])
    with pytest.raises(BaseModelError) as error:
        locate(turbo)
    assert "distilled" in error.value.found
    assert "train on Qwen-Image 2.1" in error.value.remedy
    section = BaseSection(path=str(turbo), distilled="train")
    location = locate_base(section, FAMILY, has_controls=False)
    assert "3 steps" in distilled_note(section, FAMILY, location)
    path = tmp_path / "qwen_image_2.1_turbo.safetensors"
    save_file(large.state_dict(), path)
    with pytest.raises(BaseModelError, match="turbo"):
        locate(path, encoders=str(turbo))


def test_a_guided_image_with_references_is_the_pipelines(folder, encoders, pipeline):
    """The whole way, transparency included: what the trainer's preview shows."""
    from trainer_core.inference.sampler import Sampler, SampleRequest, SampleSettings

    location, images = locate(folder, True), [clear_image(64, 64, 5)]
    transformer = FAMILY.load_transformer(location, torch.float32, "cpu")
    side = FAMILY.latents.control_size(*images[0].size, AREA)
    shown = [each.resize(side, Image.Resampling.LANCZOS) for each in images]
    seen = [on_white(each) for each in shown]
    texts = [encoders[True].encode_text(each, seen) for each in (CAPTION, "dull")]
    controls = tuple(encoders[True].encode_image(to_pixels(each, 4)[None])[0] for each in shown)
    request = SampleRequest(*texts, controls, seed=3)
    decode = encoders[True].vae.decode
    sampler = Sampler(FAMILY, location, transformer, decode, torch.device("cpu"))
    found = sampler.sample([request], SampleSettings(96, 64, 2, 3.0))
    noise = torch.randn(8, 4, 6, generator=torch.Generator().manual_seed(3))[None]
    expected = pipeline(
        prompt=CAPTION,
        negative_prompt="dull",
        true_cfg_scale=3.0,
        image=images,
        output_resolution=64,
        latents=noise.flatten(2).mT,
        width=96,
        height=64,
        num_inference_steps=2,
        output_type="pt",
    ).images
    assert found.shape == (1, 4, 64, 96)
    assert (found / 2 + 0.5 - expected).abs().max() <= 1e-4
