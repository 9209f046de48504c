"""FLUX.1 Fill against Diffusers' own pipeline, in float32 on a tiny base with random weights."""

import numpy as np
import pytest
import torch
from PIL import Image

from tests.fixtures.flux_base import make_fill_pipeline, make_fill_transformer
from tests.fixtures.recorded_calls import RecordedCalls, relative_error
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.data.drawn_masks import with_mask
from trainer_core.data.image import to_pixels
from trainer_core.errors import BaseModelError
from trainer_core.families.diffusers_parts import pack, unpack
from trainer_core.families.flux.fill import masked_latents
from trainer_core.families.registry import get_family

FAMILY = get_family("flux")
SIZE = 64
CAPTION = "a red circle"


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fill")
    pipeline = make_fill_pipeline()
    pipeline.save_pretrained(folder)
    return folder, pipeline


def picture(alpha=None):
    values = np.random.default_rng(0).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    image = Image.fromarray(values)
    if alpha is not None:
        image.putalpha(Image.fromarray(alpha))
    return image


def half():
    """Nothing is kept of the right half."""
    alpha = np.full((SIZE, SIZE), 255, np.uint8)
    alpha[:, SIZE // 2 :] = 0
    return alpha


def locate(folder, controls=True, **settings):
    section = BaseSection(path=str(folder), text_length=64, **settings)
    return locate_base(section, FAMILY, controls)


def test_every_step_is_the_pipelines_step(base):
    folder, pipeline = base
    location = locate(folder)
    assert location.variant == "fill"
    transformer = FAMILY.load_transformer(location, torch.float32, "cpu")
    encoders = FAMILY.load_encoders(location, torch.float32, "cpu")
    image = picture(half())
    control = encoders.encode_image(to_pixels(image, 4)[None])
    assert control.shape[1:] == FAMILY.control_shape(location, SIZE, SIZE)
    calls = RecordedCalls()
    handle = pipeline.transformer.register_forward_hook(calls._record, with_kwargs=True)
    noise = torch.randn(1, 4, SIZE // 8, SIZE // 8, generator=torch.Generator().manual_seed(0))
    pipeline(
        prompt=CAPTION,
        image=image.convert("RGB"),
        mask_image=Image.fromarray(255 - half()),
        latents=pack(noise),
        width=SIZE,
        height=SIZE,
        num_inference_steps=2,
        guidance_scale=30.0,
        output_type="latent",
        max_sequence_length=64,
    )
    handle.remove()
    text = encoders.encode_text(CAPTION, [image.convert("RGB")])
    for index, (given, output) in enumerate(zip(calls.inputs, calls.outputs, strict=True)):
        tokens = given["hidden_states"]
        # The mask is the same bit by bit; the image's latents Diffusers draws at random.
        assert torch.equal(tokens[..., 32:], pack(control)[..., 16:])
        assert not torch.equal(tokens[..., 16:32], pack(control)[..., :16])
        noisy, theirs = (unpack(part, SIZE // 8, SIZE // 8) for part in tokens.split([16, 272], 2))
        sigma = pipeline.scheduler.sigmas[index].expand(1)
        found = FAMILY.prediction.predict(transformer, noisy, sigma, [text], [theirs], 30.0)
        assert relative_error(pack(found), output) <= 1e-5
        other = FAMILY.prediction.predict(transformer, noisy, sigma, [text], [control], 30.0)
        assert 0 < relative_error(pack(other), output) < 1.0


def test_a_masked_image_is_grey_where_it_is_mostly_transparent_and_the_mask_is_not_rounded():
    alpha = np.full((16, 24), 255, np.uint8)
    alpha[:8, :8] = 100
    alpha[8:, 8:16] = 200
    image = Image.fromarray(np.full((16, 24, 3), 255, np.uint8))
    image.putalpha(Image.fromarray(alpha))
    seen = []

    def encode(pixels):
        seen.append(pixels)
        return torch.zeros(1, 16, 2, 3)

    found = masked_latents(to_pixels(image, 4)[None], encode)
    assert found.shape == (1, 80, 2, 3)
    assert (seen[0][0, :, :8, :8] == 0).all()
    assert (seen[0][0, :, 8:, 8:16] == 1).all()
    mask = found[0, 16:]
    torch.testing.assert_close(mask[:, 0, 0], torch.full((64,), 155 / 255))
    torch.testing.assert_close(mask[:, 1, 1], torch.full((64,), 55 / 255))
    assert (mask[:, 0, 1:] == 0).all()


def test_masks_are_drawn_from_their_seed_alone_and_only_where_there_is_none():
    plain = picture()
    first, again, other = (with_mask(plain, seed).getchannel("A") for seed in (1, 1, 2))
    assert first.tobytes() == again.tobytes() != other.tobytes()
    shares = [1 - np.asarray(with_mask(plain, s).getchannel("A")).mean() / 255 for s in range(60)]
    assert min(shares) > 0.005
    assert len({round(share, 3) for share in shares}) > 30
    assert 0.1 < float(np.mean(shares)) < 0.6
    own = picture(half())
    assert with_mask(own, 1).tobytes() == own.tobytes()


def test_a_single_file_is_told_from_canny_and_depth(tmp_path):
    from safetensors.torch import save_file

    sizes = {"attention_head_dim": 128, "num_attention_heads": 1, "axes_dims_rope": (16, 56, 56)}
    path = tmp_path / "fill.safetensors"
    model = make_fill_transformer(64, **sizes)
    save_file(model.state_dict(), path)
    section = BaseSection(path=str(path))
    location = locate_base(section, FAMILY, False, needs_encoders=False)
    assert location.variant == "fill"
    loaded = FAMILY.load_transformer(location, torch.float32, "cpu")
    assert loaded.config.out_channels == 64
    state = model.state_dict()
    state["x_embedder.weight"] = state["x_embedder.weight"][:, :128].contiguous()
    save_file(state, path)
    with pytest.raises(BaseModelError, match="Canny"):
        locate_base(section, FAMILY, False, needs_encoders=False)
