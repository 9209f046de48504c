"""A run can start from an adapter of every layout, and from none that would lose a part."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.peer_files import QWEN, one
from trainer_core.config import RunConfig
from trainer_core.errors import AdapterFileError, ConfigError
from trainer_core.families.registry import get_family
from trainer_core.training.setup.starting_point import read_start, start_identity


def config(path, family="qwen_image"):
    values = {"base": {"path": "embedded"}, "dataset": {"path": "x"}, "family": family}
    return RunConfig.model_validate({**values, "adapter": {"start_from": str(path)}})


def start_of(settings):
    return read_start(settings, get_family(settings.family))


@pytest.mark.parametrize("ending", ["diff", "diff_b", "set_weight", "w_norm"])
def test_what_is_no_factor_is_refused_by_name(ending, tmp_path):
    peer, path = (
        one(f"transformer.{QWEN}", QWEN, "qwen_image", "comfyui"),
        tmp_path / "a.safetensors",
    )
    save_file({**peer.tensors, f"diffusion_model.img_in.{ending}": torch.ones(4, 4)}, path)
    with pytest.raises(AdapterFileError, match=rf"changes img_in\.{ending}, and 1 layer"):
        start_of(config(path))
    assert len(load_file(path)) == 4


def test_a_path_without_an_adapter_is_told(tmp_path):
    with pytest.raises(ConfigError, match="there is no file"):
        start_of(config(tmp_path / "none"))
    with pytest.raises(ConfigError, match="there is no file"):
        start_identity(config(tmp_path / "none"), None)
    for ask in (start_of, lambda given: start_identity(given, None)):
        with pytest.raises(AdapterFileError, match=r"folder without adapter_model\.safetensors"):
            ask(config(tmp_path))
