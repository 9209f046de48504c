"""Qwen-Image against Diffusers' own pipelines, in float32 on a tiny base with random weights."""

import copy
import functools

import pytest
import torch
from diffusers import QwenImagePipeline
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus
from PIL import Image

from tests.fixtures.combinations import some
from tests.fixtures.families.record import as_pixels, coarse_image
from tests.fixtures.qwen_base import make_qwen_base, make_qwen_transformer, open_qwen_pipeline
from tests.fixtures.recorded_calls import RecordedCalls, relative_error
from trainer_core.adapters import attach
from trainer_core.bases.locate import locate_base
from trainer_core.config import AdapterConfig, BaseSection
from trainer_core.diffusion.flow import sample_euler
from trainer_core.errors import DatasetError
from trainer_core.families.diffusers_parts import pack
from trainer_core.families.family import guided_velocity
from trainer_core.families.registry import get_family

FAMILY = get_family("qwen_image")
SIZE = 64
AREAS = {"generate": 0, "edit": 1024 * 1024, "edit_plus": 256 * 256}
"""Pixels that a pipeline gives a control image; of edit_plus in place of 1024 x 1024."""

VARIANTS = ("generate", "edit", "edit_plus")
PROMPT, NEGATIVE = "make it green", "dull"
CAPTIONS = ["a red circle", "two blue squares on a much longer green background"]


# What edits one image does what edits several does.
@pytest.fixture(scope="module", params=some(VARIANTS, "generate", "edit_plus"))
def base(request, tmp_path_factory):
    return open_base(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="module")
def generate(tmp_path_factory):
    return open_base(tmp_path_factory.mktemp("generate"), "generate")


class Base:
    """One folder, opened by Diffusers and by us."""

    def __init__(self, folder, variant, location):
        self.variant = variant
        self.location = location
        self.texts = {}
        self.pipeline = open_qwen_pipeline(folder, variant)
        self.transformer = FAMILY.load_transformer(location, torch.float32, "cpu")
        self.encoders = FAMILY.load_encoders(location, torch.float32, "cpu")
        self.decode = FAMILY.latents.load_vae(location, torch.float32, "cpu").decode
        # Edit-Plus: of the size that the pipeline gives them, as its text encoder and its VAE
        # each resize the original, while ours gets what the VAE got.
        sizes = {"generate": [], "edit": [(96, 64)], "edit_plus": [(288, 224), (256, 256)]}
        self.images = [coarse_image(*size, seed) for seed, size in enumerate(sizes[variant])]

    @functools.cached_property
    def shown(self):
        return [
            item.resize(FAMILY.latents.control_size(*item.size, area), Image.Resampling.LANCZOS)
            for item in self.images
            for area in [AREAS[self.variant]]
        ]

    @functools.cached_property
    def controls(self):
        return [self.encoders.encode_image(as_pixels(item)) for item in self.shown]

    def text(self, caption):
        if caption not in self.texts:
            self.texts[caption] = self.encoders.encode_text(caption, self.shown)
        return self.texts[caption]

    @functools.cached_property
    def guided(self):
        """One guided drawing of the pipeline: noise and latents."""
        noise = noise_like(seed=4)
        given = {"image": self.images[0] if self.variant == "edit" else self.images}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pipeline_qwenimage_edit_plus, "VAE_IMAGE_SIZE", AREAS["edit_plus"])
            drawn = self.pipeline(
                prompt=PROMPT,
                negative_prompt=NEGATIVE,
                true_cfg_scale=4.0,
                latents=pack(noise),
                width=SIZE,
                height=SIZE,
                num_inference_steps=2,
                output_type="latent",
                **(given if self.images else {}),
            ).images
        return noise, drawn


def open_base(folder, variant):
    make_qwen_base(folder, variant)
    location = locate_base(
        BaseSection(path=str(folder)), get_family("qwen_image"), has_controls=variant != "generate"
    )
    assert location.variant == variant
    return Base(folder, variant, location)


def noise_like(batch=1, seed=0, size=SIZE):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 4, size // 8, size // 8, generator=generator)


def test_a_guided_image_is_the_pipelines(base):
    noise, expected = base.guided
    sigmas = FAMILY.sampling_sigmas(base.location, 2, SIZE, SIZE)
    drawn = {}
    for scale in (1.0, 4.0):
        velocity = guided_velocity(
            FAMILY,
            base.transformer,
            [base.text(PROMPT)],
            [base.text(NEGATIVE)],
            base.controls,
            scale,
        )
        drawn[scale] = sample_euler(velocity, noise, sigmas)
    assert relative_error(pack(drawn[4.0]), expected) <= 1e-5
    assert relative_error(drawn[1.0], drawn[4.0]) > 1e-3


def test_captions_are_encoded_as_the_pipeline_does(base):
    seen = base.shown
    if base.variant == "edit_plus":
        seen = [
            item.resize(
                FAMILY.latents.control_size(*item.size, 384 * 384), Image.Resampling.LANCZOS
            )
            for item in base.images
        ]
    given = {"image": seen} if seen else {}
    for caption in (CAPTIONS[1], ""):
        with torch.no_grad():
            expected, _ = base.pipeline._get_qwen_prompt_embeds(caption, **given)
        found = base.text(caption)["text_embeddings"]
        assert found.shape == expected[0].shape
        assert relative_error(found, expected[0]) <= 1e-5
        assert found.dtype == torch.float32
    if seen:
        other = [coarse_image(*item.size, 99) for item in base.shown]
        changed = base.encoders.encode_text(caption, other)["text_embeddings"]
        assert relative_error(changed, found) > 1e-2


