"""``combine``: add adapters up to one."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import Arguments
from .console import show_report
from .operations import (
    LayerProgress,
    OutputForm,
    check_words,
    error_summary,
    existing,
    kept_dtype,
    kept_layout,
    numbers,
    whole_number,
)

if TYPE_CHECKING:
    from ..families.family import Family

_OWN = ("weights", "rank", "layout", "dtype", "family", "overwrite")


def run(arguments: Arguments) -> int:
    """Write the sum and print what it lost; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the file cannot be written.
    """
    own = arguments.only(_OWN)
    expected = "at least one adapter, and the output"
    check_words(arguments, 2, expected, "combine IN IN OUT weights=1,0.5", more=True)
    *sources, out = arguments.words
    from ..adapter_files.read.adapter_file import open_adapter
    from ..adapter_files.tools.combine import combine_adapters

    paths = [existing(path, "an adapter file") for path in sources]
    weights = numbers(own, "weights", len(paths))
    rank = whole_number(own, "rank", 1)
    family = _family_of(paths, own.get("family"))
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_adapter(path, family.key_map)) for path in paths]
        files = [each.file for each in opened]
        form = OutputForm.of(own, kept_layout(files), kept_dtype(files))
        target = form.target(out, paths, as_json=arguments.json)
        inputs = [(each.state, weight) for each, weight in zip(opened, weights, strict=True)]
        with LayerProgress("combined", as_json=arguments.json) as progress:
            state, errors = combine_adapters(inputs, family.key_map, rank, progress)
        source = files[0].metadata if len(files) == 1 else None
        rounding = form.write(target, state, family, source)
    ranks = Counter(layer.rank for layer in state.layers.values())
    show_report(
        {
            "output": target,
            "family": family.name,
            "kind": state.kind,
            "adapters": [
                {"file": path.name, "weight": weight}
                for path, weight in zip(paths, weights, strict=True)
            ],
            "layers": len(state.layers),
            "ranks": dict(sorted(ranks.items())),
            "error": errors if arguments.json else error_summary(errors) if errors else {},
            "dtype_error": rounding,
        },
        as_json=arguments.json,
    )
    return 0


def _family_of(paths: Sequence[Path], wanted: str | None) -> Family:
    """The family of the first adapter; none of the others may be another model's."""
    from ..bases.adapter_family import adapter_family

    family = adapter_family(paths[0], wanted, any_size=True)
    for path in paths[1:]:
        adapter_family(path, family.name, any_size=True)
    return family
