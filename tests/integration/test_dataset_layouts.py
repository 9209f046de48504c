"""Layouts of a dataset folder, trained end to end on the embedded base."""

import pytest
import torch

from tests.fixtures.bad_input import write_image, write_pair
from tests.integration.runs import run_config
from trainer_core.errors import DatasetError
from trainer_core.training.observer import SilentObserver
from trainer_core.training.prepare.encode_dataset import prepare
from trainer_core.training.step.processes import SingleProcess

SIZE = {"width": 64, "height": 64}


@pytest.fixture
def mixed(tmp_path):
    """Six images: two without a control image, two with one, two with three."""
    folder = tmp_path / "mixed"
    for number in range(6):
        write_pair(folder / "training_images" / f"{number}.png", f"edit {number}", **SIZE)
        if number >= 2:
            write_image(folder / "control_images" / f"{number}.png", **SIZE)
        for place in range(2 if number >= 4 else 0):
            write_image(folder / "control_images_2" / f"{number}_{place}.png", **SIZE)
    return folder


def mixed_config(tmp_path, folder, **dataset):
    return run_config(
        tmp_path / "output",
        tmp_path / "cache",
        base={"path": "embedded", "variant": "edit_plus"},
        dataset={"path": str(folder), "resolution": 64, **dataset},
        training={"steps": 6, "batch_size": 2, "gradient_accumulation_steps": 1},
        preview={"every": 0},
    )


def test_an_image_without_control_image_has_to_be_asked_for(tmp_path, mixed):
    with pytest.raises(DatasetError, match=r"training_images/0\.png has no control image"):
        prepare(mixed_config(tmp_path, mixed), SilentObserver(), SingleProcess(torch.device("cpu")))
    config = mixed_config(tmp_path, mixed, missing_control="without")
    one = config.model_copy(update={"base": config.base.model_copy(update={"variant": "edit"})})
    with pytest.raises(DatasetError, match="3 control images") as caught:
        prepare(one, SilentObserver(), SingleProcess(torch.device("cpu")))
    assert "edit" in str(caught.value)
