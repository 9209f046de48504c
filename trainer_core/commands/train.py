"""``train``: encode if needed, train, draw previews, export."""

from __future__ import annotations

from .arguments import Arguments
from .watching import watching


def run(arguments: Arguments) -> int:
    """Train what the run file says; returns the exit code.

    A cancelled run counts as not done, so that a script does not go on with half an adapter.

    Raises:
        TrainerError: When the input is wrong or the run failed.
    """
    config = arguments.config()
    from ..device import resolve_device
    from ..training import AccelerateProcesses, train

    processes = AccelerateProcesses(resolve_device(config.memory.device))
    with watching(as_json=arguments.json) as observer:
        result = train(config, observer, processes)
    return 0 if result.status == "done" else 1
