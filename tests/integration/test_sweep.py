"""Sweeps on the embedded base: one base for all trials, kills, failures, two at once."""

import hashlib
import json
import signal
from pathlib import Path

import pytest
import torch
from deaths import in_child, spread
from runs import CancelAfter, assert_same_files, metrics, run_config

from trainer_core.cli import main
from trainer_core.config.read_run_file import dump_config
from trainer_core.errors import ConfigError, InputError
from trainer_core.families.family import Family
from trainer_core.training import train
from trainer_core.training.sweep.sweep import run_sweep, sweep, sweep_folder
from trainer_core.training.sweep.trials import file_trials, read_sweep
from trainer_core.training.trainer import Trainer

HELD = {"share": 0.3, "every": 1, "noise_levels": 1, "most": 2}
TRAINING = {"batch_size": 1, "gradient_accumulation_steps": 1, "checkpoint_every": 1}


def sweep_file(folder, cache, text, steps=2, held=HELD, **overrides):
    folder.mkdir(parents=True, exist_ok=True)
    config = run_config(
        folder / "out",
        cache,
        dataset={"validation": held},
        training={**TRAINING, "steps": steps, "schedule": {"warmup_steps": 0}},
        **overrides,
    )
    (folder / "run.yaml").write_text(dump_config(config))
    (folder / "sweep.yaml").write_text(f"run: run.yaml\n{text}")
    return folder / "sweep.yaml"


def read(path, *overrides):
    return file_trials(read_sweep(path), path, overrides)


def start(path, observer=None, **options):
    name, trials = read(path)
    return sweep(trials, name, observer or CancelAfter(), **options)


def digest(module):
    digest = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        bits = tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes()
        digest.update(f"{name} {tensor.dtype}".encode() + bits)
    kinds = [(name, type(each), each.training) for name, each in module.named_modules()]
    frozen = [(name, each.requires_grad) for name, each in module.named_parameters()]
    return digest.hexdigest(), kinds, frozen


@pytest.fixture
def loaded(monkeypatch):
    """Every denoiser that is loaded, with what it was."""
    found, load = [], Family.load_transformer

    def kept(self, *args, **options):
        module = load(self, *args, **options)
        found.append((module, digest(module)))
        return module

    monkeypatch.setattr(Family, "load_transformer", kept)
    return found


def assert_trained_apart(trials, folder):
    """Each trial has the bits of a run of its own that loads its own base."""
    for trial in trials:
        output = trial.config.output.model_copy(update={"dir": str(folder)})
        apart = train(trial.config.model_copy(update={"output": output}))
        version = Path(trial.config.output.dir) / trial.name / apart.folder.name
        assert_same_files([version / f"{trial.name}.safetensors"], apart.adapters)
        assert metrics(version) == metrics(apart.folder)


