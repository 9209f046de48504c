"""A model that was distilled to few steps is refused, by what it lacks or by its name."""

from __future__ import annotations

import pytest
from safetensors.torch import save_file

from tests.fixtures.native_files import flux_to_native, make_native_flux, make_native_qwen
from trainer_core.bases.locate import detect_base, locate_base
from trainer_core.config import BaseSection
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family

FILES = {
    "flux": lambda: flux_to_native(make_native_flux(layers=1, single_layers=1).state_dict()),
    "qwen_image": lambda: make_native_qwen().state_dict(),
}


def write(path, tensors):
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    return path


def locate(path, family):
    return locate_base(BaseSection(path=str(path)), get_family(family), False, needs_encoders=False)


def test_schnell_is_refused_by_what_it_lacks(tmp_path):
    without = make_native_flux(False, 1, 1).state_dict()
    for tensors in (without, flux_to_native(without)):
        path = write(tmp_path / "base.safetensors", tensors)
        for use in (detect_base, lambda path: locate(path, "flux")):
            with pytest.raises(BaseModelError) as error:
                use(path)
            assert "schnell" in error.value.found
            assert "dev" in error.value.expected
            assert "Diffusers folder" in error.value.remedy


@pytest.mark.parametrize(
    ("name", "family", "refused"),
    [
        ("flux1-schnell", "flux", True),
        ("Hyper-FLUX.1-dev-8steps", "flux", True),
        ("qwen_image_distill_full_fp8_e4m3fn", "qwen_image", True),
        ("Qwen-Image-Lightning-4steps", "qwen_image", True),
        ("flux-dev-de-distill", "flux", False),
        ("flux_dev_dedistilled", "flux", False),
        ("undistilled-qwen", "qwen_image", False),
        ("hyperreal_turbocharged_flux", "flux", False),
    ],
)
def test_a_distilled_model_is_refused_by_its_name(name, family, refused, tmp_path):
    path = write(tmp_path / f"{name}.safetensors", FILES[family]())
    if not refused:
        assert detect_base(path) == family
        assert locate(path, family).file == path
        return
    for use in (detect_base, lambda path: locate(path, family)):
        with pytest.raises(BaseModelError) as error:
            use(path)
        assert "distilled" in error.value.found
        assert "not distilled" in error.value.expected
        assert "rename the file" in error.value.remedy
