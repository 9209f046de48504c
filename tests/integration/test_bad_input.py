"""What goes wrong for a user: the message names file or setting and remedy, and nothing is lost."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from runs import CancelAfter, run_config
from safetensors.torch import load_file, save_file

from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.demo.run import dataset_folder
from trainer_core.errors import (
    AdapterError,
    BaseModelError,
    ConfigError,
    DatasetError,
    NonFiniteError,
    StorageError,
)
from trainer_core.families.registry import get_family
from trainer_core.training import train
from trainer_core.training.checkpoint import read_checkpoint
from trainer_core.training.checkpoint_search import find_checkpoint

EMBEDDED = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False).folder


def fails(error, config, *parts):
    with pytest.raises(error) as raised:
        train(config)
    text = str(raised.value)
    for part in (*parts, "Found:", "Expected:", "To do:"):
        assert part in text, text
    return text


def test_missing_dataset_folder(tmp_path, cache):
    folder = tmp_path / "nowhere"
    config = run_config(tmp_path, cache, dataset={"path": str(folder)})
    fails(DatasetError, config, str(folder), "dataset.path")
    assert not (tmp_path / "run").exists(), "a run that never started left a folder"


def test_no_dataset_named(tmp_path, cache):
    fails(ConfigError, run_config(tmp_path, cache, dataset={"path": ""}), "dataset.path")


def test_products_in_8_bits_of_a_base_in_more(tmp_path, cache):
    config = run_config(tmp_path, cache, memory={"compute": "8bit"})
    fails(ConfigError, config, "memory.compute is 8bit", "memory.base_format")
    assert not list(tmp_path.rglob("adapter*.safetensors"))


def test_base_folder_with_a_missing_part(tmp_path, cache):
    base = tmp_path / "base"
    shutil.copytree(EMBEDDED, base)
    shutil.rmtree(base / "vae")
    config = run_config(tmp_path, cache, base={"path": str(base)})
    fails(BaseModelError, config, str(base), "vae")


def test_base_folder_with_a_damaged_weight_file(tmp_path, cache):
    base = tmp_path / "base"
    shutil.copytree(EMBEDDED, base)
    file = base / "transformer" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    fails(BaseModelError, run_config(tmp_path, cache, base={"path": str(base)}), "transformer")


def test_base_that_lacks_a_weight_is_not_filled_with_random_numbers(tmp_path, cache):
    base = tmp_path / "base"
    shutil.copytree(EMBEDDED, base)
    file = base / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(str(file))
    del tensors["transformer_blocks.1.attn.to_q.weight"]
    save_file(tensors, str(file), metadata={"format": "pt"})
    config = run_config(tmp_path, cache, base={"path": str(base)})
    fails(BaseModelError, config, "transformer_blocks.1.attn.to_q.weight")


def test_pattern_that_matches_nothing_names_near_ones(tmp_path, cache):
    config = run_config(tmp_path, cache, adapter={"targets": [r".*\.attn\.too_q"]})
    fails(AdapterError, config, "adapter.targets", "to_q")


def test_rank_above_the_layer(tmp_path, cache):
    config = run_config(tmp_path, cache, adapter={"kind": "lora", "rank": 4096})
    fails(AdapterError, config, "adapter.rank")


def test_family_of_another_base(tmp_path, cache):
    config = run_config(tmp_path, cache, base={"path": str(EMBEDDED)}, family="flux")
    fails(BaseModelError, config, "QwenImagePipeline", "family")


def test_output_folder_that_is_a_file(tmp_path, cache):
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    fails(StorageError, run_config(blocked, cache), str(blocked), "output.dir")


def test_unknown_device(tmp_path, cache):
    config = run_config(tmp_path, cache, memory={"device": "warp:7"})
    fails(ConfigError, config, "memory.device")


def poisoned_base(folder):
    """The embedded base with a NaN in its last layer: every loss is NaN."""
    shutil.copytree(EMBEDDED, folder)
    file = folder / "transformer" / "diffusion_pytorch_model.safetensors"
    tensors = load_file(str(file))
    tensors["proj_out.bias"] = torch.full_like(tensors["proj_out.bias"], torch.nan)
    save_file(tensors, str(file), metadata={"format": "pt"})
    return folder


def test_loss_that_is_not_finite_names_step_sigma_and_samples(tmp_path, cache):
    base = poisoned_base(tmp_path / "base")
    config = run_config(tmp_path, cache, base={"path": str(base)})
    text = fails(NonFiniteError, config, "step 4", "sigma", ".png")
    assert "without the adapter the loss is not finite either" in text
    assert text.count("sigma 0.") >= 4, "not every sample of the step is named"
    record = json.loads((tmp_path / "run" / "v0" / "run.json").read_text())
    assert record["status"] == "failed"
    assert not list((tmp_path / "run").rglob("*.safetensors"))


class PoisonAfter(CancelAfter):
    """Puts a NaN into a weight that training reads, once a step is done."""

    def __init__(self, step):
        super().__init__(step=10**9)
        self.when = step

    def notify(self, event):
        super().notify(event)
        if self.last == self.when:
            import gc

            layers = [o for o in gc.get_objects() if type(o) is torch.nn.Linear]
            for layer in layers:
                if layer.weight.dim() == 2 and not layer.weight.requires_grad:
                    layer.weight.fill_(torch.nan)


def test_broken_run_keeps_the_state_before_and_can_be_resumed(tmp_path, cache):
    config = run_config(
        tmp_path, cache, training={"steps": 6, "recovery": {"skips": 0, "returns": 0}}
    )
    with pytest.raises(NonFiniteError, match="step 4"):
        train(config, PoisonAfter(3))
    resumed = run_config(tmp_path, cache, training={"steps": 6}, resume="latest")
    checkpoint = read_checkpoint(find_checkpoint(resumed))
    assert checkpoint.step == 3
    assert all(torch.isfinite(tensor).all() for tensor in checkpoint.tensors.values())
    assert train(resumed).status == "done"


def test_interrupted_by_ctrl_c_releases_the_lock_and_marks_the_run_cancelled(tmp_path, cache):
    class Breaker(CancelAfter):
        def notify(self, event):
            super().notify(event)
            if self.last == 2:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run_config(tmp_path, cache), Breaker(10**9))
    folder = tmp_path / "run" / "v0"
    record = json.loads((folder / "run.json").read_text())
    assert (record["status"], record["stopped_by"]) == ("cancelled", "SIGINT")
    assert not (folder / "lock.json").exists()


def test_changed_dataset_is_another_run(tmp_path, cache):
    copy = tmp_path / "data"
    shutil.copytree(dataset_folder("generate"), copy)
    settings = {"steps": 2}
    train(run_config(tmp_path / "a", cache, training=settings, dataset={"path": str(copy)}))
    moved = copy.rename(tmp_path / "moved")
    longer = {"steps": 3}
    config = run_config(
        tmp_path / "a", cache, training=longer, dataset={"path": str(moved)}, resume="latest"
    )
    assert train(config).step == 3, "a dataset that only moved is the same dataset"
    caption = next(Path(moved).glob("*.txt"))
    caption.write_text("something else")
    with pytest.raises(ConfigError, match="the images, their captions or their sizes"):
        train(config)
