"""Krea 2 against Diffusers' own reader, pipeline and scheduler, and what its files are read as."""

import functools

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.krea2_base import (
    krea2_to_native,
    make_krea2,
    make_krea2_base,
    open_krea2_pipeline,
)
from tests.fixtures.recorded_calls import relative_error
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family
from trainer_core.quantization.quantized_linear import QuantizedLinear

FAMILY = get_family("krea2")
CAPTIONS = ("", "a red circle", "two {blue} squares, a much longer text than the others have")


@functools.cache
def model():
    return make_krea2()


def native():
    return krea2_to_native(model().state_dict())


def write(path, tensors, metadata=None):
    save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata)
    return path


def locate(path, **options):
    section = BaseSection(path=str(path), **options)
    return locate_base(section, FAMILY, has_controls=False, needs_encoders=False)


def load(path, dtype=torch.float32, base_format="dense"):
    return FAMILY.load_transformer(locate(path), dtype, "cpu", base_format)


def norms(transformer):
    state = transformer.state_dict()
    return {name: value for name, value in state.items() if "norm" in name.split(".")[-2]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_krea2_base(tmp_path_factory.mktemp("base"))


def test_diffusers_own_converter_undoes_the_naming_of_these_tests():
    from diffusers.loaders import single_file_utils

    convert = getattr(single_file_utils, "convert_krea2_transformer_checkpoint_to_diffusers", None)
    if convert is None:
        pytest.skip("the installed Diffusers reads no single file of Krea 2")
    found, expected = convert(native()), model().state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize(("kind", "base_format"), [("file", "nf4"), ("folder", "int8")])
def test_scales_of_norms_are_float32_in_packed_bases(kind, base_format, folder, tmp_path):
    state = {name: value.bfloat16() for name, value in native().items()}
    place = folder if kind == "folder" else write(tmp_path / "raw.safetensors", state)
    loaded = load(place, torch.bfloat16, base_format)
    found = norms(loaded)
    assert len(found) == 26
    assert {value.dtype for value in found.values()} == {torch.float32}
    assert any(isinstance(module, QuantizedLinear) for module in loaded.modules())


def test_texts_are_those_of_the_pipeline(folder):
    location = locate_base(BaseSection(path=str(folder)), FAMILY, has_controls=False)
    encoders = FAMILY.load_encoders(location, torch.float32, "cpu")
    pipeline = open_krea2_pipeline(folder)
    count = FAMILY.text.load_token_counter(location)
    for caption in CAPTIONS:
        states, mask = pipeline.get_text_hidden_states(caption, 128)
        expected = states[0][mask[0]]
        found = encoders.encode_text(caption)["text_embeddings"]
        assert found.shape == expected.shape
        assert found.shape[1:] == (3, 40)
        assert relative_error(found, expected) <= 1e-5
        assert count(caption, 0) == len(found)


@pytest.mark.parametrize("distilled", [False, True])
@pytest.mark.parametrize(("width", "height"), [(256, 256), (1280, 768)])
def test_noise_levels_are_those_of_the_pipeline(distilled, width, height, tmp_path):
    folder = make_krea2_base(tmp_path, distilled)
    location = locate(folder, distilled="train")
    found = FAMILY.sampling_sigmas(location, 8, width, height)
    pipeline = open_krea2_pipeline(folder, distilled)
    tokens = (width // 16) * (height // 16)
    mu = 1.15 if distilled else 0.5 + (tokens - 256) * (1.15 - 0.5) / (6400 - 256)
    scheduler = pipeline.scheduler
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / 8, 8), mu=mu)
    assert torch.allclose(found, scheduler.sigmas, atol=1e-6)
