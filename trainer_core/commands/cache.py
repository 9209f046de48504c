"""``cache``: encode images and captions once."""

from __future__ import annotations

from .arguments import Arguments
from .console import show_report
from .watching import watching


def run(arguments: Arguments) -> int:
    """Encode what is not in the cache yet, and say what was done; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the cache cannot be written.
    """
    config = arguments.config()
    from ..data.cache import cache_folder
    from ..device import borrowed_threads, resolve_device
    from ..training.prepare import prepare, save_manifest
    from ..training.processes import SingleProcess

    processes = SingleProcess(resolve_device(config.memory.device))
    threads = borrowed_threads(config.memory, embedded=config.base.path == "embedded")
    with watching(as_json=arguments.json) as observer, threads:
        prepared = prepare(config, observer, processes)
        manifest = save_manifest(config, prepared)
    dataset = prepared.dataset
    report = {
        "folder": cache_folder(config),
        "manifest": manifest,
        "samples": len(dataset),
        "encoded": dataset.encoded,
        "reused": dataset.reused,
    }
    show_report(report, as_json=arguments.json)
    return 0
