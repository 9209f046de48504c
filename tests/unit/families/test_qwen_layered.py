"""Qwen-Image-Layered against Diffusers' own pipeline, in float32 on a tiny base."""

import contextlib
import copy
import functools

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.families.record import coarse_image
from tests.fixtures.native_files import make_native_qwen
from tests.fixtures.qwen_base import (
    LAYERED,
    make_qwen_base,
    make_qwen_transformer,
    open_qwen_pipeline,
)
from tests.fixtures.recorded_calls import RecordedCalls, relative_error
from trainer_core.bases.locate import detect_base, detect_variant, locate_base
from trainer_core.config import BaseSection
from trainer_core.data.image import to_pixels
from trainer_core.diffusion.flow import sample_euler
from trainer_core.errors import ConfigError
from trainer_core.families.qwen_image.encode import prompt_text
from trainer_core.families.registry import get_family

FAMILY = get_family("qwen_image")
LAYERS, STEPS, GUIDANCE = 1, 2, 4.0
SIZE = 640  # the smaller of the two that the pipeline knows
CAPTIONS = ["a red circle", "two blue squares on a much longer green background"]


class Drawn:
    """One guided drawing of the pipeline, and the same base opened by us."""

    def __init__(self, folder):
        make_qwen_base(folder, "layered", layers=1)
        self.folder = folder
        section = BaseSection(path=str(folder))
        self.location = locate_base(section, FAMILY, has_controls=True)
        self.transformer = FAMILY.load_transformer(self.location, torch.float32, "cpu")
        self.encoders = FAMILY.load_encoders(self.location, torch.float32, "cpu")
        self.pipeline = open_qwen_pipeline(folder, "layered")
        self.image = coarse_image(SIZE, SIZE, channels=4)
        self.control = self.encoders.encode_image(to_pixels(self.image, 4)[None])
        self.calls = RecordedCalls()
        self.calls.watch(self.pipeline.transformer)
        self.after = []
        # Its own ``output_type="latent"`` fails behind the last step, in Diffusers 0.42.
        with torch.no_grad(), contextlib.suppress(UnboundLocalError):
            self.pipeline(
                image=self.image,
                prompt=CAPTIONS[0],
                negative_prompt=CAPTIONS[1],
                true_cfg_scale=GUIDANCE,
                cfg_normalize=True,
                layers=LAYERS,
                num_inference_steps=STEPS,
                resolution=SIZE,
                generator=torch.Generator().manual_seed(3),
                output_type="latent",
                callback_on_step_end=self.keep,
            )

    def keep(self, pipeline, step, time, given):
        self.after.append(given["latents"])
        return given

    def text(self, caption):
        return self.encoders.encode_text(caption, [self.image])

    def frames(self, tokens):
        """Those of image and layers, by the pipeline's own function."""
        tokens = tokens[:, : (LAYERS + 1) * (SIZE // 16) ** 2]
        return self.pipeline._unpack_latents(tokens, SIZE, SIZE, LAYERS, 8)

    def noisy(self, call):
        return self.frames(self.calls.inputs[call]["hidden_states"])

    def velocity(self, call):
        return self.frames(self.calls.outputs[call])


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    return Drawn(tmp_path_factory.mktemp("layered"))


def test_every_step_is_the_pipelines_step(drawn):
    """Image and layers before the control image, each in its place."""
    for call in range(2 * STEPS):
        noisy, sigma = drawn.noisy(call), drawn.pipeline.scheduler.sigmas[call // 2].expand(1)
        assert noisy.shape == (1, *FAMILY.latent_shape(drawn.location, SIZE, SIZE, LAYERS))
        if call in {1, 2}:  # the other two say no more
            texts = [drawn.text(CAPTIONS[call % 2])]
            with torch.no_grad():
                found = FAMILY.prediction.predict(
                    drawn.transformer, noisy, sigma, texts, [drawn.control], 1.0
                )
            assert found.shape == noisy.shape
            assert relative_error(found, drawn.velocity(call)) <= 1e-5


def test_guidance_and_noise_levels_are_the_pipelines(drawn):
    """From the noise through all steps; mu is the image's side over 256 pixels."""
    sigmas = FAMILY.sampling_sigmas(drawn.location, STEPS, SIZE, SIZE)
    torch.testing.assert_close(sigmas, drawn.pipeline.scheduler.sigmas)
    calls = iter(range(0, 2 * STEPS, 2))

    def velocity(latents, sigma):
        call = next(calls)
        return FAMILY.prediction.guide(drawn.velocity(call), drawn.velocity(call + 1), GUIDANCE)

    found = sample_euler(velocity, drawn.noisy(0), sigmas)
    assert relative_error(found, drawn.frames(drawn.after[-1])) <= 1e-5


def test_layers_are_decoded_as_the_pipeline_does(drawn):
    """One by one, and with transparency."""
    latents = drawn.frames(drawn.after[-1])[..., :8, :8]
    shape, config = (1, -1, 1, 1, 1), drawn.pipeline.vae.config
    std = 1.0 / torch.tensor(config.latents_std).view(shape)
    with torch.no_grad():
        raw = latents[:, :, 1:2] / std + torch.tensor(config.latents_mean).view(shape)
        expected = drawn.pipeline.vae.decode(raw, return_dict=False)[0][:, :, 0]
    found = FAMILY.latents.load_vae(drawn.location, torch.float32, "cpu").decode(latents[:, :, 1])
    assert found.shape == (1, 4, 64, 64)
    torch.testing.assert_close(found, expected.clamp(-1, 1))


def test_images_are_encoded_as_the_pipeline_does(drawn):
    image = coarse_image(64, 96, 7, channels=4)
    with torch.no_grad():
        expected = drawn.pipeline._encode_vae_image(to_pixels(image, 4)[None, :, None], None)
    found = drawn.encoders.encode_image(to_pixels(image, 4)[None])
    assert relative_error(found, expected[:, :, 0]) <= 1e-5
    image.putalpha(255)
    other = drawn.encoders.encode_image(to_pixels(image, 4)[None])
    assert relative_error(other, expected[:, :, 0]) > 1e-2


def test_captions_are_encoded_as_the_pipeline_does(drawn):
    """By Qwen-Image's own template: the text encoder does not see the image."""
    for caption in (CAPTIONS[1], ""):
        with torch.no_grad():
            expected, _ = drawn.pipeline._get_qwen_prompt_embeds(caption)
        assert relative_error(drawn.text(caption)["text_embeddings"], expected[0]) <= 1e-5
        assert prompt_text("layered", caption, ()) == prompt_text("generate", caption, ())


def small_inputs(layers=2, batch=2, size=16, text=5):
    generator = torch.Generator().manual_seed(1)
    lengths = (text, 2 * text)[:batch]
    texts = [{"text_embeddings": torch.randn(n, 32, generator=generator)} for n in lengths]
    noisy = torch.randn(batch, 6, layers + 1, size, size, generator=generator)
    control = torch.randn(batch, 6, size, size, generator=generator)
    return noisy, torch.tensor([0.3, 0.8])[:batch], texts, [control]


def test_every_frame_has_its_place_and_reaches_all_others_of_its_sample():
    transformer = make_qwen_transformer(**LAYERED)
    noisy, sigma, texts, controls = small_inputs()

    def predict(noisy=noisy, controls=controls):
        with torch.no_grad():
            return FAMILY.prediction.predict(transformer, noisy, sigma, texts, controls, 1.0)

    plain = predict()
    for at in (slice(0, 1), slice(1, 2)):
        given = noisy[at], sigma[at], texts[at], [controls[0][at]]
        with torch.no_grad():
            alone = FAMILY.prediction.predict(transformer, *given, 1.0)
        assert relative_error(alone, plain[at]) <= 1e-5
    exchanged = predict(noisy.flip(2)).flip(2)
    assert relative_error(exchanged, plain) > 1e-3
    changed = noisy.clone()
    changed[:, :, 2] = 0
    for frame in range(2):
        assert relative_error(predict(changed)[:, :, frame], plain[:, :, frame]) > 1e-4
    assert relative_error(predict(controls=[-controls[0]]), plain) > 1e-3
    # The rotary place of the control image: as one more layer it would be another prediction.
    other = copy.deepcopy(transformer)
    other.pos_embed = make_qwen_transformer().pos_embed
    found = FAMILY.prediction.predict(other, noisy, sigma, texts, controls, 1.0).detach()
    assert relative_error(found, plain) > 1e-4


def test_a_folder_is_known_for_what_it_is(drawn, tmp_path):
    assert detect_base(drawn.folder) == "qwen_image"
    assert detect_variant(drawn.folder, FAMILY) == "layered"
    section = BaseSection(path=str(drawn.folder))
    # It does nothing else, whatever the dataset is; that is checked where both are known.
    assert locate_base(section, FAMILY, has_controls=False).variant == "layered"
    for variant in ("edit", "generate"):
        wrong = section.model_copy(update={"variant": variant})
        with pytest.raises(ConfigError, match="layers"):
            locate_base(wrong, FAMILY, has_controls=variant == "edit")
    make_qwen_base(tmp_path, "edit", layers=1)
    wrong = BaseSection(path=str(tmp_path), variant="layered")
    with pytest.raises(ConfigError, match="not made for layers"):
        locate_base(wrong, FAMILY, has_controls=True)


@functools.cache
def native():
    """A small model of the sizes that ComfyUI's detection leaves to itself."""
    return make_native_qwen(use_additional_t_cond=True, use_layer3d_rope=True)


@pytest.mark.parametrize("name", ["renamed", "my_edit_2509"])
def test_a_single_file_is_known_by_its_weights(name, tmp_path):
    """Whatever it is called, and whatever the dataset has."""
    path = tmp_path / f"{name}.safetensors"
    save_file(native().state_dict(), path)
    assert detect_variant(path, FAMILY) == "layered"
    for controls in (False, True):
        section = BaseSection(path=str(path))
        location = locate_base(section, FAMILY, controls, needs_encoders=False)
        assert (location.variant, location.folder.name) == ("layered", "layered")
    wrong = BaseSection(path=str(path), variant="generate")
    with pytest.raises(ConfigError, match="takes images apart"):
        locate_base(wrong, FAMILY, False, needs_encoders=False)


def test_a_single_file_becomes_the_model_it_was_made_from(tmp_path):
    path, state = tmp_path / "base.safetensors", native().state_dict()
    save_file(state, path)
    location = locate_base(BaseSection(path=str(path)), FAMILY, True, needs_encoders=False)
    loaded = FAMILY.load_transformer(location, torch.float32, "cpu")
    assert loaded.config.use_layer3d_rope
    assert isinstance(loaded.pos_embed, type(native().pos_embed))
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, state[name]), name
