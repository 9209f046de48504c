"""Trains a sweep inside ComfyUI: each trial as Train Adapter trains a run, on one MODEL."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import RunError
from ...trainer_core.families.run_files import load_config
from ..host import comfy_host
from .graph_run import described_run, family_of, train_described
from .panel.run_observer import NodeObserver
from .rerun_stamps import Continuation
from .socket_values import AdapterChoice, BaseChoice, EncodedCache, RunHandle, SettingsChoice

if TYPE_CHECKING:
    from ...trainer_core.training.observer import Event
    from ...trainer_core.training.sweep.sweep import TrialWatch
    from ...trainer_core.training.sweep.sweep_record import SweepResult
    from ...trainer_core.training.sweep.trials import Trial

_SOURCE = "grid of Train Sweep"


class _TrialObserver(NodeObserver):
    """Shows a trial on the sweep's node; the sweep may end it."""

    def __init__(self, node_id: str, trial: Trial, watch: TrialWatch) -> None:
        super().__init__(node_id, trial.name, trains=True)
        self.continuation = Continuation()  # each trial finds its own way on
        self._watch = watch

    def notify(self, event: Event) -> None:
        """Show an event, and tell the sweep of it."""
        self._watch.observe(event)
        super().notify(event)

    def should_stop(self) -> bool:
        """Whether the sweep ends the trial."""
        return self._watch.should_stop(self.notify)


def check_grid(inputs: Mapping[str, Any]) -> None:
    """Check ``grid`` among a node's inputs, if known; `ConfigError` for a bad one."""
    from ...trainer_core.training.sweep.trials import read_grid

    if "grid" in inputs:
        read_grid(inputs["grid"], _SOURCE)


def train_sweep(
    node_id: str,
    base: BaseChoice,
    cache: EncodedCache,
    adapter: AdapterChoice,
    settings: SettingsChoice | None,
    vae: Any,
    own: Mapping[str, Any],
    workflow: Mapping[str, object],
    grid: str,
    *,
    stops: bool,
) -> tuple[RunHandle, Sequence[float], str]:
    """Train every trial that has not ended yet, of lines of ``setting: value, value``.

    The node names the trial that runs, then the best one; up to `workflow` all is as in
    `run_training`. With `stops` trials that lag behind end early. Gives the best trial's run with
    its best adapter, its losses, and the trials as a table.

    Raises:
        TrainerError: When an input is wrong, or no trial has an adapter.
        BaseException: ComfyUI's own interrupt, after the state of a cancelled trial was saved.
    """
    from ...trainer_core.training.prepare.cache_manifest import read_manifest
    from ...trainer_core.training.sweep.sweep import require_held_out, run_sweep, sweep_folder
    from ...trainer_core.training.sweep.sweep_record import sweep_table
    from ...trainer_core.training.sweep.trials import make_trials, read_grid

    config = described_run(base, cache, adapter, settings=settings, vae=vae, own=own)
    combinations = read_grid(grid, _SOURCE)
    values = config.model_dump(mode="json")
    make = functools.partial(load_config, values)
    trials = make_trials(combinations, config.output.name, make, _SOURCE)
    require_held_out(any(read_manifest(Path(cache.manifest)).dataset.validations))

    def begin(trial: Trial, watch: TrialWatch) -> str:
        comfy_host.show_text(node_id, f"trial {1 + trials.index(trial)} of {len(trials)}")
        observer = _TrialObserver(node_id, trial, watch)
        train_described(
            trial.config,
            base,
            cache,
            vae=vae,
            workflow=workflow,
            keep_in_loras=0,
            observer=observer,
        )
        return "done"

    result = run_sweep(
        trials,
        sweep_folder(config, config.output.name),
        begin,
        content=_content(base, cache),
        stop_hopeless=stops,
    )
    handle, losses = _best(result)
    comfy_host.show_text(node_id, _summary(result))
    return handle, losses, sweep_table(result)


def _summary(result: SweepResult) -> str:
    """What the node says: a table would lose its columns there."""
    best = next(each for each in result.trials if each.name == result.best)
    loss = "" if best.loss is None else f", held-out loss {best.loss:.5g} at step {best.best_step}"
    return f"Best of {len(result.trials)}: {best.name}{loss}. The output table has all."


def _content(base: BaseChoice, cache: EncodedCache) -> str:
    """Names the base and the images that trials are trained with."""
    from ...trainer_core.data.file_memory import hash_file

    family = family_of(base, cache.trained_clip)
    weights = family.lent.fingerprint if family is not None and family.lent else base.values
    return f"{weights} {base.precision} {hash_file(Path(cache.manifest))}"


def _best(result: SweepResult) -> tuple[RunHandle, Sequence[float]]:
    from ...trainer_core.training.checkpoints.run_folder import METRICS
    from ...trainer_core.training.metrics.metrics_file import read_metrics

    best = next((each for each in result.trials if each.name == result.best), None)
    if best is None or result.adapter is None or best.run is None:
        reasons = "; ".join(f"{each.name}: {each.reason}" for each in result.trials if each.reason)
        raise RunError(
            f"no trial of the sweep has an adapter ({reasons})",
            "one trial that was trained",
            "Correct what is named, and press Run again.",
        )
    version = result.folder.parent / best.run
    losses = [each.loss for each in read_metrics(version / METRICS) if not each.skipped]
    return RunHandle(version, result.adapter, best.best_step or best.step), losses
