"""Makes the previews of a run in training: sampled with its adapter, kept by its recorder."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

from ..device import DTYPES
from ..inference.pipeline import sample_previews
from ..inference.second_model import second_model
from .memory.device_errors import skipped_when_full
from .recorder import Recorder
from .setup.load import Loaded


def preview_generator(run: Loaded, recorder: Recorder | None) -> Callable[[int], None]:
    """Make what `Trainer.preview` calls with the number of steps made.

    The first process generates and its recorder keeps the images; the others help where the base
    is sharded.
    """
    weights = run.config.training.ema.previews
    device, other = run.processes.device, None
    if recorder is not None and run.config.preview.every > 0:
        other = second_model(
            run.config,
            run.data.family,
            run.data.location,
            dtype=DTYPES[run.precision],
            device=device,
            machine=run.placed.machine,
        )

    def generate(step: int) -> None:
        skipped = skipped_when_full(f"previews of step {step}", run.processes, run.observer)
        with run.base_adapters.sampling(), run.processes.leading(run.transformer):
            if recorder is None:
                return
            with recorder.saved_on_failure(step), skipped, run.state.use_weights(weights):
                sample_previews(
                    replace(run.data.sampler(run.transformer, device), other=other),
                    run.config.preview,
                    run.data.prompts,
                    deliver=functools.partial(recorder.write_preview, step),
                    stop=run.observer.cancelled,
                    layers=run.data.dataset.usual_layers,
                    frames=run.data.dataset.usual_frames,
                )

    return generate
