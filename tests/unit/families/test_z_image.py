"""Z-Image besides what its record holds: single files, long and mixed texts, what is refused."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.gguf_files import BLOCKS, random_blocks, write_with_gguf
from tests.fixtures.recorded_calls import relative_error
from tests.fixtures.z_image_base import (
    make_z_image_base,
    make_z_image_transformer,
    z_image_to_native,
)
from trainer_core.bases.locate import detect_base, detect_variant, locate_base
from trainer_core.config import BaseSection
from trainer_core.diffusion.sigma import ShiftSettings
from trainer_core.errors import BaseModelError, ConfigError
from trainer_core.families.registry import get_family

FAMILY = get_family("z_image")
PREFIXES = ("", "diffusion_model.", "model.diffusion_model.")
F8 = torch.float8_e4m3fn


@functools.cache
def model():
    """One head of 128, as the published positions are for."""
    settings = {"dim": 128, "n_heads": 1, "n_kv_heads": 1, "axes_dims": [32, 48, 48]}
    return make_z_image_transformer(**settings, in_channels=16, cap_feat_dim=32)


def native():
    return z_image_to_native(model().state_dict())


def matrices(state):
    return [name for name, tensor in state.items() if "layers." in name and tensor.ndim == 2]


def write(path, tensors, prefix=""):
    save_file({f"{prefix}{k}": v.contiguous() for k, v in tensors.items()}, path)
    return path


def locate(path, controls=False, **options):
    return locate_base(
        BaseSection(path=str(path), **options), FAMILY, controls, needs_encoders=False
    )


def load(path, dtype=torch.float32, base_format="dense") -> Any:
    return FAMILY.load_transformer(locate(path), dtype, "cpu", base_format)


def check_same(loaded, expected):
    found = loaded.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_native_file_becomes_the_model_it_was_made_from(prefix, tmp_path):
    tensors = native() | {"norm_final.weight": torch.ones(128)}
    loaded = load(write(tmp_path / "base.safetensors", tensors, prefix))
    check_same(loaded, model().state_dict())
    sizes = ("dim", "n_layers", "n_refiner_layers", "n_heads", "cap_feat_dim", "in_channels")
    assert {n: loaded.config[n] for n in sizes} == {n: model().config[n] for n in sizes}


def test_a_file_in_diffusers_naming_loads_too(tmp_path):
    path = write(tmp_path / "base.safetensors", model().state_dict())
    check_same(load(path), model().state_dict())


def test_exchanged_parts_are_noticed(tmp_path):
    tensors = native()
    q, k, v = tensors["layers.1.attention.qkv.weight"].chunk(3)
    tensors["layers.1.attention.qkv.weight"] = torch.cat([k, q, v])
    loaded = load(write(tmp_path / "base.safetensors", tensors)).state_dict()
    wanted = model().state_dict()
    differing = {name for name in wanted if not torch.equal(loaded[name], wanted[name])}
    assert differing == {f"layers.1.attention.to_{each}.weight" for each in "qk"}


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16, F8])
def test_plain_formats_are_cast(stored, tmp_path):
    tensors = native()
    for name in matrices(tensors):
        tensors[name] = tensors[name].to(stored)
    loaded = load(write(tmp_path / "base.safetensors", tensors), torch.bfloat16)
    wanted = {name: tensor.to(torch.bfloat16) for name, tensor in model().state_dict().items()}
    for name in matrices(wanted):
        wanted[name] = model().state_dict()[name].to(stored).to(torch.bfloat16)
    check_same(loaded, wanted)


def test_scaled_weights_are_cut_after_they_are_multiplied(tmp_path):
    tensors, wanted = native(), {k: v.to(torch.bfloat16) for k, v in model().state_dict().items()}
    scaled = {}
    for place, name in enumerate(matrices(tensors)):
        scale = torch.tensor(0.01 * (place + 1))
        scaled[name] = (tensors[name] / scale).to(F8)
        scaled[name.replace(".weight", ".weight_scale")] = scale
        note = torch.tensor(list(b'{"format": "float8_e4m3fn"}'), dtype=torch.uint8)
        scaled[name.replace(".weight", ".comfy_quant")] = note
        value = scaled[name].to(torch.bfloat16) * scale.to(torch.bfloat16)
        if ".qkv." in name:
            parts = zip("qkv", value.chunk(3), strict=True)
            wanted |= {name.replace("qkv", f"to_{each}"): part for each, part in parts}
        else:
            wanted[name.replace("attention.out", "attention.to_out.0")] = value
    path = write(tmp_path / "base.safetensors", tensors | scaled)
    check_same(load(path, torch.bfloat16), wanted)


@pytest.mark.parametrize("base_format", ["dense", "file"])
def test_a_gguf_file_computes_as_its_numbers(base_format, tmp_path):
    gguf = pytest.importorskip("gguf")
    tensors, wanted, state = {}, {}, native()
    for name, tensor in state.items():
        if name in matrices(state) and tensor.shape[1] % BLOCKS["Q8_0"][0] == 0:
            raw = random_blocks("Q8_0", *tensor.shape)
            tensors[name] = ("Q8_0", raw)
            kind = gguf.GGMLQuantizationType.Q8_0
            wanted[name] = torch.from_numpy(gguf.quants.dequantize(raw, kind))
        else:
            tensors[name], wanted[name] = ("F32", tensor.numpy().astype(np.float32)), tensor
    path = write_with_gguf(tmp_path / "z_image-Q8_0.gguf", tensors)
    dense = load(write(tmp_path / "dense.safetensors", wanted))
    found, expected = (predicted(each) for each in (load(path, base_format=base_format), dense))
    assert relative_error(found, expected) < 1e-5


def predicted(transformer, lengths=(5,), seed=0):
    generator = torch.Generator().manual_seed(seed)
    noisy = torch.randn(len(lengths), 16, 6, 10, generator=generator)
    texts = [
        {"text_embeddings": torch.randn(length, 32, generator=generator)} for length in lengths
    ]
    sigma = torch.linspace(0.3, 0.8, len(lengths))
    with torch.no_grad():
        return FAMILY.predict(transformer, noisy, sigma, texts, [], 1.0)


@pytest.mark.parametrize("lengths", [(5, 40, 64), (33, 33, 1)])
def test_a_batch_of_texts_of_several_lengths_is_exact(lengths):
    generator = torch.Generator().manual_seed(0)
    noisy = torch.randn(3, 16, 6, 10, generator=generator)
    texts = [{"text_embeddings": torch.randn(n, 32, generator=generator)} for n in lengths]
    sigma = torch.tensor([0.2, 0.5, 0.9])
    with torch.no_grad():
        together = FAMILY.predict(model(), noisy, sigma, texts, [], 1.0)
        for place, text in enumerate(texts):
            one = slice(place, place + 1)
            alone = FAMILY.predict(model(), noisy[one], sigma[one], [text], [], 1.0)
            assert relative_error(together[one], alone) < 1e-5
            other = FAMILY.predict(model(), noisy[one], sigma[one], [texts[place - 1]], [], 1.0)
            assert relative_error(together[one], other) > 1e-3


def test_the_model_counts_from_noise_to_image_and_gives_that_velocity():
    generator = torch.Generator().manual_seed(0)
    noisy, text = torch.randn(1, 16, 6, 10, generator=generator), torch.randn(5, 32)
    given = [{"text_embeddings": text}]
    with torch.no_grad():
        found = FAMILY.predict(model(), noisy, torch.tensor([0.25]), given, [], 1.0)
        own = model()([noisy[0].unsqueeze(1)], torch.tensor([0.75]), [text], return_dict=False)
    assert relative_error(found[0], -own[0][0].squeeze(1)) < 1e-5


def test_a_text_may_be_longer_than_the_published_table(tmp_path):
    """ComfyUI cuts no text; Diffusers' table of positions ends after 1536 tokens."""
    prepared = load(write(tmp_path / "base.safetensors", native()))
    assert predicted(prepared, (1600,)).isfinite().all()
    assert torch.equal(predicted(prepared), predicted(model()))
    with pytest.raises(IndexError):
        predicted(make_z_image_transformer(**model().config), (1600,))


