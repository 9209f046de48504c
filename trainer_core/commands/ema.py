"""The verb `ema`: adapters of averages that are chosen after the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError
from ..families.run_files import load_config
from ..filesystem.storage import given_path, require_folder
from . import VERBS
from .adapter_output import clear_leftovers, rounded
from .arguments import Arguments, check_words, existing, is_set
from .console import show_report

_USUAL = "0.05,0.1,0.2"
_FAR = 0.1
"""Relative error of an average above which somebody should know of it."""


def ema(arguments: Arguments) -> int:
    """Write an adapter for each length and print how near its average is; returns the exit code.

    Raises:
        TrainerError: When the run keeps no averages, or a file cannot be written.
    """
    own = arguments.only(VERBS["ema"].own)
    check_words(arguments, 1, "a run's folder", "ema RUN", more=True)
    arguments.at_most(2)
    lengths, overwrite = _lengths(own), is_set(own, "overwrite")
    run, *out = arguments.words
    place = existing(run, "a run's folder")
    from ..training.checkpoints.post_hoc_ema import check_length, kept_averages, make_averaged
    from ..training.checkpoints.run_folder import find_version

    for length in lengths:
        check_length(length)
    version = find_version(place)
    kept = kept_averages(version)
    config = load_config(version / "run.yaml")
    folder = given_path(out[0], "an output folder") if out else version
    require_folder(folder)
    clear_leftovers(folder, as_json=arguments.json)
    made = [
        make_averaged(
            kept,
            config,
            length,
            target=(folder, f"{config.output.name}_ema{length:g}"),
            replace=overwrite,
        )
        for length in lengths
    ]
    words: dict[str, Any] = {
        "run": version,
        "steps": kept[-1].step,
        "checkpoints": [each.step for each in kept],
        "adapters": [
            {
                "length": each.length,
                "error": rounded(each.error),
                "files": [str(path) for path in each.paths],
            }
            for each in made
        ],
    }
    worst = max(each.error for each in made)
    if worst > _FAR:
        words["note"] = (
            f"An average is {worst:.0%} off the one that was asked for: more checkpoints have to "
            "be there for it (training.checkpoint_every, training.keep_every)."
        )
    show_report(words, as_json=arguments.json)
    return 0


def _lengths(own: Mapping[str, str]) -> list[float]:
    text = own.get("length", _USUAL)
    try:
        return list(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError as error:
        raise InputError(
            f"length={text}", "numbers with commas between, such as 0.05,0.1", "Correct length."
        ) from error
