"""Runs with masks and mirrored images on the embedded base."""

import shutil
from pathlib import Path

import pytest
import torch
from everything import masked_images
from PIL import Image
from runs import run_config

from trainer_core.errors import DatasetError
from trainer_core.training import SingleProcess, train
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.cache_manifest import read_manifest
from trainer_core.training.prepare.encode_dataset import prepare, save_manifest
from trainer_core.types import View

STEPS = {"steps": 3, "gradient_accumulation_steps": 1, "batch_size": 2}


def masked_run(tmp_path, name, training=STEPS, **dataset):
    data = tmp_path / "data"
    options = {"path": str(data), **dataset}
    # Dropout inside the adapter is drawn for each part of a batch anew.
    given = {"dataset": options, "training": training, "adapter": {"dropout": 0.0}}
    return run_config(tmp_path / name, tmp_path / "cache", **given)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_finished_cache_trains_masked_and_mirrored_images_as_their_files_do(tmp_path):
    folder = masked_images(tmp_path / "data", 4)
    Image.new("L", (64, 64), 255).save(folder / "1_mask.png")
    options = {"flip": True, "crop": "mask"}
    config = masked_run(tmp_path, "files", **options)
    with torch.inference_mode(False):
        prepared = prepare(config, SilentObserver(), SingleProcess(torch.device("cpu")))
    manifest = str(save_manifest(config, prepared))
    shutil.rmtree(folder)

    def finished(name, **mask):
        given = masked_run(tmp_path, name, **options, mask=mask)
        empty = given.dataset.model_copy(update={"path": ""})
        cache = given.cache.model_copy(update={"manifest": manifest})
        return given.model_copy(update={"dataset": empty, "cache": cache})

    listed = read_manifest(Path(manifest)).dataset
    assert [item.mask is not None for item in listed.items] == [True, True, True, False]
    assert all(item.flipped is not None for item in listed.items)
    for number, item in enumerate(listed.items):
        for view in (View(), View(flipped=True)):
            one, two = prepared.dataset.load(number, view), listed.load(number, view)
            assert torch.equal(one.latents, two.latents)
            assert (one.mask is None) == (two.mask is None) == (item.mask is None)
            assert one.mask is None or two.mask is None or torch.equal(one.mask, two.mask)
    assert train(finished("a")).losses != train(finished("b", background=1.0)).losses
    with pytest.raises(DatasetError, match=r"nothing of 1\.png counts: its mask is the same"):
        train(finished("c", foreground=0.0))