def test_an_image_may_have_any_multiple_of_two_latents_a_side():
    assert predicted(model()).shape == (1, 16, 6, 10)
    folder = FAMILY.file.configs / "generate"
    location = locate_location(folder)
    assert FAMILY.latent_shape(location, 1040, 1008) == (16, 126, 130)


def locate_location(folder):
    from trainer_core.weights.base_location import BaseLocation

    return BaseLocation(folder, folder, "generate", 512, "x", False, None)


def test_the_noise_levels_are_those_of_comfyui():
    """Source: ComfyUI 0.33, comfy.supported_models.ZImage: shift 3.0."""
    location = locate_location(FAMILY.file.configs / "generate")
    assert FAMILY.shift(location, None) == ShiftSettings(shift=3.0)
    sigmas = FAMILY.sampling_sigmas(location, 4, 1024, 1024)
    plain = torch.linspace(1, 0, 5)
    torch.testing.assert_close(sigmas, 3 * plain / (1 + 2 * plain))


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


def test_lumina_is_no_z_image():
    """Its native names are the same but for the modulation's."""
    names = [name.replace("adaLN_modulation.0", "adaLN_modulation.1") for name in native()]
    assert FAMILY.detect(native())
    assert not FAMILY.detect(names)


NAMES = {
    "z_image_bf16": True,
    "z_image_de_turbo_v1_bf16": True,
    "z-image-undistilled": True,
    "z_image_edit": True,
    "z_image_turbo_bf16": False,
    "Z-Image-Turbo-Q8": False,
}


@pytest.mark.parametrize("name", NAMES)
def test_turbo_is_told_by_its_name(name, tmp_path):
    path = write(tmp_path / f"{name}.safetensors", native())
    assert detect_base(path) == "z_image"
    assert detect_variant(path, FAMILY) == "generate"
    if NAMES[name]:
        assert FAMILY.distilled(locate(path)) == ""
        return
    with pytest.raises(BaseModelError) as error:
        locate(path)
    assert "distilled" in error.value.found
    assert "Tongyi-MAI/Z-Image" in error.value.remedy
    assert locate(path, distilled="train").file == path


def test_a_folder_is_told_by_its_name_too(tmp_path):
    with pytest.raises(BaseModelError, match="distilled"):
        locate(make_z_image_base(tmp_path / "Z-Image-Turbo"))
    assert locate(make_z_image_base(tmp_path / "Z-Image")).variant == "generate"


@pytest.mark.parametrize("variant", ["auto", "generate"])
def test_control_images_are_refused_by_name(variant, tmp_path):
    path = write(tmp_path / "base.safetensors", native())
    with pytest.raises(ConfigError, match="Z-Image generates from text alone"):
        locate(path, controls=True, variant=variant)
