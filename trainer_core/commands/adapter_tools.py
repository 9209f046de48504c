"""The verbs that make files of other files: `merge`, `extract`, `resize`, `combine`."""

from __future__ import annotations

import contextlib
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ..errors import AdapterError, InputError, naming_file
from ..families.run_files import load_config
from . import VERBS
from .adapter_output import (
    DIFFUSERS_MARK,
    OutputForm,
    clear_leftovers,
    error_summary,
    kept_dtype,
    kept_layout,
    new_target,
    rounded,
)
from .arguments import (
    Arguments,
    check_words,
    existing,
    existing_base,
    is_set,
    numbers,
    whole_number,
    word_or,
)
from .console import LayerProgress, show_report
from .result_sentences import kept_sentence, loss_sentence

if TYPE_CHECKING:
    from ..bases.merge import MergeReport, Rounding
    from ..config import AdapterConfig
    from ..families.family import Family
    from ..types import AdapterState


_LITTLE = 0.5


def merge(arguments: Arguments) -> int:
    """Write the merged base and print what was lost; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the base cannot be written.
    """
    own = arguments.only(VERBS["merge"].own)
    expected = "a base, at least one adapter, and the output"
    check_words(arguments, 3, expected, "merge BASE ADAPTER OUT", more=True)
    base_path, *adapter_paths, out = arguments.words
    existing_base(base_path)
    adapters = [existing(path, "an adapter file") for path in adapter_paths]
    from ..adapter_files.read.read_adapter import open_adapter
    from ..bases.base_weights import open_base
    from ..bases.merge import plan_jobs
    from ..bases.write_merged import DTYPES, merge_into_base

    dtype = word_or(own, "dtype", tuple(DTYPES), "keep")
    rounding = word_or(own, "rounding", ("stochastic", "nearest"), "stochastic")
    overwrite = is_set(own, "overwrite")
    strengths = numbers(own, "strength", len(adapter_paths))
    base = open_base(base_path, own.get("family"))
    target = new_target(
        out,
        [base.path, *adapters],
        overwrite=overwrite,
        folder_of=DIFFUSERS_MARK if base.is_folder else None,
    )
    clear_leftovers(target.parent, as_json=arguments.json)
    with contextlib.ExitStack() as stack:
        opened = [
            stack.enter_context(open_adapter(path, base.family.layers.key_map)) for path in adapters
        ]
        for path, each in zip(adapters, opened, strict=True):
            with naming_file(path):
                plan_jobs(base, [(each.state, 1.0)])
        progress = stack.enter_context(LayerProgress("merged", as_json=arguments.json))
        report = merge_into_base(
            base,
            [(each.state, strength) for each, strength in zip(opened, strengths, strict=True)],
            target,
            dtype=dtype,
            rounding=cast("Rounding", rounding),
            progress=progress,
            replace=overwrite,
        )
    merged = [
        {"file": path.name, "strength": strength}
        for path, strength in zip(adapters, strengths, strict=True)
    ]
    text = _merge_report(report, merged, base.path, as_json=arguments.json)
    kept = {name: loss.kept for name, loss in report.losses.items()}
    show_report(text, as_json=arguments.json, outcome=kept_sentence(kept))
    return 0


