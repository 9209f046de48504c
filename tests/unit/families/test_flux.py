"""FLUX.1 beside what its record shows: texts, the VAE, guidance by two passes, control images."""

from types import SimpleNamespace

import pytest
import torch
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution

from tests.fixtures.families.record import as_pixels, coarse_image
from tests.fixtures.flux_base import make_flux_base, make_flux_pipeline
from tests.fixtures.recorded_calls import RecordedCalls, relative_error
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.diffusion.flow import sample_euler
from trainer_core.errors import DatasetError
from trainer_core.families.diffusers_parts import pack
from trainer_core.families.family import guided_velocity
from trainer_core.families.registry import get_family

FAMILY = get_family("flux")
SIZE = 64
CAPTIONS = ["a red circle", "two blue squares on a green background"]
NEGATIVE = "dull"


def opened(folder, kontext=False, guidance=True):
    """One folder, opened by Diffusers and by us."""
    make_flux_base(folder, kontext, guidance)
    section = BaseSection(path=str(folder), text_length=64)
    location = locate_base(section, FAMILY, has_controls=kontext)
    return SimpleNamespace(
        location=location,
        pipeline=make_flux_pipeline(kontext, guidance),
        encoders=FAMILY.load_encoders(location, torch.float32, "cpu"),
    )


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    return opened(tmp_path_factory.mktemp("dev"))


def test_bases_that_are_not_distilled_are_guided_by_a_second_pass(tmp_path):
    base, calls = opened(tmp_path, guidance=False), RecordedCalls()
    calls.watch(base.pipeline.transformer)
    noise = torch.randn(1, 4, SIZE // 8, SIZE // 8, generator=torch.Generator().manual_seed(5))
    expected = base.pipeline(
        prompt=CAPTIONS[0],
        negative_prompt=NEGATIVE,
        true_cfg_scale=3.0,
        latents=pack(noise),
        width=SIZE,
        height=SIZE,
        max_sequence_length=64,
        num_inference_steps=2,
        output_type="latent",
    ).images
    assert len(calls.inputs) == 4
    transformer = FAMILY.load_transformer(base.location, torch.float32, "cpu")
    assert not FAMILY.prediction.takes_guidance(transformer)
    texts = [base.encoders.encode_text(text) for text in (CAPTIONS[0], NEGATIVE)]
    sigmas, drawn = FAMILY.sampling_sigmas(base.location, 2, SIZE, SIZE), {}
    for scale in (1.0, 3.0):
        velocity = guided_velocity(FAMILY, transformer, texts[:1], texts[1:], [], scale)
        drawn[scale] = sample_euler(velocity, noise, sigmas)
    assert relative_error(pack(drawn[3.0]), expected) <= 1e-5
    assert relative_error(drawn[1.0], drawn[3.0]) > 1e-2


@pytest.mark.parametrize("length", [16, 512])
def test_captions_are_encoded_as_the_pipeline_does(dev, monkeypatch, length):
    monkeypatch.setattr(dev.encoders, "text_length", length)
    for caption in (*CAPTIONS, "", "long " * 200):
        with torch.no_grad():
            expected, pooled, _ = dev.pipeline.encode_prompt(caption, max_sequence_length=length)
        found = dev.encoders.encode_text(caption)
        assert found["text_embeddings"].shape == (length, 32)
        torch.testing.assert_close(found["text_embeddings"], expected[0])
        torch.testing.assert_close(found["pooled_text"], pooled[0])


def test_images_are_encoded_and_decoded_as_the_pipeline_does(dev):
    config = dev.pipeline.vae.config
    image = as_pixels(coarse_image(SIZE, 96, 5))
    with torch.no_grad():
        moments = dev.pipeline.vae._encode(image)
    mode = DiagonalGaussianDistribution(moments).mode()
    found = dev.encoders.encode_image(image)
    torch.testing.assert_close(found, (mode - config.shift_factor) * config.scaling_factor)
    assert found.shape[1:] == FAMILY.latent_shape(dev.location, SIZE, 96)
    with torch.no_grad():
        raw = dev.pipeline.vae.decode(found / config.scaling_factor + config.shift_factor)[0]
    decode = FAMILY.latents.load_vae(dev.location, torch.float32, "cpu").decode
    torch.testing.assert_close(decode(found), raw.clamp(-1, 1))


def test_kontexts_texts_are_the_same_without_its_image_and_wrong_images_are_refused(dev, tmp_path):
    kontext, image = opened(tmp_path, kontext=True), coarse_image(SIZE, SIZE)
    shown, alone = (kontext.encoders.encode_text("a", each) for each in ([image], []))
    assert torch.equal(shown["text_embeddings"], alone["text_embeddings"])
    for base, count in ((dev, 1), (kontext, 2)):
        with pytest.raises(DatasetError) as error:
            base.encoders.encode_text("a", [image] * count)
        assert error.value.remedy
