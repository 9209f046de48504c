"""``merge``: make adapters part of a base's weights."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from .arguments import Arguments
from .console import show_report
from .operations import (
    DIFFUSERS_MARK,
    LayerProgress,
    check_words,
    clear_leftovers,
    error_summary,
    existing,
    is_set,
    new_target,
    numbers,
    rounded,
    word_or,
)

if TYPE_CHECKING:
    from ..bases.merge import MergeReport, Rounding

_OWN = ("strength", "family", "dtype", "rounding", "overwrite")
_LITTLE = 0.5


def run(arguments: Arguments) -> int:
    """Write the merged base and print what was lost; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the base cannot be written.
    """
    own = arguments.only(_OWN)
    expected = "a base, at least one adapter, and the output"
    check_words(arguments, 3, expected, "merge BASE ADAPTER OUT", more=True)
    base_path, *adapter_paths, out = arguments.words
    from ..adapter_files.read.adapter_file import open_adapter
    from ..bases.open import open_base
    from ..bases.write_merged import DTYPES, merge_into_base

    dtype = word_or(own, "dtype", tuple(DTYPES), "keep")
    rounding = word_or(own, "rounding", ("stochastic", "nearest"), "stochastic")
    overwrite = is_set(own, "overwrite")
    strengths = numbers(own, "strength", len(adapter_paths))
    adapters = [existing(path, "an adapter file") for path in adapter_paths]
    base = open_base(base_path, own.get("family"))
    target = new_target(
        out,
        [base.path, *adapters],
        overwrite=overwrite,
        folder_of=DIFFUSERS_MARK if base.is_folder else None,
    )
    clear_leftovers(target.parent, as_json=arguments.json)
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_adapter(path, base.family.key_map)) for path in adapters]
        progress = stack.enter_context(LayerProgress("merged", as_json=arguments.json))
        report = merge_into_base(
            base,
            [(each.state, strength) for each, strength in zip(opened, strengths, strict=True)],
            target,
            dtype,
            cast("Rounding", rounding),
            progress,
            replace=overwrite,
        )
    merged = [
        {"file": path.name, "strength": strength}
        for path, strength in zip(adapters, strengths, strict=True)
    ]
    show_report(_report(report, merged, base.path, as_json=arguments.json), as_json=arguments.json)
    return 0


def _report(
    report: MergeReport, merged: Sequence[object], base: Path, *, as_json: bool
) -> dict[str, Any]:
    errors = {name: loss.error for name, loss in report.losses.items()}
    kept = {name: loss.kept for name, loss in report.losses.items()}
    words: dict[str, Any] = {
        "output": report.path,
        "base": base,
        "family": report.family,
        "adapters": list(merged),
        "layers": len(report.losses),
        "stored_as": list(report.stored),
        "rounding_error": errors if as_json else error_summary(errors),
        "change_kept": kept if as_json else _least(kept),
    }
    if report.rescaled:
        words["new_scales"] = list(report.rescaled) if as_json else len(report.rescaled)
    if min(kept.values()) < _LITTLE:
        words["note"] = (
            "The steps of the base's number format are larger than most of the change. dtype=bf16 "
            "keeps more of it, and so does rounding=stochastic in 8 bits."
        )
    return words


def _least(kept: Mapping[str, float]) -> dict[str, Any]:
    least = min(kept, key=kept.__getitem__)
    return {
        "median": rounded(statistics.median(kept.values())),
        "least": {least: rounded(kept[least])},
    }