def test_images_are_encoded_and_decoded_as_the_pipeline_does(generate):
    pipeline = generate.pipeline
    config = pipeline.vae.config
    shape = (1, -1, 1, 1, 1)
    mean, std = (
        torch.tensor(values).view(shape) for values in (config.latents_mean, config.latents_std)
    )
    image = as_pixels(coarse_image(SIZE, 96, 5))
    with torch.no_grad():
        moments = pipeline.vae._encode(image[:, :, None])
    expected = (DiagonalGaussianDistribution(moments).mode() - mean) / std
    found = generate.encoders.encode_image(image)
    torch.testing.assert_close(found, expected[:, :, 0])
    assert found.shape[1:] == FAMILY.latent_shape(generate.location, SIZE, 96)
    drawn = generate.decode(found)
    with torch.no_grad():
        raw = pipeline.vae.decode(found[:, :, None] / (1.0 / std) + mean)[0][:, :, 0]
    assert torch.equal(drawn, raw)
    assert drawn.shape == image.shape


@pytest.mark.parametrize("checkpointing", [False, True])
def test_texts_of_different_lengths_are_kept_apart_beside_large_images(checkpointing):
    """As one by one; with an adapter, whose gradients are those with a mask."""
    transformer = make_qwen_transformer().requires_grad_(False)
    masked = copy.deepcopy(transformer)
    FAMILY.layers.prepare(transformer)
    generator = torch.Generator().manual_seed(0)
    texts = [{"text_embeddings": torch.randn(n, 32, generator=generator)} for n in (3, 9, 9)]
    noisy = torch.randn(3, 4, 64, 64, generator=generator)
    found = []
    for model in (transformer, masked):
        adapter = attach(
            model,
            AdapterConfig(),
            presets=FAMILY.layers.presets,
            shared=FAMILY.layers.shared_inputs,
        )
        with torch.no_grad():
            for each in adapter.parameters():
                each.copy_(torch.linspace(-0.1, 0.1, each.numel()).view_as(each))
        if checkpointing:
            FAMILY.layers.enable_checkpointing(model.train())
        calls = RecordedCalls()
        calls.watch(model)
        velocity = FAMILY.prediction.predict(model, noisy, torch.full((3,), 0.5), texts, (), 1.0)
        assert (calls.inputs[0]["encoder_hidden_states_mask"] is None) == (model is transformer)
        velocity.square().sum().backward()
        gradients = [each.grad for each in adapter.parameters() if each.grad is not None]
        found.append((velocity.detach(), torch.cat([each.reshape(-1) for each in gradients])))
    for one, other in zip(*found, strict=True):
        assert relative_error(one, other) <= 1e-5
    for index in range(3):
        at = slice(index, index + 1)
        alone = FAMILY.prediction.predict(
            transformer, noisy[at], torch.full((1,), 0.5), texts[at], (), 1.0
        )
        assert relative_error(found[0][0][at], alone.detach()) <= 1e-6


def test_text_length_cuts_where_the_pipeline_cuts(generate, monkeypatch):
    monkeypatch.setattr(generate.pipeline, "tokenizer_max_length", 20)
    monkeypatch.setattr(generate.encoders, "text_length", 20)
    with torch.no_grad():
        expected, _ = generate.pipeline._get_qwen_prompt_embeds(CAPTIONS[1])
    found = generate.encoders.encode_text(CAPTIONS[1])["text_embeddings"]
    assert found.shape == (20, 32)
    torch.testing.assert_close(found, expected[0])


@pytest.mark.parametrize(
    ("caption", "count"), [("a", 3), ("<|image_pad|>", 1)], ids=["many", "token"]
)
def test_wrong_controls_of_a_caption_are_refused(base, caption, count):
    if base.variant == "edit_plus" and count == 3:
        pytest.skip("Edit-Plus takes several")
    if base.variant == "generate":
        count = max(count, 1)
    with pytest.raises(DatasetError) as error:
        base.encoders.encode_text(caption, [coarse_image(64, 64, 0)] * count)
    assert error.value.remedy


def test_a_caption_without_its_images_is_the_pipelines(base):
    """Edit as in ComfyUI's node: the template of text-to-image; Edit-Plus: its own, without any."""
    if base.variant == "generate":
        pytest.skip("there are no images")
    found = base.encoders.encode_text(CAPTIONS[1], [])["text_embeddings"]
    pipelines = {"edit": text_to_image(base.pipeline)}
    pipelines |= {"edit_plus": base.pipeline} if base.variant == "edit_plus" else {}
    with torch.no_grad():
        expected = {
            variant: pipeline._get_qwen_prompt_embeds(CAPTIONS[1])[0][0]
            for variant, pipeline in pipelines.items()
        }
    torch.testing.assert_close(found, expected.pop(base.variant))
    # The other one's template, and the text with images, are other texts.
    for other in (*expected.values(), base.text(CAPTIONS[1])["text_embeddings"]):
        assert other.shape != found.shape or relative_error(other, found) > 1e-3


def text_to_image(pipeline):
    parts = {"scheduler", "vae", "text_encoder", "tokenizer", "transformer"}
    return QwenImagePipeline(**{name: getattr(pipeline, name) for name in parts})
