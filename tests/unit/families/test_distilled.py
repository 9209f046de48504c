"""A model that was distilled to few steps is refused, by what it lacks or by its name."""

import json

import pytest
import torch
from safetensors.torch import save_file

from tests.fixtures.families import record
from tests.fixtures.flux_base import SCHEDULER, make_flux_base
from tests.fixtures.native_files import flux_to_native, make_native_flux
from tests.fixtures.tables import table
from trainer_core.bases.distilled import distilled_note
from trainer_core.bases.locate import detect_base, locate_base
from trainer_core.config import BaseAdapter, BaseSection
from trainer_core.errors import BaseModelError
from trainer_core.families.registry import get_family


def write(path, tensors):
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    return path


def locate(path, family, **given):
    settings = BaseSection(path=str(path), **given)
    return locate_base(settings, get_family(family), False, needs_encoders=False)


def training(folder):
    """A training adapter of FLUX.1."""
    layer = "transformer.transformer_blocks.0.attn.to_q"
    tensors = {
        f"{layer}.lora_A.weight": torch.ones(2, 32),
        f"{layer}.lora_B.weight": torch.ones(32, 2),
    }
    path = write(folder / "training_adapter.safetensors", tensors)
    return [BaseAdapter(path=str(path), when="training")]


def check_refused(path, family, *words):
    with pytest.raises(BaseModelError) as error:
        locate(path, family)
    assert "distilled" in error.value.found
    assert "not distilled" in error.value.expected
    for word in (*words, "base.adapters", "base.distilled"):
        assert word in error.value.remedy


def check_trains(path, family):
    """With a training adapter, or on purpose; one line says which."""
    for given, word in (
        ({"adapters": training(path.parent)}, "training adapter"),
        ({"distilled": "train"}, "blur"),
    ):
        location = locate(path, family, **given)
        note = distilled_note(BaseSection(**given), get_family(family), location)
        assert word in note
        assert "\n" not in note


@pytest.mark.parametrize("native", [True, False])
def test_schnell_is_refused_by_what_it_lacks(native, tmp_path):
    tensors = make_native_flux(False, 1, 1).state_dict()
    path = write(tmp_path / "base.safetensors", flux_to_native(tensors) if native else tensors)
    assert detect_base(path) == "flux"
    check_refused(path, "flux", "schnell", "dev")
    check_trains(path, "flux")
    renamed = path.rename(path.with_name("flux-de-distill.safetensors"))
    assert distilled_note(BaseSection(), get_family("flux"), locate(renamed, "flux")) == ""


def test_noise_levels_of_schnell_are_not_moved(tmp_path):
    flux = get_family("flux")
    path = write(tmp_path / "a.safetensors", make_native_flux(False, 1, 1).state_dict())
    schnell = locate(path, "flux", adapters=training(tmp_path))
    assert flux.sampling_sigmas(schnell, 4, 512, 512).tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]
    other = tmp_path / "b.safetensors"
    dev = locate(write(other, make_native_flux(True, 1, 1).state_dict()), "flux")
    assert flux.sampling_sigmas(dev, 4, 512, 512)[1] > 0.76


@pytest.mark.parametrize(
    ("name", "dynamic", "refused"),
    [("base", True, False), ("base", False, True), ("FLUX.1-schnell", True, True)],
)
def test_a_folder_of_schnell_is_known_by_its_noise_levels_or_name(name, dynamic, refused, tmp_path):
    folder = make_flux_base(tmp_path / name, guidance=False)
    settings = folder / "scheduler" / "scheduler_config.json"
    settings.write_text(json.dumps(SCHEDULER | {"use_dynamic_shifting": dynamic, "shift": 1.0}))
    if refused:
        check_refused(folder, "flux")
        check_trains(folder, "flux")
    else:
        assert locate(folder, "flux").folder == folder


NAMES = table(__file__, "distilled_names")
"""Family to names of files to what the remedy says; nothing where the base is not distilled."""


@pytest.mark.parametrize(
    ("family", "name"), [(family, name) for family, names in NAMES.items() for name in names]
)
def test_a_distilled_model_is_refused_by_its_name(family, name, tmp_path):
    tensors = record(family).native()
    if family == "flux2":  # what guides itself is not a klein
        tensors = {key: each for key, each in tensors.items() if "guidance" not in key}
    path = write(tmp_path / f"{name}.safetensors", tensors)
    assert detect_base(path) == family
    if NAMES[family][name]:
        check_refused(path, family, NAMES[family][name])
    else:
        assert locate(path, family).file == path
