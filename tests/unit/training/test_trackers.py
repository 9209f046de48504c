"""Who else is told of a run's numbers: names, running means, and what never leaves the machine."""

import contextlib
import io
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from trainer_core.config import RunConfig
from trainer_core.data.clips import clip_facts, read_frames
from trainer_core.errors import StorageError
from trainer_core.inference.preview_files import save_movie
from trainer_core.training.metrics.tensorboard import TensorBoard
from trainer_core.training.metrics.weights_and_biases import WeightsAndBiases, told_settings
from trainer_core.training.recorder import make_trackers
from trainer_core.types import ClipPart, StepResult

NAME = "tiddles-in-boots"
SECRETS = ("/srv/somebody/pictures", "a photo of my cat Tiddles", "sks-trigger", "Tiddles.png")


def result(step, bands=(0.25, None), **more):
    return StepResult(step, 0.1, 0.5, 1e-4, 0.3, 0.5, 1.0, 9.0, bands=bands, **more)


def config(**output):
    path, prompt, trigger, image = SECRETS
    return RunConfig.model_validate(
        {
            "base": {"path": path},
            "dataset": {"path": path, "trigger_word": trigger},
            "preview": {"prompts": [prompt], "every": 1, "controls": [[image]]},
            "output": {"dir": path, "name": NAME, **output},
        }
    )


def test_settings_that_leave_the_machine_have_no_words_of_the_user():
    told = told_settings(config(), full=False)
    assert told["training.optimizer.learning_rate"] == 1e-4
    assert told["adapter.kind"] == config().adapter.kind
    assert not any(secret in str(told) for secret in SECRETS)
    # All of them are in the run file itself:
    whole = str(told_settings(config(), full=True))
    assert all(secret in whole for secret in SECRETS)


def test_only_trackers_that_are_named_are_made(tmp_path):
    none = RunConfig.model_validate({"metrics": {"trackers": []}})
    assert make_trackers(none, tmp_path, 0, refuse) == []
    twice = RunConfig.model_validate({"metrics": {"trackers": ["tensorboard", "tensorboard"]}})
    (board,) = make_trackers(twice, tmp_path, 0, refuse)
    assert isinstance(board, TensorBoard)
    board.close()


def refuse(line):
    raise AssertionError(line)


@contextlib.contextmanager
def environment(**values):
    """Variables of the library for a time, and none of the user's own."""
    own = {name: value for name, value in os.environ.items() if name.startswith(("WANDB", "NETRC"))}
    for name in own:
        del os.environ[name]
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(own)


@pytest.fixture
def wandb():
    library = pytest.importorskip("wandb")
    library.teardown()
    yield library
    library.teardown()


@pytest.mark.exhaustive
@pytest.mark.parametrize("metadata", ["shareable", "full"])
def test_offline_the_numbers_are_written_here_and_nothing_private_with_them(
    tmp_path, wandb, metadata
):
    with environment(WANDB_MODE="offline"):
        for step in (1, 2):  # and once more, when the run goes on
            tracker = WeightsAndBiases(tmp_path, config(metadata=metadata), refuse)
            tracker.write(result(step))
            movie = tmp_path / f"{step}.mp4"
            tracker.write_preview(step, 0, torch.zeros(1, 3, 8, 8), rate=16.0, movie=movie)
            save_movie([Image.new("RGB", (8, 8))] * 5, movie, 16.0)
            tracker.write_preview(step, 1, torch.zeros(5, 3, 8, 8), rate=16.0, movie=movie)
            tracker.write_validation(step, 0.5)
            tracker.close()
    files = list(tmp_path.rglob("*.wandb"))
    assert len(files) == 2
    assert len({path.name for path in files}) == 1  # the same run there
    written = b"".join(path.read_bytes() for path in files)
    assert b"training/learning_rate" in written
    assert all(name in written for name in (b"preview/0", b"preview/1", b"video-file"))
    private = [secret for secret in (NAME, *SECRETS) if secret.encode() in written]
    assert private == ([] if metadata == "shareable" else [NAME, *SECRETS])
    if metadata == "shareable":
        machine = (os.uname().nodename, str(tmp_path), str(Path.cwd()))
        assert not [each for each in machine if len(each) > 3 and each.encode() in written]
    assert wandb.run is None


def test_tensorboard_shows_a_clip_that_moves(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracker = TensorBoard(tmp_path, 0, refuse)
    frames = torch.linspace(-1, 1, 5).reshape(5, 1, 1, 1).expand(5, 3, 8, 10)
    tracker.write_preview(3, 0, frames, rate=16.0, movie=tmp_path / "0.mp4")
    tracker.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (shown,) = events.Images("preview/0")
    with Image.open(io.BytesIO(shown.encoded_image_string)) as image:
        assert (shown.step, image.size, image.n_frames) == (3, (10, 8), 5)


def test_a_movie_that_cannot_be_encoded_is_told_as_a_disk_that_takes_nothing(tmp_path):
    pytest.importorskip("av")
    with pytest.raises(StorageError, match="PyAV cannot write"):
        save_movie([Image.new("RGB", (1, 1))] * 3, tmp_path / "0.mp4", 16.0)


def test_a_movie_has_the_frames_and_the_rate_of_its_preview(tmp_path):
    pytest.importorskip("av")
    frames = [Image.new("RGB", (33, 16), (40 * number, 90, 20)) for number in range(5)]
    save_movie(frames, tmp_path / "0.mp4", 16.0)
    facts = clip_facts(tmp_path / "0.mp4")
    assert (facts.width, facts.height, facts.frames(16.0)) == (32, 16, 5)
    found = read_frames(tmp_path / "0.mp4", ClipPart(0.0, 5, 16.0))
    for one, other in zip(frames, found, strict=True):
        assert abs(np.asarray(one.crop((0, 0, 32, 16)), int) - np.asarray(other, int)).mean() < 4
