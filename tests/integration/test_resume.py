"""Stop and resume gives the bits of a run that was never stopped."""

import json
import shutil

import pytest
import torch
import yaml
from runs import CancelAfter, metrics, run_config, tensors

from tests.fixtures.combinations import some
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.config.reading import load_config
from trainer_core.errors import ConfigError
from trainer_core.families.registry import get_family
from trainer_core.training import train
from trainer_core.training.observer import RunStarted


def assert_equal_runs(one, other, step):
    for name in ("training_state.safetensors", "adapter.safetensors"):
        a, b = (tensors(r / "checkpoints" / f"{step:06d}" / name) for r in (one, other))
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert metrics(one) == metrics(other)


ADAPTERS = {
    "lora, eva": {"kind": "lora", "init": "eva"},
    "loha": {"kind": "loha"},
    "oft": {"kind": "oft", "dropout": 0.0},
    "lokr": {"kind": "lokr", "factor": -1},
    "dora, pissa": {"kind": "lora", "dora": True, "dropout": 0.0, "init": "pissa"},
}


@pytest.mark.parametrize("name", some(ADAPTERS, "lora, eva"))
def test_resumed_run_equals_the_uninterrupted_one_bit_for_bit(tmp_path, cache, name):
    adapter = ADAPTERS[name]
    settings = {
        "adapter": adapter,
        "memory": {"gradient_checkpointing": adapter["kind"] == "lora"},
        "training": {"steps": 9},
    }
    whole = train(run_config(tmp_path / "a", cache, **settings))
    stopped = train(run_config(tmp_path / "b", cache, **settings), CancelAfter(5))
    assert (stopped.status, stopped.step) == ("cancelled", 5)
    resumed = train(run_config(tmp_path / "b", cache, **settings, resume="latest"))
    assert (resumed.status, resumed.step, resumed.folder) == ("done", 9, stopped.folder)
    assert_equal_runs(whole.folder, resumed.folder, 9)
    exported = tensors(whole.adapters[0])
    assert any(tensor.abs().max() > 0 for tensor in exported.values())
    again = tensors(resumed.adapters[0])
    assert all(torch.equal(exported[key], again[key]) for key in exported)


class CancelOnceLoaded(CancelAfter):
    """Cancels when all is loaded."""

    def cancelled(self):
        return any(isinstance(event, RunStarted) for event in self.events)


def test_cancelled_while_it_looks_at_the_inputs_it_begins_there_again(tmp_path, cache):
    short = {"training": {"steps": 2}, "adapter": {"kind": "lora", "init": "eva"}}
    whole = train(run_config(tmp_path / "a", cache, **short))
    observer = CancelOnceLoaded(99)
    stopped = train(run_config(tmp_path / "b", cache, **short), observer)
    assert (stopped.status, stopped.step) == ("cancelled", 0)
    assert not any("eva:" in str(event) for event in observer.events)
    again = CancelAfter(99)
    resumed = train(run_config(tmp_path / "b", cache, resume="latest", **short), again)
    assert (resumed.status, resumed.folder) == ("done", stopped.folder)
    assert any("eva: the adapter starts from the inputs of" in str(e) for e in again.events)
    assert_equal_runs(whole.folder, resumed.folder, 2)


def test_same_run_file_gives_the_same_weights_twice_and_another_seed_others(tmp_path, cache):
    short = {"steps": 4}
    one, two = (train(run_config(tmp_path / name, cache, training=short)) for name in "ab")
    assert_equal_runs(one.folder, two.folder, 4)
    other = train(run_config(tmp_path / "c", cache, training=short, seed=8))
    assert metrics(other.folder) != metrics(one.folder)


def test_training_draws_nothing_from_the_global_generator(tmp_path, cache):
    before = torch.random.get_rng_state()
    train(run_config(tmp_path, cache, training={"steps": 2}))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_resume_with_another_setting_names_it(tmp_path, cache):
    train(run_config(tmp_path, cache, training={"steps": 2}))
    changed = run_config(
        tmp_path, cache, training={"steps": 4}, adapter={"rank": 8}, resume="latest"
    )
    with pytest.raises(ConfigError, match=r"adapter\.rank was 4 and is 8"):
        train(changed)


