"""With everything on at once, a run that is stopped and resumed ends with the same bits."""

from typing import get_args

import pytest
import torch
from everything import everything, masked_images
from runs import CancelAfter, run_config, tensors
from test_resume import assert_equal_runs

from trainer_core.config.optimizer import OptimizerName
from trainer_core.training import train
from trainer_core.training.optimizers import OPTIMIZERS

AVERAGES_ITSELF = {"adamw_schedule_free", "prodigy_schedule_free"}
"""They take no average beside their own."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "adamw" else [pytest.mark.exhaustive])
        for name in get_args(OptimizerName)
    ],
)
def test_a_resumed_run_with_everything_on_ends_with_the_same_bits(tmp_path, name):
    pytest.importorskip(OPTIMIZERS[name].package or "torch")
    images = masked_images(tmp_path / "images")
    training = {
        "steps": 4,
        "optimizer": {"name": name},
        "schedule": {"name": "constant", "warmup_steps": 0},
    }
    if name in AVERAGES_ITSELF:
        training["ema"] = {"decay": 0.0, "export": "average", "post_hoc": False}
    settings = everything(images, training=training)

    def run(folder, observer=None, **more):
        return train(
            run_config(tmp_path / folder, tmp_path / "cache", **settings, **more), observer
        )

    whole = run("whole")
    stopped = run("parts", CancelAfter(3))
    assert (stopped.status, stopped.step) == ("cancelled", 3)
    parts = run("parts", resume="latest")
    assert (parts.status, parts.step, parts.folder) == ("done", 4, stopped.folder)
    assert_equal_runs(whole.folder, parts.folder, 4)
    for one, other in zip(whole.adapters, parts.adapters, strict=True):
        kept, again = tensors(one), tensors(other)
        assert kept.keys() == again.keys()
        assert all(torch.equal(each, again[key]) for key, each in kept.items())
    ledgers = [(each.folder / "ledger.json").read_bytes() for each in (whole, parts)]
    assert ledgers[0] == ledgers[1]
    pictures = [
        sorted(each.read_bytes() for each in (result.folder / "samples").rglob("*.png"))
        for result in (whole, parts)
    ]
    assert pictures[0] == pictures[1]
    assert len(pictures[0]) == 3
