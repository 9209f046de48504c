"""An adapter of a twin family, or one that is no file at all, is refused by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.fixtures.flux_files import FLUX, random_adapter
from tests.fixtures.native_files import make_native_flux
from trainer_core.adapter_files.metadata import SETTINGS_KEY
from trainer_core.adapter_files.write.adapter_file import write_adapter
from trainer_core.bases.base_adapters import outline_base_adapters
from trainer_core.config import BaseAdapter, BaseSection, RunConfig
from trainer_core.errors import AdapterFileError, BaseModelError
from trainer_core.families.registry import get_family
from trainer_core.training.base_marks import base_adapter_marks
from trainer_core.training.start import read_start

pytestmark = pytest.mark.skipif(os.name == "nt", reason="pipes and links of Unix")


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """One that FLUX.1 and Chroma1 both have every layer of, and that says it is Chroma1's."""
    state = random_adapter(make_native_flux(), kind="lora")
    keep = {name: each for name, each in state.layers.items() if ".attn." in name}
    state = type(state)(state.kind, keep)
    path = tmp_path_factory.mktemp("twin") / "chroma.safetensors"
    facts = {SETTINGS_KEY: '{"family": "chroma"}'}
    write_adapter(path, state, "comfyui", FLUX.key_map, facts)
    return path


def section(path):
    return BaseSection(path="any", adapters=[BaseAdapter(path=str(path))])


def start(path, family):
    return RunConfig.model_validate({"family": family, "adapter": {"start_from": str(path)}})


def test_a_twin_s_adapter_is_not_taken_for_one_s_own(file):
    told = r"was trained on Chroma1.* its header says"
    with pytest.raises(BaseModelError, match=r"base\.adapters\.0: .*" + told):
        outline_base_adapters(section(file), FLUX)
    with pytest.raises(AdapterFileError, match=told):
        read_start(start(file, "flux"), FLUX)
    assert read_start(start(file, "chroma"), get_family("chroma")).layers
    assert outline_base_adapters(section(file), get_family("chroma"))


BAD = ["nul", "long", "blank", "missing", "loop", "pipe", "folder", "empty"]


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_adapter_file_is_refused_and_never_waited_for(tmp_path, case):
    path = tmp_path / "a.safetensors"
    if case == "loop":
        path.symlink_to(path)
    elif case == "pipe":
        os.mkfifo(path)
    elif case == "folder":
        path.mkdir()
    elif case == "empty":
        path.touch()
    given = {"nul": "a\0b", "long": "a" * 5000, "blank": " "}.get(case, path)
    with pytest.raises(BaseModelError) as error:
        outline_base_adapters(section(given), FLUX)
    assert error.value.found.startswith("base.adapters.0: ")
    assert error.value.remedy
    if case not in {"folder", "empty"}:
        with pytest.raises(BaseModelError, match=r"base\.adapters\.0"):
            base_adapter_marks(section(given))
    assert not Path("a.safetensors").exists()
