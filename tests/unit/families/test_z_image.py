"""Z-Image besides what its record holds: single files, long and mixed texts, what is refused."""

import functools

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.recorded_calls import relative_error
from tests.fixtures.z_image_base import make_z_image_transformer, z_image_to_native
from trainer_core.bases.locate import detect_base, locate_base
from trainer_core.config import BaseSection
from trainer_core.diffusion.sigma import ShiftSettings
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family

FAMILY = get_family("z_image")


@functools.cache
def model():
    """One head of 128, as the published positions are for."""
    settings = {"dim": 128, "n_heads": 1, "n_kv_heads": 1, "axes_dims": [32, 48, 48]}
    return make_z_image_transformer(**settings, in_channels=16, cap_feat_dim=32)


def native():
    return z_image_to_native(model().state_dict())


def write(path, tensors, prefix=""):
    save_file({f"{prefix}{k}": v.contiguous() for k, v in tensors.items()}, path)
    return path


def locate(path, controls=False, **options):
    return locate_base(
        BaseSection(path=str(path), **options), FAMILY, controls, needs_encoders=False
    )


def load(path):
    return FAMILY.load_transformer(locate(path), torch.float32, "cpu")


def predicted(transformer, lengths=(5,), seed=0):
    generator = torch.Generator().manual_seed(seed)
    noisy = torch.randn(len(lengths), 16, 6, 10, generator=generator)
    texts = [
        {"text_embeddings": torch.randn(length, 32, generator=generator)} for length in lengths
    ]
    sigma = torch.linspace(0.3, 0.8, len(lengths))
    with torch.no_grad():
        return FAMILY.prediction.predict(transformer, noisy, sigma, texts, [], 1.0)


def test_the_model_counts_from_noise_to_image_and_gives_that_velocity():
    generator = torch.Generator().manual_seed(0)
    noisy, text = torch.randn(1, 16, 6, 10, generator=generator), torch.randn(5, 32)
    given = [{"text_embeddings": text}]
    with torch.no_grad():
        found = FAMILY.prediction.predict(model(), noisy, torch.tensor([0.25]), given, [], 1.0)
        own = model()([noisy[0].unsqueeze(1)], torch.tensor([0.75]), [text], return_dict=False)
    assert relative_error(found[0], -own[0][0].squeeze(1)) < 1e-5


def test_a_text_may_be_longer_than_the_published_table(tmp_path):
    """ComfyUI cuts no text; Diffusers' table of positions ends after 1536 tokens."""
    prepared = load(write(tmp_path / "base.safetensors", native()))
    assert predicted(prepared, (1600,)).isfinite().all()
    assert torch.equal(predicted(prepared), predicted(model()))
    with pytest.raises(IndexError):
        predicted(make_z_image_transformer(**model().config), (1600,))


def locate_location(folder):
    from trainer_core.weights.base_location import BaseLocation

    return BaseLocation(folder, folder, "generate", 512, "x", False, None)


def test_the_noise_levels_are_those_of_comfyui():
    """Source: ComfyUI 0.33, comfy.supported_models.ZImage: shift 3.0."""
    location = locate_location(FAMILY.files.single_file.configs / "generate")
    assert FAMILY.prediction.shift(location, 4) == ShiftSettings(shift=3.0)
    sigmas = FAMILY.sampling_sigmas(location, 4, 1024, 1024)
    plain = torch.linspace(1, 0, 5)
    torch.testing.assert_close(sigmas, 3 * plain / (1 + 2 * plain))
    other = FAMILY.sampling_sigmas(location, 4, 1024, 1024, shift=2.0)
    torch.testing.assert_close(other, 2 * plain / (1 + plain))


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ("siglip_embedder.0.weight", "Omni"),
        ("dec_net.cond_embed.weight", "without a VAE"),
        ("control_layers.0.after_proj.weight", "ControlNet"),
    ],
)
def test_a_relative_is_refused_by_name(extra, words, tmp_path):
    path = write(tmp_path / "base.safetensors", native() | {extra: torch.ones(4, 4)})
    with pytest.raises(BaseModelError) as error:
        detect_base(path)
    assert words in error.value.found
    assert "z_image_bf16" in error.value.remedy
