"""Several folders in a run: what each says otherwise reaches what is trained."""

import json
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from integration.runs import CancelAfter, run_config

from trainer_core.demo.run import dataset_folder
from trainer_core.errors import InputError
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare
from trainer_core.training.run import train
from trainer_core.training.setup.step_inputs import batch_plan
from trainer_core.training.step.processes import SingleProcess


def copied(folder: Path, numbers: range) -> str:
    """A folder with some of the demo's images and captions."""
    folder.mkdir()
    for number in numbers:
        for ending in ("png", "txt"):
            shutil.copy(dataset_folder("generate") / f"{number:03}.{ending}", folder)
    return str(folder)


@pytest.fixture
def folders(tmp_path):
    """Own images with a metadata file, more of another size, held-out ones, ordinary ones."""
    own = copied(tmp_path / "own", range(1, 4))
    rows = [{"image": "001.png", "repeats": 3}, {"image": "002.png", "weight": 0.5}]
    rows.append({"image": "003.png", "caption": "a shape of the list"})
    (tmp_path / "own" / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)))
    more = {
        "path": copied(tmp_path / "more", range(4, 6)),
        "resolution": 32,
        "trigger_word": "zab",
        "num_repeats": 2,
        "weight": 0.25,
    }
    held = {"path": copied(tmp_path / "held", range(6, 8)), "role": "validation"}
    plain = {"path": copied(tmp_path / "plain", range(8, 9)), "role": "regularization"}
    return {"path": own, "folders": [more, held, plain], "trigger_word": "zorb"}


def test_each_folder_is_trained_by_its_own_settings(tmp_path, folders):
    dataset = {**folders, "caption_dropout": 0.0}
    training = {"steps": 8, "batch_size": 2, "gradient_accumulation_steps": 1}
    config = run_config(tmp_path / "runs", tmp_path / "cache", dataset=dataset, training=training)
    data = prepare(config, SilentObserver(), SingleProcess(torch.device("cpu"))).dataset
    sizes = {item.name: item.bucket.width for item in data.items}
    assert {name: size for name, size in sizes.items() if "more/" in name} == {
        "more/004.png": 32,
        "more/005.png": 32,
    }
    assert set(sizes.values()) == {32, 64}
    run = SimpleNamespace(config=config, data=SimpleNamespace(dataset=data), preservation=None)
    plan = batch_plan(run)
    drawn = Counter(
        data.items[index].name
        for step in range(1, plan.steps_per_epoch + 1)
        for each in plan.passes(step)
        for index in each.indices
    )
    assert drawn == {
        "001.png": 3,
        "002.png": 1,
        "003.png": 1,
        "more/004.png": 2,
        "more/005.png": 2,
        "plain/008.png": 1,
    }
    result = train(config)
    assert len(result.losses) == 8
    assert data.own_images == 5


def test_held_out_images_change_nothing_that_is_trained(tmp_path, folders):
    training = {"steps": 2, "batch_size": 2, "gradient_accumulation_steps": 1}

    def losses(name, dataset):
        cache = tmp_path / "cache"
        return train(run_config(tmp_path / name, cache, dataset=dataset, training=training)).losses

    more, held, plain = folders["folders"]
    with_held = losses("with", {**folders, "folders": [more, plain, held]})
    assert losses("without", {**folders, "folders": [more, plain]}) == with_held
    other = {**folders, "folders": [{**more, "weight": 1.0}, plain]}
    assert losses("heavier", other) != with_held


def test_a_resumed_run_may_find_its_folders_elsewhere_but_no_others(tmp_path, folders):
    training = {"steps": 4, "batch_size": 2, "gradient_accumulation_steps": 1}
    whole = run_config(tmp_path / "a", tmp_path / "cache", dataset=folders, training=training)
    straight = train(whole).losses
    part = run_config(tmp_path / "b", tmp_path / "cache", dataset=folders, training=training)
    train(part, CancelAfter(2))
    more, held, plain = folders["folders"]
    moved = tmp_path / "elsewhere"
    shutil.move(more["path"], moved)
    moved = {**folders, "folders": [{**more, "path": str(moved)}, held, plain]}
    again = part.model_copy(update={"resume": "latest"})
    less = with_dataset(again, {**moved, "folders": moved["folders"][:2]})
    with pytest.raises(InputError, match="dataset"):
        train(less)
    resumed = train(with_dataset(again, moved))
    assert resumed.losses[-2:] == straight[-2:]


def with_dataset(config, values):
    dataset = type(config.dataset).model_validate(config.dataset.model_dump() | values)
    return config.model_copy(update={"dataset": dataset})
