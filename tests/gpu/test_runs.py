"""Real runs of the embedded base on CUDA."""

import math
from statistics import mean

import numpy as np
import pytest
import torch
from PIL import Image
from runs import CancelAfter, metrics, run_config, tensors

from tests.fixtures.small_module import each_kind
from tests.gpu.memory import given_back, relative
from trainer_core.training import train
from trainer_core.training.step.compiled_blocks import missing_compiler

pytestmark = pytest.mark.gpu

MIB = 2**20


def cuda_config(folder, cache, precision="bf16", training=None, **sections):
    training = {"precision": precision, **(training or {})}
    return run_config(folder, cache, memory={"device": "cuda"}, training=training, **sections)


@each_kind
def test_a_bf16_run_trains(tmp_path, cache, kind):
    training = {
        "steps": 60,
        "gradient_accumulation_steps": 1,
        "batch_size": 4,
        "schedule": {"name": "constant", "warmup_steps": 0},
        "optimizer": {"learning_rate": 3e-3},
    }
    adapter = {"kind": kind, "targets": "default", "dropout": 0.0}
    trained = train(cuda_config(tmp_path / "run", cache, training=training, adapter=adapter))
    # The same draws with a learning rate of nothing: what the base's loss is at the same steps.
    training["optimizer"] = {"learning_rate": 1e-12}
    still = train(cuda_config(tmp_path / "still", cache, training=training, adapter=adapter))
    assert (trained.status, trained.step, len(trained.losses)) == ("done", 60, 60)
    assert all(math.isfinite(loss) for loss in trained.losses)
    assert mean(trained.losses[-20:]) < 0.9 * mean(still.losses[-20:])
    state = tensors(trained.adapters[0])
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}
    assert all(torch.isfinite(tensor).all() for tensor in state.values())
    assert "cuda" in (trained.folder / "run.yaml").read_text()


def last_weights(result):
    """The adapter's exact weights after the last step, as one vector."""
    path = result.folder / "checkpoints" / f"{result.step:06d}" / "training_state.safetensors"
    named = tensors(path)
    return torch.cat([named[k].flatten() for k in sorted(named) if k.startswith("adapter.")])


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_resumed_run_goes_on_where_it_stopped(tmp_path, cache, precision):
    """Not bit by bit: some of CUDA's backward passes add in no fixed order."""
    whole = train(cuda_config(tmp_path / "whole", cache, precision))
    stopped = train(cuda_config(tmp_path / "run", cache, precision), CancelAfter(10))
    assert (stopped.status, stopped.step) == ("cancelled", 10)
    resumed = train(cuda_config(tmp_path / "run", cache, precision, resume="latest"))
    assert (resumed.status, resumed.step, resumed.folder) == ("done", 20, stopped.folder)
    lines, expected = metrics(resumed.folder), metrics(whole.folder)
    assert [line["step"] for line in lines] == list(range(1, 21))
    for line, other in zip(lines, expected, strict=True):
        assert line["loss"] == pytest.approx(other["loss"], rel=2e-2)
        for same in ("learning_rate", "sigma_mean", "epoch"):
            assert line[same] == other[same]
    # Measured on what the second half changed: without the optimizer's state it would be another.
    halfway = last_weights(stopped)
    assert relative(last_weights(resumed) - halfway, last_weights(whole) - halfway) < 0.1


def test_runs_give_their_memory_back(tmp_path, cache):
    preview = {"every": 2, "prompts": ["a red star on blue"], "width": 64, "height": 64}

    def run(name, precision):
        config = cuda_config(tmp_path / name, cache, precision, {"steps": 2}, preview=preview)
        assert len(train(config).pictures) == 2

    for precision in ("bf16", "fp32"):  # CUDA's libraries keep their workspaces from then on
        run(precision, precision)
    before = torch.cuda.memory_allocated()
    for number, precision in enumerate(("bf16", "fp32", "bf16")):
        torch.cuda.reset_peak_memory_stats()
        run(f"{number}", precision)
        assert torch.cuda.max_memory_allocated() - before > 2 * MIB, "nothing was on the device"
        assert abs(torch.cuda.memory_allocated() - before) < MIB, f"after run {number}"


def test_an_fp32_run_after_a_bf16_run_computes_in_fp32(tmp_path, cache):
    alone = train(cuda_config(tmp_path / "first", cache, "fp32", {"steps": 3}))
    rounded = train(cuda_config(tmp_path / "rounded", cache, "bf16", {"steps": 3}))
    again = train(cuda_config(tmp_path / "again", cache, "fp32", {"steps": 3}))
    assert again.losses == pytest.approx(alone.losses, rel=1e-4)
    assert rounded.losses != pytest.approx(alone.losses, rel=1e-4)


def test_training_draws_nothing_from_the_global_generators(tmp_path, cache):
    before = torch.random.get_rng_state(), torch.cuda.get_rng_state()
    train(cuda_config(tmp_path, cache, training={"steps": 2}))
    after = torch.random.get_rng_state(), torch.cuda.get_rng_state()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))


def test_previews_are_drawn_and_the_first_is_the_cpus(tmp_path, cache):
    prompts = ["a red circle on a blue background", "a white cross on a green background"]
    preview = {"every": 2, "prompts": prompts, "width": 64, "height": 64, "steps": 8}
    drawn = train(cuda_config(tmp_path / "cuda", cache, "fp32", {"steps": 2}, preview=preview))
    assert [path.relative_to(drawn.folder).as_posix() for path in drawn.pictures] == [
        f"samples/{step:06d}/{index}.png" for step in (0, 2) for index in (0, 1)
    ]
    pixels = [np.asarray(Image.open(path), dtype=np.float32) for path in drawn.pictures]
    assert all(image.shape == (64, 64, 3) and image.std() > 10 for image in pixels)
    on_cpu = train(
        run_config(
            tmp_path / "cpu", cache, training={"steps": 1, "precision": "fp32"}, preview=preview
        )
    )
    for found, path in zip(pixels[:2], on_cpu.pictures[:2], strict=True):
        expected = np.asarray(Image.open(path), dtype=np.float32)
        assert np.abs(found - expected).mean() < 2.0
    assert np.abs(pixels[0] - pixels[1]).mean() > 20, "the two prompts look alike"


@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize(
    "options", [{}, {"blocks_to_swap": 5}, {"base_format": "int8", "compute": "8bit"}]
)
def test_it_learns_as_a_run_that_is_not_compiled_and_gives_all_memory_back(
    tmp_path, cache, options, precision
):
    missing = missing_compiler(torch.device("cuda"))
    if missing is not None:
        pytest.skip(missing)
    told = CancelAfter()

    def run(name, compiled):
        memory = {"device": "cuda", "gradient_checkpointing": True, "compile": compiled, **options}
        training = {"steps": 6, "precision": precision}
        config = run_config(tmp_path / name, cache, memory=memory, training=training)
        return train(config, told).losses

    plain = run("plain", False)
    with given_back():
        assert run("compiled", True) == pytest.approx(plain, rel=5e-2)
    assert not [each for each in told.said() if "memory.compile" in each]