def test_trials_share_a_base_which_is_given_back_to_the_bit(tmp_path, cache, loaded):
    path = sweep_file(tmp_path, cache, "trials: [{rank: 2}, {adapter.kind: lora, rank: 4}]")
    result = start(path)
    assert [each.status for each in result.trials] == ["done", "done"]
    ((module, before),) = loaded
    assert digest(module) == before
    name, trials = read(path)
    assert_trained_apart(trials[1:], tmp_path / "apart")
    record = json.loads((sweep_folder(trials[0].config, name) / "sweep.json").read_text())
    losses = [each["loss"] for each in record["trials"]]
    assert losses == sorted(losses)
    assert record["best"] == record["trials"][0]["name"]
    best = tmp_path / "out" / record["trials"][0]["run"] / "checkpoints"
    step = record["trials"][0]["best_step"]
    assert_same_files([result.adapter], [best / f"{step:06d}" / "adapter.safetensors"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory, cache):
    """A sweep whose last trial the rule ends."""
    folder = tmp_path_factory.mktemp("whole")
    path = sweep_file(folder, cache, "grid: {learning_rate: [1e-3, 2e-3, 0.5]}", steps=6)
    result = start(path)
    assert [each.status for each in result.trials] == ["done", "done", "stopped"]
    assert result.trials[2].step == 2
    return result


def assert_same_sweep(found, whole):
    facts = ("name", "status", "loss", "best_step", "step", "steps", "reason")
    assert found.best == whole.best
    for one, other in zip(found.trials, whole.trials, strict=True):
        assert [getattr(one, each) for each in facts] == [getattr(other, each) for each in facts]
        places = [each.folder.parent / run.run for each, run in ((found, one), (whole, other))]
        assert metrics(places[0]) == metrics(places[1])
        assert_same_files(*(sorted(each.glob("*.safetensors")) for each in places))
    assert_same_files([found.adapter], [whole.adapter])


@pytest.mark.exhaustive
def test_a_sweep_that_is_killed_anywhere_ends_as_one_that_is_not(tmp_path, cache, whole):
    text = "grid: {learning_rate: [1e-3, 2e-3, 0.5]}"
    path = sweep_file(tmp_path / "all", cache, text, steps=6)

    def work(at):
        return main(["sweep", str(at), "--json"])

    code, events = in_child(lambda: work(path), tmp_path / "all/out")
    assert code == 0
    # Anywhere, where the trial that the rule ends is written, and where the sweep is.
    last = [n for n, each in enumerate(events, 1) if "learning_rate_0.5" in each]
    record = [n for n, each in enumerate(events, 1) if "run_sweep" in each]
    chosen = {*spread(events, 4, "sweep"), *last[-1:-10:-3], *record[-1:-8:-4]}
    for number in sorted(chosen):
        path = sweep_file(tmp_path / str(number), cache, text, steps=6)
        place = tmp_path / str(number) / "out"
        code, _ = in_child(lambda path=path: work(path), place, (signal.SIGKILL, number))
        assert code == -signal.SIGKILL, (number, events[number - 1])
        observer = CancelAfter()
        found = start(path, observer)
        assert_same_sweep(found, whole)
        assert not list(place.rglob("*.writing-*"))


@pytest.mark.exhaustive
def test_a_failed_trial_is_named_and_stops_no_other(tmp_path, cache, loaded, monkeypatch):
    compute = Trainer.compute_gradients

    def broken(self, *args):
        if self.config.adapter.rank == 8:
            raise torch.OutOfMemoryError("out of memory")
        parts = compute(self, *args)
        for each in self.parameters if self.config.adapter.rank == 6 else ():
            each.grad.fill_(torch.nan)
        return parts

    monkeypatch.setattr(Trainer, "compute_gradients", broken)
    plain = {"kind": "lora", "factor": -1, "rank": 4, "targets": "attention", "dropout": 0.0}
    path = sweep_file(tmp_path, cache, "grid: {rank: [8, 6, 4]}", steps=6, adapter=plain)
    result = start(path)
    assert [each.status for each in result.trials] == ["failed", "failed", "done"]
    assert "memory" in result.trials[0].reason
    assert "not finite" in result.trials[1].reason
    assert (result.folder / "sweep.txt").read_text().count("failed: ") == 2
    assert all(digest(module) == before for module, before in loaded)
    monkeypatch.undo()
    assert [each.status for each in start(path).trials] == ["done"] * 3


def test_what_cannot_be_ranked_or_shared_is_refused(tmp_path, cache):
    text = "grid: {rank: [2, 4]}"
    name, trials = read(sweep_file(tmp_path / "none", cache, text, held={}))
    with pytest.raises(ConfigError, match="no image is held out"):
        sweep(trials, name, CancelAfter())
    name, trials = read(sweep_file(tmp_path, cache, text))
    folder = sweep_folder(trials[0].config, name)

    def second(trial, watch):
        with pytest.raises(InputError, match="is in use by a sweep"):
            run_sweep(trials, folder, second, content="")
        return "cancelled"

    assert run_sweep(trials, folder, second, content="").cancelled