def test_resume_knows_the_base_by_its_content(tmp_path, cache):
    embedded = locate_base(BaseSection(), get_family("qwen_image"), has_controls=False).folder
    copied = tmp_path / "copied"
    shutil.copytree(embedded, copied)
    memory = {"threads": 1}
    train(run_config(tmp_path, cache, training={"steps": 2}, memory=memory))
    moved = {"base": {"path": str(copied)}, "memory": memory, "resume": "latest"}
    assert train(run_config(tmp_path, cache, training={"steps": 3}, **moved)).step == 3
    (weights,) = (copied / "transformer").glob("*.safetensors")
    changed = bytearray(weights.read_bytes())
    changed[-1] ^= 1
    weights.write_bytes(changed)
    with pytest.raises(ConfigError, match=r"base \(content\) was"):
        train(run_config(tmp_path, cache, training={"steps": 4}, **moved))


def test_resume_with_fewer_steps_than_made_names_both(tmp_path, cache):
    train(run_config(tmp_path, cache, training={"steps": 3}))
    with pytest.raises(ConfigError, match=r"training\.steps: 2, but the checkpoint has made 3"):
        train(run_config(tmp_path, cache, training={"steps": 2}, resume="latest"))


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
    record = json.loads((result.folder / "run.json").read_text())
    assert record["dropped_checkpoints"] == [1, 2, 3]
    # The one that a run is told to go on from stays besides.
    longer = {**settings, "steps": 8}
    train(run_config(tmp_path, cache, training=longer, resume="4"))
    assert sorted(path.name for path in folder.iterdir()) == ["000004", "000007", "000008"]


def test_bf16_run_after_an_fp32_run_in_one_process_trains(tmp_path, cache):
    for precision in ("fp32", "bf16"):
        config = run_config(
            tmp_path / precision, cache, training={"steps": 2, "precision": precision}
        )
        result = train(config)
        state = tensors(result.adapters[0])
        assert {tensor.dtype for tensor in state.values()} == {torch.float32}
        assert all(loss == loss for loss in result.losses)


def test_resume_from_an_earlier_checkpoint_makes_the_later_ones_anew(tmp_path, cache):
    settings = {"steps": 6, "checkpoint_every": 1, "keep_checkpoints": 9}
    whole = train(run_config(tmp_path, cache, training=settings))
    earlier = whole.folder / "checkpoints" / "000002"
    before = tensors(whole.folder / "checkpoints" / "000005" / "adapter.safetensors")
    longer = {**settings, "steps": 12}
    observer = CancelAfter(5)
    again = train(run_config(tmp_path, cache, training=longer, resume=str(earlier)), observer)
    kept = sorted(path.name for path in (again.folder / "checkpoints").iterdir())
    assert kept == [f"{step:06d}" for step in range(1, 6)]
    after = tensors(again.folder / "checkpoints" / "000005" / "adapter.safetensors")
    assert any(not torch.equal(before[key], after[key]) for key in before)
    assert any("3, 4, 5, 6" in str(event) for event in observer.events), "nothing was said of it"
    assert [entry["step"] for entry in metrics(again.folder)] == [1, 2, 3, 4, 5]


def test_a_resumed_run_writes_its_own_run_file_and_draws_later_images_anew(tmp_path, cache):
    preview = {"every": 2, "prompts": ["a red circle"], "width": 64, "height": 64, "steps": 2}
    settings = {"steps": 4, "checkpoint_every": 2, "keep_checkpoints": 9}
    first = train(run_config(tmp_path, cache, training=settings, preview=preview))
    version = first.folder
    assert yaml.safe_load((version / "run.yaml").read_text())["training"]["steps"] == 4
    earlier = str(version / "checkpoints" / "000002")
    longer = {**settings, "steps": 12}
    config = run_config(tmp_path, cache, training=longer, preview=preview, resume=earlier)
    seen = []

    class Look(CancelAfter):
        def notify(self, event):
            super().notify(event)
            if type(event).__name__ == "RunStarted":
                seen.extend(sorted(path.name for path in (version / "samples").iterdir()))

    again = train(config, Look(5))
    assert again.folder == version
    assert seen == ["000000", "000002"], "images of steps that are made again passed for new ones"
    written = load_config(version / "run.yaml")
    assert written.training.steps == 12
    assert written.training == config.training
    assert not list(version.glob(".writing-*"))
