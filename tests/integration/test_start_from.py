"""A run that starts from the adapter file of another one."""

import json

import pytest
from runs import CancelAfter, assert_same_files, preview_image, run_config
from safetensors import safe_open

from trainer_core.errors import AdapterError
from trainer_core.training import train

SHORT = {"steps": 3, "optimizer": {"learning_rate": 2e-2}}
PREVIEW = {
    "every": 3,
    "prompts": ["a red circle on a blue background"],
    "width": 64,
    "height": 64,
    "steps": 4,
}


def start(file, **adapter):
    return {"adapter": {"start_from": str(file), **adapter}}


@pytest.fixture(scope="module")
def first(tmp_path_factory, cache):
    """Three steps, with the base's image and that of the end."""
    folder = tmp_path_factory.mktemp("source_run")
    layouts = {"layouts": ["comfyui", "diffusers"]}
    return train(run_config(folder, cache, training=SHORT, preview=PREVIEW, output=layouts))


@pytest.mark.parametrize("layout", [0, 1])
def test_second_run_draws_at_step_0_what_the_first_drew_at_its_end(tmp_path, cache, first, layout):
    observer = CancelAfter(1)
    file = first.adapters[layout]
    config = run_config(tmp_path, cache, training=SHORT, preview=PREVIEW, **start(file))
    second = train(config, observer)
    base, end = preview_image(first.folder, 0), preview_image(first.folder, 3)
    assert base != end, "three steps change nothing that an image shows"
    assert preview_image(second.folder, 0) == end
    assert any("starts from a file" in e and "as they are" in e for e in observer.said())


@pytest.mark.parametrize("level", ["shareable", "full"])
def test_unmoved_weights_are_the_first_runs_and_tell_where_they_are_from_if_asked(
    tmp_path, cache, first, level
):
    """A rate too small for any float32 leaves the taken-over values to be compared."""
    still = {"steps": 1, "optimizer": {"learning_rate": 1e-30, "weight_decay": 0.0}}
    output = {"metadata": level}
    given = start(first.adapters[0])
    second = train(run_config(tmp_path, cache, training=still, output=output, **given))
    assert_same_files(first.adapters[:1], second.adapters)
    with safe_open(str(second.adapters[0]), framework="pt") as file:
        assert ("source_run" in json.dumps(file.metadata())) is (level == "full")


def test_resized_start_is_reported(tmp_path, cache, first):
    observer = CancelAfter(1)
    adapter = start(first.adapters[0], rank=2, factor=7)
    train(run_config(tmp_path, cache, training=SHORT, **adapter), observer)
    messages = observer.said()
    (said,) = [message for message in messages if "starts" in message]
    assert "resized (relative error of the delta: median" in said
    assert any("factor 7 does not divide" in message for message in messages)


def test_layers_that_are_not_trained_are_named_before_a_folder_is_made(tmp_path, cache, first):
    narrow = {"targets": [r".*\.0\.attn\.to_q"]}
    with pytest.raises(AdapterError, match=r"layers of the file are not adapted: .*to_k"):
        train(run_config(tmp_path, cache, training=SHORT, **start(first.adapters[0], **narrow)))
    assert not (tmp_path / "run").exists()
