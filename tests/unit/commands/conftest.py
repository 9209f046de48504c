"""Adapter files that verbs are given."""

import pytest

from tests.fixtures.family_states import family_state, key_map
from trainer_core.adapter_files.write.write_adapter import write_adapter

OWN = {"adapter_trainer": '{"family": "flux"}'}
"""The header of a file of this program, whose base may have had any size."""


@pytest.fixture
def lora(tmp_path):
    path = tmp_path / "in" / "lora.safetensors"
    write_adapter(path, family_state("flux", "lora"), "comfyui", key_map("flux"), OWN)
    return path
