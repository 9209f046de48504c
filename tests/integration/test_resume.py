"""Stop and resume gives the bits of a run that was never stopped."""

import shutil

import pytest
import torch
import yaml
from everything import everything, masked_images
from runs import (
    CancelAfter,
    assert_equal_runs,
    assert_resumes,
    merge,
    metrics,
    record,
    run_config,
    tensors,
)

from tests.fixtures.combinations import some
from tests.fixtures.compiler import COMPILED, NEEDS_COMPILER
from tests.fixtures.tables import table
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.config.read_run_file import load_config
from trainer_core.errors import ConfigError
from trainer_core.families.registry import get_family
from trainer_core.training import train
from trainer_core.training.observer import RunStarted
from trainer_core.training.optimizers import OPTIMIZERS

RUNS = table(__file__, "resumed runs")
"""An optimizer to what else its run has on, None for everything."""
CASES = [
    *some([name for name in RUNS if name not in COMPILED], "adamw"),
    *(pytest.param(name, marks=[pytest.mark.exhaustive, NEEDS_COMPILER]) for name in COMPILED),
]


def test_every_optimizer_is_in_the_table():
    assert RUNS.keys() == OPTIMIZERS.keys()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, cache, name):
    pytest.importorskip(OPTIMIZERS[name].package or "torch")
    own = RUNS[name]
    if own is None:
        own = everything(masked_images(tmp_path / "images"))
    usual = {"training": {"steps": 4, "optimizer": {"name": name}}}
    settings = merge(usual, own)
    whole, _ = assert_resumes(lambda folder: run_config(tmp_path / folder, cache, **settings), 3)
    kept = tensors(whole.folder / "checkpoints" / "000004" / "training_state.safetensors")
    assert all(torch.isfinite(each.float()).all() for each in kept.values())
    if name == "adamw8bit":
        moments = [each for key, each in kept.items() if key.endswith((".exp_avg", ".exp_avg_sq"))]
        assert {each.dtype for each in moments} == {torch.uint8}
    if name == "adafactor":
        # 3 of 4 samples of a step are images, each with two noises.
        assert 0 < float(kept["learned_weight.counts"].sum()) <= 4 * 3 * 2


def test_the_seed_alone_decides_and_the_global_generator_is_left_alone(tmp_path, cache):
    short = {"steps": 2}
    before = torch.random.get_rng_state()
    one, two = (train(run_config(tmp_path / name, cache, training=short)) for name in "ab")
    assert torch.equal(torch.random.get_rng_state(), before)
    assert_equal_runs(one.folder, two.folder, 2)
    other = train(run_config(tmp_path / "c", cache, training=short, seed=8))
    assert metrics(other.folder) != metrics(one.folder)


def test_resume_knows_the_base_by_its_content_and_names_what_is_another(tmp_path, cache):
    embedded = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False).folder
    copied = tmp_path / "copied"
    shutil.copytree(embedded, copied)
    train(run_config(tmp_path, cache, training={"steps": 2}))

    def go_on(steps, **changes):
        given = {"base": {"path": str(copied)}, "resume": "latest", **changes}
        return train(run_config(tmp_path, cache, training={"steps": steps}, **given))

    with pytest.raises(ConfigError, match=r"adapter\.rank was 4 and is 8"):
        go_on(4, adapter={"rank": 8})
    with pytest.raises(ConfigError, match=r"training\.steps: 1, but the checkpoint has made 2"):
        go_on(1)
    assert go_on(3).step == 3
    (weights,) = (copied / "transformer").glob("*.safetensors")
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(ConfigError, match=r"base \(content\) was"):
        go_on(4)


def test_resume_latest_without_a_checkpoint_is_refused_and_auto_starts(tmp_path, cache):
    with pytest.raises(ConfigError, match="has no checkpoint"):
        train(run_config(tmp_path, cache, resume="latest"))
    result = train(run_config(tmp_path, cache, training={"steps": 1}, resume="auto"))
    assert (result.folder.name, result.step) == ("v0", 1)


def test_only_the_newest_checkpoints_stay(tmp_path, cache):
    settings = {"steps": 5, "checkpoint_every": 1, "keep_checkpoints": 2}
    result = train(run_config(tmp_path, cache, training=settings))
    folder = result.folder / "checkpoints"
    assert sorted(path.name for path in folder.iterdir()) == ["000004", "000005"]
    assert record(result.folder)["dropped_checkpoints"] == [1, 2, 3]
    # The one that a run is told to go on from stays besides.
    longer = {**settings, "steps": 8}
    train(run_config(tmp_path, cache, training=longer, resume="4"))
    assert sorted(path.name for path in folder.iterdir()) == ["000004", "000007", "000008"]


def test_bf16_run_after_an_fp32_run_in_one_process_trains(tmp_path, cache):
    for precision in ("fp32", "bf16"):
        training = {"steps": 2, "precision": precision}
        result = train(run_config(tmp_path / precision, cache, training=training))
        state = tensors(result.adapters[0])
        assert {tensor.dtype for tensor in state.values()} == {torch.float32}
        assert all(loss == loss for loss in result.losses)


@pytest.mark.exhaustive
def test_resume_from_an_earlier_checkpoint_makes_anew_what_is_later(tmp_path, cache):
    """Checkpoints, images and the run file; of another length, so with another rate."""
    preview = {"every": 2, "prompts": ["a red circle"], "width": 64, "height": 64, "steps": 2}
    settings = {"steps": 6, "checkpoint_every": 1, "keep_checkpoints": 9}
    whole = train(run_config(tmp_path, cache, training=settings, preview=preview))
    version = whole.folder
    assert yaml.safe_load((version / "run.yaml").read_text())["training"]["steps"] == 6
    earlier = str(version / "checkpoints" / "000002")
    before = tensors(version / "checkpoints" / "000005" / "adapter.safetensors")
    longer = {**settings, "steps": 12}
    config = run_config(tmp_path, cache, training=longer, preview=preview, resume=earlier)
    seen = []

    class Look(CancelAfter):
        def notify(self, event):
            super().notify(event)
            if isinstance(event, RunStarted):
                seen.extend(sorted(path.name for path in (version / "samples").iterdir()))

    observer = Look(5)
    again = train(config, observer)
    assert (again.folder, again.step) == (version, 5)
    assert seen == ["000000", "000002"], "images of steps that are made again passed for new ones"
    kept = sorted(path.name for path in (version / "checkpoints").iterdir())
    assert kept == [f"{step:06d}" for step in range(1, 6)]
    after = tensors(version / "checkpoints" / "000005" / "adapter.safetensors")
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert any("3, 4, 5, 6" in each for each in observer.said()), "nothing was said of it"
    assert [entry["step"] for entry in metrics(version)] == [1, 2, 3, 4, 5]
    written = load_config(version / "run.yaml")
    assert written.training == config.training
    assert not list(version.glob(".writing-*"))