def _merge_report(
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


_ADAPTER = ("kind", "rank", "factor", "full_matrix", "decompose_both", "targets")
_EXTRACTED = (*_ADAPTER, "layout", "dtype", "family", "overwrite")
_DEFAULTS = {"kind": "lora", "targets": "all_linear"}
_SHOWN = 10


def extract(arguments: Arguments) -> int:
    """Write the adapter and print how near it is; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the file cannot be written.
    """
    own = arguments.only(_EXTRACTED)
    expected = "the base, the tuned base, and the output"
    check_words(arguments, 3, expected, "extract BASE TUNED OUT")
    for path in arguments.words[:2]:
        existing_base(path)
    from ..adapter_files.tools.resize_and_extract import extract_adapter
    from ..bases.base_difference import BaseDifferences, stored_formats
    from ..bases.base_weights import open_base

    settings = {**_DEFAULTS, **{name: own[name] for name in _ADAPTER if name in own}}
    config = load_config(None, [f"adapter.{name}={text}" for name, text in settings.items()])
    form = OutputForm.of(own, "comfyui", config.output.dtype)
    base, tuned = (open_base(path, own.get("family")) for path in arguments.words[:2])
    inputs = [base.path, tuned.path]
    target = form.target(arguments.words[2], inputs, as_json=arguments.json)
    with LayerProgress("compared", as_json=arguments.json) as progress:
        walk = BaseDifferences(base, tuned, _patterns(config.adapter, base.family), progress)
        state, errors = extract_adapter(walk, config.adapter)
    rounding = form.write(target, state, base.family, None)
    formats = {"base": stored_formats(base), "tuned": stored_formats(tuned)}
    report = _made(
        target, base.family, state, errors=errors, rounding=rounding, as_json=arguments.json
    )
    report["stored_as"] = {name: list(found) for name, found in formats.items()}
    for name, found in {
        "without_difference": walk.same,
        "not_chosen": walk.left_out,
        "not_expressible": walk.inexpressible,
    }.items():
        if found:
            report[name] = found if arguments.json else _some(found)
    if formats["base"] != formats["tuned"]:
        report["note"] = (
            "The bases are stored in different number formats: the difference holds their rounding."
        )
    outcome = loss_sentence(errors, len(state.layers))
    show_report(report, as_json=arguments.json, outcome=outcome)
    return 0


def _patterns(config: AdapterConfig, family: Family) -> list[str]:
    if not isinstance(config.targets, str):
        return config.targets
    if config.targets not in family.layers.presets:
        raise AdapterError(
            f"targets={config.targets}",
            f"one of {', '.join(family.layers.presets)}, or a list of regular expressions",
            "Correct targets; a single expression is written as a list.",
        )
    return list(family.layers.presets[config.targets])


def _some(names: list[str]) -> dict[str, Any]:
    """How many there are, and the first of them."""
    more = len(names) - _SHOWN
    return {
        "count": len(names),
        "names": names[:_SHOWN] + ([f"... {more} more"] if more > 0 else []),
    }


def resize(arguments: Arguments) -> int:
    """Write the resized adapter and print what it lost; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the file cannot be written.
    """
    own = arguments.only(VERBS["resize"].own)
    check_words(arguments, 2, "the adapter and the output", "resize IN OUT --rank N")
    source = existing(arguments.words[0], "an adapter file")
    from ..adapter_files.read.read_adapter import open_adapter
    from ..adapter_files.tools.resize_and_extract import Sizes, resize_adapter
    from ..bases.adapter_family import adapter_family

    sizes = Sizes(
        whole_number(own, "rank", 1), _factor(own.get("factor")), _share(own.get("error"))
    )
    family = adapter_family(source, own.get("family"), any_size=True)
    with open_adapter(source, family.layers.key_map) as opened:
        form = OutputForm.of(own, kept_layout([opened.file]), kept_dtype([opened.file]))
        target = form.target(arguments.words[1], [source], as_json=arguments.json)
        with LayerProgress("resized", as_json=arguments.json) as progress:
            state, errors = resize_adapter(opened.state, sizes, progress)
        rounding = form.write(target, state, family, opened.file.metadata)
    report = _made(target, family, state, errors=errors, rounding=rounding, as_json=arguments.json)
    outcome = loss_sentence(errors, len(state.layers))
    show_report(report, as_json=arguments.json, outcome=outcome)
    return 0


def _made(
    target: Path,
    family: Family,
    state: AdapterState,
    errors: Mapping[str, float],
    rounding: float,
    *,
    as_json: bool,
) -> dict[str, Any]:
    """What a verb says of the adapter that it has made; ``errors`` by layer, relative."""
    ranks = Counter(layer.rank for layer in state.layers.values())
    return {
        "output": target,
        "family": family.name,
        "kind": state.kind,
        "layers": len(state.layers),
        "ranks": dict(sorted(ranks.items())),
        "error": errors if as_json else error_summary(errors) if errors else {},
        "dtype_error": rounding,
    }


def _factor(text: str | None) -> int | None:
    if text in (None, "-1"):
        return None if text is None else -1
    return whole_number({"factor": text}, "factor", 1)


def _share(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value < 1.0:
        raise InputError(f"error={text}", "a share between 0 and 1, such as 0.05", "Correct error.")
    return value


def combine(arguments: Arguments) -> int:
    """Write the sum and print what it lost; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the file cannot be written.
    """
    own = arguments.only(VERBS["combine"].own)
    expected = "at least one adapter, and the output"
    check_words(arguments, 2, expected, "combine IN IN OUT weights=1,0.5", more=True)
    *sources, out = arguments.words
    paths = [existing(path, "an adapter file") for path in sources]
    from ..adapter_files.read.read_adapter import open_adapter
    from ..adapter_files.tools.combine import combine_adapters

    weights = numbers(own, "weights", len(paths))
    rank = whole_number(own, "rank", 1)
    family = _first_family(paths, own.get("family"))
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_adapter(path, family.layers.key_map)) for path in paths]
        files = [each.file for each in opened]
        form = OutputForm.of(own, kept_layout(files), kept_dtype(files))
        target = form.target(out, paths, as_json=arguments.json)
        inputs = [(each.state, weight) for each, weight in zip(opened, weights, strict=True)]
        with LayerProgress("combined", as_json=arguments.json) as progress:
            state, errors = combine_adapters(inputs, family.layers.key_map, rank, progress)
        source = files[0].metadata if len(files) == 1 else None
        rounding = form.write(target, state, family, source)
    report = _made(target, family, state, errors=errors, rounding=rounding, as_json=arguments.json)
    report["adapters"] = [
        {"file": path.name, "weight": weight} for path, weight in zip(paths, weights, strict=True)
    ]
    outcome = loss_sentence(errors, len(state.layers))
    show_report(report, as_json=arguments.json, outcome=outcome)
    return 0


def _first_family(paths: Sequence[Path], wanted: str | None) -> Family:
    """The family of the first adapter; none of the others may be another model's."""
    from ..bases.adapter_family import adapter_family

    family = adapter_family(paths[0], wanted, any_size=True)
    for path in paths[1:]:
        adapter_family(path, family.name, any_size=True)
    return family
