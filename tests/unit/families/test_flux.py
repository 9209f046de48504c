"""FLUX.1 against Diffusers' own pipelines, in float32 on a tiny base with random weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from diffusers import FluxPipeline
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image

from tests.fixtures.flux_base import make_flux_base, make_flux_pipeline
from tests.fixtures.recorded_calls import RecordedCalls, relative_error
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.diffusion.flow import sample_euler
from trainer_core.errors import DatasetError
from trainer_core.families.diffusers_parts import pack, unpack
from trainer_core.families.family import guided_velocity
from trainer_core.families.registry import get_family

FAMILY = get_family("flux")
SIZE = 64
CAPTIONS = ["a red circle", "two blue squares on a green background"]
NEGATIVE = "dull"


class Base:
    """One folder, opened by Diffusers and by us."""

    def __init__(self, folder, kontext, guidance, text_length=64):
        make_flux_base(folder, kontext, guidance)
        self.location = locate_base(
            BaseSection(path=str(folder), text_length=text_length),
            get_family("flux"),
            has_controls=kontext,
        )
        self.kontext = kontext
        self.pipeline = make_flux_pipeline(kontext, guidance)
        self.transformer = FAMILY.load_transformer(self.location, torch.float32, "cpu")
        self.encoders = FAMILY.load_encoders(self.location, torch.float32, "cpu")
        self.decode = FAMILY.load_decoder(self.location, torch.float32, "cpu")
        self.shown = [noise_image(96, 64)] if kontext else []
        self.controls = [self.encoders.encode_image(pixels(item)) for item in self.shown]

    def text(self, caption):
        return self.encoders.encode_text(caption, self.shown)

    def call(self, noise, caption, **settings):
        calls = RecordedCalls()
        handle = self.pipeline.transformer.register_forward_hook(calls._record, with_kwargs=True)
        given = {"image": self.shown[0], "max_area": SIZE * SIZE} if self.kontext else {}
        defaults = {"num_inference_steps": 3, "guidance_scale": 3.5, "output_type": "latent"}
        drawn = self.pipeline(
            prompt=caption,
            latents=pack(noise),
            width=SIZE,
            height=SIZE,
            max_sequence_length=self.location.text_length,
            **given,
            **({"_auto_resize": False} if self.kontext else {}),
            **(defaults | settings),
        ).images
        handle.remove()
        return calls, drawn


@pytest.fixture(scope="module")
def kontext(tmp_path_factory):
    return Base(tmp_path_factory.mktemp("kontext"), True, True)


@pytest.fixture(scope="module")
def dev(tmp_path_factory):
    return Base(tmp_path_factory.mktemp("dev"), False, True)


def noise_image(width, height, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3))
    return Image.fromarray(values.astype(np.uint8)).resize((width, height))


def pixels(image):
    values = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float()
    return (values / 127.5 - 1)[None]


def noise_like(batch=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 4, SIZE // 8, SIZE // 8, generator=generator)


def test_bases_that_are_not_distilled_are_guided_by_a_second_pass(tmp_path):
    base = Base(tmp_path, False, False)
    noise = noise_like(seed=5)
    calls, expected = base.call(
        noise, CAPTIONS[0], true_cfg_scale=3.0, negative_prompt=NEGATIVE, num_inference_steps=2
    )
    assert len(calls.inputs) == 4
    assert not FAMILY.takes_guidance(base.transformer)
    drawn = {}
    for scale in (1.0, 3.0):
        velocity = guided_velocity(
            FAMILY, base.transformer, [base.text(CAPTIONS[0])], [base.text(NEGATIVE)], [], scale
        )
        sigmas = FAMILY.sampling_sigmas(base.location, 2, SIZE, SIZE)
        drawn[scale] = sample_euler(velocity, noise, sigmas)
    assert relative_error(pack(drawn[3.0]), expected) <= 1e-5
    assert relative_error(drawn[1.0], drawn[3.0]) > 1e-2


@pytest.mark.parametrize("length", [16, 64, 512])
def test_captions_are_encoded_as_the_pipeline_does(dev, length):
    dev.encoders.text_length = length
    try:
        for caption in (*CAPTIONS, "", "long " * 200):
            with torch.no_grad():
                expected, pooled, _ = dev.pipeline.encode_prompt(
                    caption, max_sequence_length=length
                )
            found = dev.text(caption)
            assert found["text_embeddings"].shape == (length, 32)
            torch.testing.assert_close(found["text_embeddings"], expected[0])
            torch.testing.assert_close(found["pooled_text"], pooled[0])
    finally:
        dev.encoders.text_length = 64


def test_the_text_length_is_comfyuis_unless_set(tmp_path):
    make_flux_base(tmp_path)
    location = locate_base(BaseSection(path=str(tmp_path)), get_family("flux"), has_controls=False)
    assert location.text_length == 256


def test_images_are_encoded_and_decoded_as_the_pipeline_does(dev):
    config = dev.pipeline.vae.config
    image = pixels(noise_image(SIZE, 96, 5))
    with torch.no_grad():
        moments = dev.pipeline.vae._encode(image)
    mode = DiagonalGaussianDistribution(moments).mode()
    found = dev.encoders.encode_image(image)
    torch.testing.assert_close(found, (mode - config.shift_factor) * config.scaling_factor)
    assert found.shape[1:] == FAMILY.latent_shape(dev.location, SIZE, 96)
    with torch.no_grad():
        raw = dev.pipeline.vae.decode(found / config.scaling_factor + config.shift_factor)[0]
    torch.testing.assert_close(dev.decode(found), raw.clamp(-1, 1))


def test_control_images_get_kontexts_own_sizes():
    from diffusers.pipelines.flux.pipeline_flux_kontext import PREFERRED_KONTEXT_RESOLUTIONS

    for size in ((1000, 1000), (1920, 1080), (640, 960), (300, 3000)):
        ratio = size[0] / size[1]
        _, *best = min((abs(ratio - w / h), w, h) for w, h in PREFERRED_KONTEXT_RESOLUTIONS)
        assert FAMILY.control_size(*size, 1024 * 1024) == tuple(best)
    # Of another area they keep their shape.
    assert FAMILY.control_size(2000, 1000, 512 * 512) == (736, 352)


def test_without_controls_kontext_generates_as_dev_does(kontext):
    text, calls = kontext.encoders.encode_text(CAPTIONS[0], []), RecordedCalls()
    assert torch.equal(text["text_embeddings"], kontext.text(CAPTIONS[0])["text_embeddings"])
    parts = {each: getattr(kontext.pipeline, each) for each in FluxPipeline._optional_components}
    for each in ("scheduler", "vae", "text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"):
        parts[each] = getattr(kontext.pipeline, each)
    pipeline = FluxPipeline(transformer=kontext.pipeline.transformer, **parts)
    handle = pipeline.transformer.register_forward_hook(calls._record, with_kwargs=True)
    pipeline(
        prompt=CAPTIONS[0],
        latents=pack(noise_like(seed=4)),
        width=SIZE,
        height=SIZE,
        max_sequence_length=kontext.location.text_length,
        num_inference_steps=2,
        output_type="latent",
    )
    handle.remove()
    for index, (given, output) in enumerate(zip(calls.inputs, calls.outputs, strict=True)):
        noisy = unpack(given["hidden_states"], SIZE // 8, SIZE // 8)
        sigma = pipeline.scheduler.sigmas[index].expand(1)
        found = FAMILY.predict(kontext.transformer, noisy, sigma, [text], (), 3.5)
        assert relative_error(found, unpack(output, SIZE // 8, SIZE // 8)) <= 1e-5


def test_wrong_controls_of_a_caption_are_refused(dev, kontext):
    for base, count in ((dev, 1), (kontext, 2)):
        with pytest.raises(DatasetError) as error:
            base.encoders.encode_text("a", [noise_image(64, 64)] * count)
        assert error.value.remedy
