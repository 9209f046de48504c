"""What goes wrong for a user: the message names file or setting and remedy, and nothing is lost."""

import shutil

import pytest
from runs import CancelAfter, record, run_config
from safetensors.torch import load_file, save_file

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.errors import AdapterError, BaseModelError, ConfigError, DatasetError
from trainer_core.families.registry import get_family
from trainer_core.training import train

EMBEDDED = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False).folder
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
LACKING = "transformer_blocks.1.attn.to_q.weight"


def without_vae(base):
    shutil.rmtree(base / "vae")


def cut(base):
    (base / WEIGHTS).write_bytes((base / WEIGHTS).read_bytes()[:-1000])


def lacking_a_weight(base):
    """It is not filled with random numbers."""
    tensors = load_file(base / WEIGHTS)
    del tensors[LACKING]
    save_file(tensors, base / WEIGHTS, metadata={"format": "pt"})


SETTINGS = {
    "no dataset folder": (DatasetError, {"dataset": {"path": "nowhere"}}, "dataset.path"),
    "no dataset": (ConfigError, {"dataset": {"path": ""}}, "dataset.path"),
    "8 bits of more": (ConfigError, {"memory": {"compute": "8bit"}}, "memory.base_format"),
    "nothing matches": (AdapterError, {"adapter": {"targets": [r".*\.attn\.too_q"]}}, "to_q"),
    "rank": (AdapterError, {"adapter": {"kind": "lora", "rank": 4096}}, "adapter.rank"),
    "device": (ConfigError, {"memory": {"device": "warp:7"}}, "memory.device"),
    "family": (BaseModelError, {"base": {"path": str(EMBEDDED)}, "family": "flux"}, "Qwen"),
}
BASES = {without_vae: "vae", cut: "transformer", lacking_a_weight: LACKING}


def fails(error, config, *parts):
    with pytest.raises(error) as raised:
        train(config)
    text = str(raised.value)
    for part in (*parts, "Found:", "Expected:", "To do:"):
        assert part in text, text


@pytest.mark.parametrize("name", SETTINGS)
def test_a_wrong_setting_is_named_before_a_folder_is_made(tmp_path, cache, name):
    error, settings, named = SETTINGS[name]
    fails(error, run_config(tmp_path, cache, **settings), named)
    assert not (tmp_path / "run").exists(), "a run that never started left a folder"


@pytest.mark.parametrize("damage", BASES)
def test_a_damaged_base_is_named(tmp_path, cache, damage):
    base = tmp_path / "base"
    shutil.copytree(EMBEDDED, base)
    damage(base)
    config = run_config(tmp_path, cache, base={"path": str(base)})
    fails(BaseModelError, config, str(base), BASES[damage])


def test_interrupted_by_ctrl_c_releases_the_lock_and_marks_the_run_cancelled(tmp_path, cache):
    class Breaker(CancelAfter):
        def notify(self, event):
            super().notify(event)
            if self.last == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run_config(tmp_path, cache), Breaker())
    found = record(tmp_path / "run" / "v0")
    assert (found["status"], found["stopped_by"]) == ("cancelled", "SIGINT")
    assert not (tmp_path / "run" / "v0" / "lock.json").exists()
