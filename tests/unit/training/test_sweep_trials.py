"""Sweep files, the checks before the first trial, and the median stopping rule."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from trainer_core.errors import ConfigError
from trainer_core.training.observer import RunStarted, ValidationDone
from trainer_core.training.sweep.median_rule import FEWEST, GRACE, MedianRule
from trainer_core.training.sweep.trials import MOST, file_trials, read_grid, read_sweep


@pytest.fixture
def written(tmp_path):
    run = "base: {path: embedded}\noutput: {name: cat}\nadapter: {kind: lora, rank: 4}\n"
    (tmp_path / "run.yaml").write_text(run)

    def write(text):
        (tmp_path / "sweep.yaml").write_text(text)
        return tmp_path / "sweep.yaml"

    return write


def trials(path, *overrides):
    return file_trials(read_sweep(path), path, overrides)


def test_a_grid_is_every_combination_named_after_what_differs(written):
    path = written("run: run.yaml\ngrid: {adapter.rank: [8, 16], learning_rate: [1e-4, 2e-4]}")
    name, found = trials(path, "training.steps=7")
    assert name == "cat"
    assert [each.name for each in found] == [
        "cat-rank_8-learning_rate_0.0001",
        "cat-rank_8-learning_rate_0.0002",
        "cat-rank_16-learning_rate_0.0001",
        "cat-rank_16-learning_rate_0.0002",
    ]
    last = found[-1].config
    assert (last.adapter.rank, last.training.optimizer.learning_rate) == (16, 2e-4)
    assert (last.training.steps, last.output.name, last.resume) == (7, found[-1].name, "auto")
    assert read_grid("rank: 8, 16\nlearning_rate: [1e-4, 2e-4]", "a node") == tuple(
        each.values for each in found
    )


def test_a_name_is_looked_for_among_what_may_be_swept():
    (found,) = read_grid("alpha: 8\nsteps: 9\nflip: true", "a node")
    assert found == {"adapter.alpha": 8, "training.steps": 9, "dataset.flip": True}
    for wrong in ("", " \n", "rank", "rank:", "rank: 8\nrank: 9"):
        with pytest.raises(ConfigError, match=r"a line for each setting.*rank: 8, 16"):
            read_grid(wrong, "a node")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("grid: {rank: [8]}", "names no run file"),
        ("run: run.yaml", "both grid and trials, or neither"),
        ("run: run.yaml\ngrid: {rank: [8]}\nrank_by: loss", "rank_by is unknown"),
        ("run: run.yaml\ngrid: {rank: 8}", "rank has no list"),
        ("run: run.yaml\ngrid: {}", "names no setting"),
        ("run: run.yaml\ntrials: [3]", "not a list of settings"),
        ("run: run.yaml\nstop_hopeless: maybe\ngrid: {rank: [8]}", "stop_hopeless is maybe"),
        ("run: run.yaml\ngrid: {training.learning_rate: [1]}", "is not a setting"),
        ("run: run.yaml\ngrid: {name: [adamw]}", "is the end of"),
        ("run: run.yaml\ngrid: {rank: [8], adapter.rank: [16]}", "adapter.rank is named twice"),
        ("run: run.yaml\ntrials: [{rank: 8, adapter.rank: 16}]", "adapter.rank is named twice"),
        ("run: run.yaml\ngrid: {resolution: [64]}", "cannot be swept"),
        ("run: run.yaml\ngrid: {dataset.resolution: [64]}", "cannot be swept"),
        ("run: run.yaml\ngrid: {base.path: [a]}", "cannot be swept"),
        ("run: run.yaml\ngrid: {seed: [1, 2]}", "cannot be swept"),
        ("run: run.yaml\ngrid: {adapter.start_from: [a]}", "cannot be swept"),
        ("run: run.yaml\ngrid: {training.loss.kind: [mse]}", "measured by it"),
        ("run: run.yaml\ngrid: {training.sigma.shift: [1]}", "measured by it"),
        (f"run: run.yaml\ngrid: {{rank: {[*range(1, MOST + 2)]}}}", "101 trials"),
        ("run: run.yaml\ngrid: {rank: [8, 0]}", "the trial adapter.rank=0"),
        ("run: run.yaml\ntrials: [{rank: 4}, {kind: lora}]", "are the same"),
    ],
)
def test_what_is_wrong_refuses_the_sweep(written, text, found):
    if "kind: lora}" in text:
        text = text.replace("kind", "adapter.kind")
    with pytest.raises(ConfigError) as caught:
        trials(written(text))
    assert found in caught.value.found
    assert caught.value.expected
    assert caught.value.remedy


def test_the_command_may_not_set_what_is_swept(written):
    with pytest.raises(ConfigError, match="the sweep set the same setting"):
        trials(written("run: run.yaml\ngrid: {rank: [8]}"), "adapter.rank=2")


def vizier_stops(finished, own, steps):
    """Golovin et al. 2017, section 3.2.2, step by step, with the grace; the step or None."""
    for step in sorted(own):
        best = np.min([loss for at, loss in own.items() if at <= step])
        means = [np.mean([v for at, v in each.items() if at <= step]) for each in finished]
        if len(finished) >= FEWEST and step >= GRACE * steps and best > np.median(means):
            return step
    return None


@pytest.mark.parametrize("count", range(5))
def test_the_rule_is_the_papers_and_goes_on_as_it_would_have(tmp_path, count):
    draws, stopped = np.random.default_rng(count), 0
    for case in range(40):
        curves = [
            {step: float(draws.normal(level, 0.1)) for step in range(2, 13, 2)}
            for level in draws.normal(0, 0.1, count + 1)
        ]
        own, finished = curves[0], curves[1:]
        cut = int(draws.integers(0, 6)) * 2
        version = tmp_path / str(case)
        version.mkdir()
        fields = {"epoch": 0, "learning_rate": 0, "grad_norm": 0, "sigma_mean": 0, "loss": 0}
        fields |= {"step_seconds": 0, "time": 0}
        lines = [{"step": s, "validation_loss": own[s], **fields} for s in own if s <= cut]
        (version / "metrics.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in lines))
        rule = MedianRule(finished, every=2)
        rule.observe(RunStarted(SimpleNamespace(folder=version, steps=12)))
        found = cut if rule.should_stop() else None
        for step in own:
            if found is None and step > cut:
                rule.observe(ValidationDone(step, own[step]))
                rule.observe(ValidationDone(step + 1, -9.0))  # because a person ends a run there
                found = step if rule.should_stop() else None
        expected = vizier_stops(finished, own, 12)
        # A trial that had ended by then is not cut behind it.
        if expected is None or expected >= cut:
            assert found == expected
        stopped += expected is not None
    assert (stopped > 0) == (count >= FEWEST)
