"""The verb ``compare``: the checkpoints of a run side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..families.run_files import load_config
from ..filesystem.storage import given_path, require_folder
from .adapter_output import clear_leftovers
from .arguments import Arguments, existing
from .console import LayerProgress, show, show_json, show_note
from .missing_inputs import require_inputs
from .runs import in_preview, with_prompts

if TYPE_CHECKING:
    from ..inference.comparison import Comparison

_OWN = ("checkpoints", "strengths", "adapter", "prompt", "control", "output")


def compare(arguments: Arguments) -> int:
    """Generate the same prompts with the checkpoints of a run; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the sampler failed.
    """
    own, rest = arguments.split(_OWN)
    rest = in_preview(rest)
    place = existing(rest.word("a run's folder"), "a run's folder")
    files = [existing(each, "an adapter file") for each in own.get("adapter", [])]
    from ..training.checkpoints.run_folder import find_version, run_file_of

    version = find_version(place)
    config = load_config(run_file_of(version), rest.settings, show_note)
    config = with_prompts(config, own.get("prompt", []), own.get("control", []))
    # What follows imports torch, and what is missing is told in a moment.
    from ..training.checkpoints.comparison_columns import (
        file_columns,
        read_steps,
        read_strengths,
        run_columns,
    )

    strengths = read_strengths(own.get("strengths", ["1"])[-1])
    steps = read_steps(own.get("checkpoints", ["all"])[-1])
    columns = [*run_columns(version, steps, strengths), *file_columns(files, strengths)]
    require_inputs(config, dataset=False)
    output = given_path(own.get("output", [str(version / "comparisons")])[-1], "a folder")
    require_folder(output)
    from ..data.cache.build_cache import cache_folder
    from ..data.cache.cache_file import cache_folders
    from ..device import borrowed_threads
    from ..inference.comparison import compare as generate
    from ..inference.comparison import save_comparison

    clear_leftovers(output, *cache_folders(cache_folder(config)), as_json=arguments.json)

    threads = borrowed_threads(config.memory, embedded=config.base.path == "embedded")
    with threads, LayerProgress("compared", as_json=False) as shown:

        def progress(done: int, total: int) -> None:
            if arguments.json:
                show_json({"event": "compared", "done": done, "total": total})
            else:
                shown(done, total, "")

        comparison = generate(config, columns, notify=progress)
    _report(comparison, save_comparison(comparison, output.absolute()), as_json=arguments.json)
    return 0


def _report(comparison: Comparison, files: tuple[Path, Path], *, as_json: bool) -> None:
    grid, record = files
    if as_json:
        show_json({"event": "comparison", "grid": grid, "record": record, **comparison.record()})
        return
    from ..inference.comparison import comparison_text

    show(comparison_text(comparison))
    show(str(grid))
