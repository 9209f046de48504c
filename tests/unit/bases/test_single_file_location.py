"""Finding a single file: the settings that the pack has for it, its encoders, its identity."""

import functools
import os
import shutil

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.families import record, records
from tests.fixtures.native_files import flux_to_native, make_native_flux
from trainer_core.bases.locate import detect_base, locate_base
from trainer_core.config import BaseSection
from trainer_core.diffusion.sigma import ShiftSettings
from trainer_core.errors import BaseModelError, ConfigError
from trainer_core.families.diffusers_parts import read_shift
from trainer_core.families.registry import FAMILIES, get_family
from trainer_core.weights.base_location import file_identity
from trainer_core.weights.diffusers_folder import read_json


@functools.cache
def tensors(family):
    if family == "flux":
        return flux_to_native(make_native_flux(layers=1, single_layers=1).state_dict())
    kept = record(family)
    state = kept.small().state_dict()
    return dict(state) if kept.host is None else kept.host.to_native(state)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written")
    for family in records():
        save_file(dict(tensors(family)), folder / f"{family}.safetensors")
    return folder


@pytest.fixture
def files(written, tmp_path):
    """All families' files; that of FLUX.1 alone may be written to."""
    for each in written.iterdir():
        try:
            (shutil.copy if each.stem == "flux" else os.link)(each, tmp_path / each.name)
        except OSError:  # not every disk has links
            shutil.copy(each, tmp_path / each.name)
    return tmp_path


def locate(path, family="flux", controls=False, needs_encoders=False, **settings):
    return locate_base(
        BaseSection(path=str(path), **settings),
        get_family(family),
        controls,
        needs_encoders=needs_encoders,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_every_variant_has_its_settings_in_the_pack(family):
    import diffusers

    facts = get_family(family)
    for variant in facts.variants:
        folder = facts.files.single_file.configs / variant
        pipeline = read_json(folder / "model_index.json")["_class_name"]
        assert facts.files.folder.does_both or facts.files.folder.pipelines[pipeline] in {
            variant,
            None,
        }
        transformer = read_json(folder / "transformer" / "config.json")
        assert facts.files.single_file.transformer == f"diffusers.{transformer['_class_name']}"
        vae = read_json(folder / "vae" / "config.json")
        kind = getattr(diffusers, vae["_class_name"])
        with torch.device("meta"):
            made = kind.from_config(vae)
        written = {k: v for k, v in vae.items() if not k.startswith("_")}
        assert {k: made.config[k] for k in written} == written


def test_the_settings_are_the_published_ones(files):
    qwen = locate(files / "qwen_image.safetensors", "qwen_image")
    assert read_shift(qwen) == ShiftSettings(
        dynamic=True, max_shift=0.9, max_tokens=8192, terminal=0.02
    )
    flux = locate(files / "flux.safetensors")
    assert read_shift(flux) == ShiftSettings(dynamic=True, shift=3.0)
    assert get_family("qwen_image").latent_shape(qwen, 1024, 768) == (16, 96, 128)
    assert get_family("flux").latent_shape(flux, 1024, 768) == (16, 96, 128)
    vae = read_json(flux.encoders / "vae" / "config.json")
    assert (vae["scaling_factor"], vae["shift_factor"]) == (0.3611, 0.1159)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_needs_no_encoders_when_the_graph_has_them(family, files):
    path = files / f"{family}.safetensors"
    location = locate(path, family)
    assert location.file == path
    assert (
        location.folder
        == location.encoders
        == get_family(family).files.single_file.configs / "generate"
    )
    assert not location.embedded
    with pytest.raises(BaseModelError, match=r"base\.encoders") as error:
        locate(path, family, needs_encoders=True)
    assert "denoiser alone" in error.value.found


def test_the_variant_has_to_fit(files):
    path = files / "qwen_image.safetensors"
    assert locate(path, "qwen_image", True, variant="edit").variant == "edit"
    for controls, variant in ((True, "generate"), (False, "edit_plus")):
        with pytest.raises(ConfigError, match="control images"):
            locate(path, "qwen_image", controls, variant=variant)
    with pytest.raises(ConfigError, match="one of auto"):
        locate(files / "flux.safetensors", "flux", True, variant="edit_plus")


def test_the_identity_of_a_file_is_its_content(files):
    path = files / "flux.safetensors"
    copy = shutil.copy(path, files / "copy.safetensors")
    assert file_identity(copy) == file_identity(path)
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))
    assert file_identity(copy) != file_identity(path)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("nothing", "does not exist"),
        ("nothing.safetensors", "does not exist"),
        ("empty", "no model_index.json"),
        ("foreign", "StableDiffusionPipeline"),
    ],
)
def test_what_is_no_base_is_said(name, found, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    index = tmp_path / "foreign" / "model_index.json"
    index.write_text('{"_class_name": "StableDiffusionPipeline"}')
    with pytest.raises(BaseModelError) as error:
        detect_base(tmp_path / name)
    assert found in error.value.found
    assert error.value.remedy
