"""The verb ``sweep``: one run file with several values of a few settings."""

from __future__ import annotations

from .arguments import Arguments, existing
from .console import show, show_json
from .missing_inputs import require_inputs
from .run_observers import watching


def sweep(arguments: Arguments) -> int:
    """Train a sweep; returns the exit code: 1 where no trial came to its end.

    Raises:
        TrainerError: When the input is wrong, or the disk is full.
    """
    path = existing(arguments.word("a sweep file"), "a sweep file")
    from ..training.sweep.trials import file_trials, read_sweep

    found = read_sweep(path)
    name, trials = file_trials(found, path, arguments.settings)
    require_inputs(trials[0].config)
    from ..training.sweep.sweep import sweep as train_sweep
    from ..training.sweep.sweep_record import sweep_table

    with watching(as_json=arguments.json) as observer:
        result = train_sweep(
            trials,
            name,
            observer,
            file=path.stem,
            stop_hopeless=found.stop_hopeless,
        )
    if arguments.json:
        show_json({"event": "sweep", "folder": result.folder, **result.record()})
    else:
        show(sweep_table(result))
    return 0 if result.best or result.cancelled else 1
