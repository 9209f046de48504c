"""A run can start from an adapter of every layout, and from none that would lose a part."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fixtures.peer_files import PEERS, QWEN, Draw, one
from trainer_core.adapters.kinds.registry import layer_scale
from trainer_core.config import RunConfig
from trainer_core.errors import AdapterError, AdapterFileError, ConfigError
from trainer_core.families.registry import get_family
from trainer_core.training.setup.start import read_start, start_identity

QWEN_PEERS = [title for title, peer in PEERS.items() if peer.family == "qwen_image"]


def config(path, family="qwen_image"):
    values = {"base": {"path": "embedded"}, "dataset": {"path": "x"}, "family": family}
    return RunConfig.model_validate({**values, "adapter": {"start_from": str(path)}})


def start_of(settings):
    return read_start(settings, get_family(settings.family))


@pytest.mark.parametrize("title", QWEN_PEERS)
def test_a_run_starts_from_every_spelling(title, tmp_path):
    peer = PEERS[title]
    save_file(peer.tensors, tmp_path / "a.safetensors", peer.metadata)
    assert set(start_of(config(tmp_path / "a.safetensors")).layers) == {QWEN}


def test_a_run_starts_from_no_layer_that_is_not_the_models(tmp_path):
    """A LoKr of a fused layer whose parts begin inside its blocks."""
    name = "diffusion_model.double_blocks.3.img_attn.qkv"
    factors = {"lokr_w1": Draw(0)(4, 3), "lokr_w2": Draw(1)(6, 4)}
    save_file({f"{name}.{n}": t for n, t in factors.items()}, tmp_path / "a.safetensors")
    with pytest.raises(AdapterError, match=r"img_attn\.qkv \(lokr\)") as caught:
        start_of(config(tmp_path / "a.safetensors", "flux"))
    assert "adapter.start_from" in caught.value.expected
    assert "--approximate lora" in caught.value.remedy


def peft_folder(folder, alpha):
    factors = Draw(0).factors("lora")
    tensors = {
        f"base_model.model.{QWEN}.lora_A.weight": factors["lora_down"],
        f"base_model.model.{QWEN}.lora_B.weight": factors["lora_up"],
    }
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    values = {"peft_type": "LORA", "r": 2, "lora_alpha": alpha}
    (folder / "adapter_config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def test_a_run_starts_from_a_folder_and_knows_its_scale(tmp_path):
    folder = peft_folder(tmp_path / "adapter", 3)
    for path in (folder, folder / "adapter_model.safetensors"):
        layer = start_of(config(path)).layers[QWEN]
        assert layer_scale("lora", layer) == 1.5
    first = start_identity(config(folder), None)
    assert first == start_identity(config(folder / "adapter_model.safetensors"), None)
    assert start_identity(config(peft_folder(tmp_path / "copy", 3)), None) == first
    assert start_identity(config(peft_folder(folder, 4)), None) != first


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
