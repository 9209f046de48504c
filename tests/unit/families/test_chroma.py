"""Chroma beside what its record shows: texts without padding, and what Diffusers does with it."""

import pytest
import torch

from tests.fixtures.chroma_base import make_chroma_base, make_chroma_pipeline
from tests.fixtures.families.chroma import CAPTIONS
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.diffusion.flow import sample_euler
from trainer_core.families.family import guided_velocity
from trainer_core.families.registry import get_family

FAMILY = get_family("chroma")
SIZE = 64


class Base:
    """One folder, opened by Diffusers and by us."""

    def __init__(self, folder):
        section = BaseSection(path=str(make_chroma_base(folder)))
        self.location = locate_base(section, FAMILY, has_controls=False)
        self.pipeline = make_chroma_pipeline()
        self.transformer = FAMILY.load_transformer(self.location, torch.float32, "cpu")
        self.encoders = FAMILY.load_encoders(self.location, torch.float32, "cpu")

    def texts(self):
        return [self.encoders.encode_text(caption) for caption in CAPTIONS]


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return Base(tmp_path_factory.mktemp("chroma"))


def noise_like(batch=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, 4, SIZE // 8, SIZE // 8, generator=generator)


def test_a_text_is_encoded_without_padding(base):
    for caption in (*CAPTIONS, "", "long " * 200):
        length = min(len(base.encoders.tokenizer(caption).input_ids), 512)
        with torch.no_grad():
            expected = base.pipeline.encode_prompt(
                caption, do_classifier_free_guidance=False, max_sequence_length=length
            )[0][0]
        found = base.encoders.encode_text(caption)["text_embeddings"]
        torch.testing.assert_close(found, expected)


def test_a_whole_image_is_the_pipelines_with_guidance(base):
    noise, texts = noise_like(seed=3), base.texts()
    drawn = base.pipeline(
        prompt_embeds=texts[0]["text_embeddings"][None],
        negative_prompt_embeds=texts[1]["text_embeddings"][None],
        prompt_attention_mask=torch.ones(1, len(texts[0]["text_embeddings"])),
        negative_prompt_attention_mask=torch.ones(1, len(texts[1]["text_embeddings"])),
        latents=base.pipeline._pack_latents(noise, 1, 4, SIZE // 8, SIZE // 8),
        width=SIZE,
        height=SIZE,
        num_inference_steps=3,
        guidance_scale=3.5,
        output_type="pt",
    ).images
    velocity = guided_velocity(FAMILY, base.transformer, texts[:1], texts[1:], [], 3.5)
    sigmas = FAMILY.sampling_sigmas(base.location, 3, SIZE, SIZE)
    decode = FAMILY.latents.load_vae(base.location, torch.float32, "cpu").decode
    found = decode(sample_euler(velocity, noise, sigmas))
    torch.testing.assert_close(found / 2 + 0.5, drawn, rtol=0, atol=1e-5)
