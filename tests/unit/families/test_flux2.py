"""FLUX.2 against Diffusers' own pipelines, in float32 on tiny bases with random weights."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu
from safetensors.torch import save_file
from transformers import Mistral3Config, Mistral3ForConditionalGeneration

from tests.fixtures.families.record import as_pixels, coarse_image
from tests.fixtures.flux2_base import (
    BLOCKS,
    WIDTH,
    flux2_to_native,
    make_flux2_transformer,
    make_klein_base,
    make_klein_pipeline,
    make_klein_tokenizer,
)
from tests.fixtures.random_weights import randomize
from tests.fixtures.recorded_calls import relative_error
from trainer_core.bases.locate import detect_base, detect_variant, locate_base
from trainer_core.config import BaseSection
from trainer_core.diffusion.flow import sample_euler
from trainer_core.errors import BaseModelError, DatasetError
from trainer_core.families.chat_text import ChatEncoders
from trainer_core.families.family import guided_velocity
from trainer_core.families.flux2.encode import MISTRAL, control_size, flux2_vae
from trainer_core.families.flux2.predict import pad_text
from trainer_core.families.registry import get_family

FAMILY = get_family("flux2")
CAPTION = "two blue squares"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_klein_base(tmp_path_factory.mktemp("klein"))


@pytest.fixture(scope="module")
def pipeline():
    return make_klein_pipeline()


@pytest.fixture(scope="module")
def encoders(folder):
    return FAMILY.load_encoders(locate(folder), torch.float32, "cpu")


def locate(path, controls=False, **settings):
    needs = not str(path).endswith(".safetensors")
    return locate_base(BaseSection(path=str(path), **settings), FAMILY, controls, needs)


@pytest.mark.exhaustive
def test_a_whole_image_is_the_pipelines_with_and_without_guidance(folder, pipeline, encoders):
    location = locate(folder)
    transformer = FAMILY.load_transformer(location, torch.float32, "cpu")
    noise = torch.randn(1, 128, 2, 3, generator=torch.Generator().manual_seed(1))
    expected = pipeline(
        prompt=CAPTION,
        latents=noise,
        height=32,
        width=48,
        num_inference_steps=2,
        guidance_scale=4.0,
        output_type="pt",
    ).images
    texts = [encoders.encode_text(text) for text in (CAPTION, "")]
    decode = FAMILY.latents.load_vae(location, torch.float32, "cpu").decode
    sigmas = FAMILY.sampling_sigmas(location, 2, 48, 32)
    found, plain = (
        decode(
            sample_euler(
                guided_velocity(FAMILY, transformer, texts[:1], texts[1:], [], scale), noise, sigmas
            )
        )
        for scale in (4.0, 1.0)
    )
    torch.testing.assert_close(found / 2 + 0.5, expected, rtol=0, atol=1e-4)
    assert relative_error(plain, found) > 1e-3


def test_images_are_encoded_as_the_pipeline_does(folder, pipeline):
    shown = as_pixels(coarse_image(64, 96))
    with torch.no_grad():
        expected = pipeline._encode_vae_image(shown, generator=None)
    vae = FAMILY.latents.load_vae(locate(folder), torch.float32, "cpu")
    found = vae.encode(shown)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert found.shape[1:] == FAMILY.latent_shape(locate(folder), 64, 96)
    without = flux2_vae(pipeline.vae).model.encode(shown).latent_dist.mode()
    assert relative_error(torch.nn.functional.pixel_unshuffle(without, 2), expected) > 1e-2


def test_captions_are_encoded_as_the_pipeline_does(folder, pipeline, encoders):
    for caption in (CAPTION, "", "long " * 200):
        with torch.no_grad():
            expected, _ = pipeline.encode_prompt(caption)
        found = encoders.encode_text(caption)["text_embeddings"]
        assert found.shape == (512, 3 * WIDTH)
        torch.testing.assert_close(found, expected[0], rtol=0, atol=1e-5)
    count = FAMILY.text.load_token_counter(locate(folder))
    assert count("ab", 0) == count("a", 0) + 1
    with pytest.raises(DatasetError, match="1 control images"):
        encoders.encode_text(CAPTION, [coarse_image(64, 96)])


def small_mistral():
    sizes = {"hidden_size": WIDTH, "intermediate_size": 24, "num_attention_heads": 2}
    text = {**sizes, "num_hidden_layers": BLOCKS + 3, "num_key_value_heads": 1, "head_dim": 8}
    text |= {"vocab_size": 300, "model_type": "mistral"}
    vision = {**sizes, "num_hidden_layers": 1, "image_size": 28, "patch_size": 14, "head_dim": 8}
    config = Mistral3Config(text_config=text, vision_config={**vision, "model_type": "pixtral"})
    return randomize(Mistral3ForConditionalGeneration(config), 5)


def test_devs_texts_are_the_pipelines_without_the_padding_and_padded_as_comfyui_does():
    from diffusers import Flux2Pipeline

    model, words = small_mistral(), make_klein_tokenizer()

    def template(messages, **options):
        (system, user) = messages[0]
        said = system["content"][0]["text"], user["content"][0]["text"]
        text = f"[SYSTEM_PROMPT]{said[0]}[/SYSTEM_PROMPT][INST]{said[1]}[/INST]"
        ids = torch.tensor([words(text).input_ids])
        mask = torch.ones_like(ids)
        return {"input_ids": ids, "attention_mask": mask}

    with torch.no_grad():
        expected = Flux2Pipeline._get_mistral_3_small_prompt_embeds(
            model, SimpleNamespace(apply_chat_template=template), CAPTION
        )[0]
    encoders = ChatEncoders(MISTRAL, words, model, None, 512, (0, 0), "generate")  # type: ignore
    found = encoders.encode_text(CAPTION)["text_embeddings"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    padded = pad_text([found, found[:20]])
    assert padded.shape == (2, 512, 3 * WIDTH)
    assert torch.equal(padded[0, -len(found) :], found)
    assert not padded[0, : -len(found)].any()
    assert torch.equal(padded[1, -20:], found[:20])


@pytest.mark.parametrize("tokens", [64, 4300, 4301, 8100])
def test_the_noise_levels_are_those_of_the_pipeline(folder, tokens):
    location = locate(folder)
    for steps in (4, 28, 50):
        mu = FAMILY.prediction.shift(location, steps).mu
        assert mu is not None
        assert mu(tokens) == pytest.approx(compute_empirical_mu(tokens, steps), abs=1e-9)


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((640, 480), (640, 480)),
        ((650, 495), (640, 480)),
        ((2048, 2048), (1024, 1024)),
        ((9, 9), (16, 16)),
    ],
)
def test_references_keep_their_size_unless_they_are_large(size, expected):
    assert control_size(*size, 1024 * 1024) == expected


def native(guidance, joint=3 * WIDTH):
    state = make_flux2_transformer(guidance, joint=joint).state_dict()
    return flux2_to_native(state)


@pytest.mark.parametrize("naming", ["native", "diffusers"])
def test_a_file_of_klein_is_the_same_denoiser(naming, tmp_path):
    """It has no guidance; dev's files are those of the record."""
    path, expected = tmp_path / "base.safetensors", make_flux2_transformer(False).state_dict()
    tensors = expected
    if naming == "native":
        tensors = {f"model.diffusion_model.{name}": each for name, each in native(False).items()}
    save_file({name: each.contiguous() for name, each in tensors.items()}, path)
    assert detect_base(path) == "flux2"
    assert detect_variant(path, FAMILY) is None
    found = FAMILY.load_transformer(locate(path), torch.float32, "cpu").state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_a_distilled_folder_says_so_itself(folder, tmp_path):
    assert FAMILY.distilled(locate(folder)) == ""
    distilled = tmp_path / "named-base"
    shutil.copytree(folder, distilled)
    index = json.loads((distilled / "model_index.json").read_text())
    (distilled / "model_index.json").write_text(json.dumps({**index, "is_distilled": True}))
    with pytest.raises(BaseModelError, match="distilled") as error:
        locate(distilled)
    assert "klein base" in error.value.remedy
