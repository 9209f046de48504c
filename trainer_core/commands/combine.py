"""``combine``: add adapters up to one."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import InputError
from .arguments import Arguments
from .console import show_report
from .operations import (
    PEFT_MARK,
    LayerProgress,
    clear_leftovers,
    derived_header,
    error_summary,
    existing,
    is_set,
    kept_dtype,
    kept_layout,
    new_target,
    numbers,
    rounded,
    whole_number,
    word_or,
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
    if len(arguments.words) < 2:
        raise InputError(
            f"{len(arguments.words)} word(s) behind the verb",
            "at least one adapter, and the output",
            "Write adapter-trainer combine IN IN OUT weights=1,0.5.",
        )
    *sources, out = arguments.words
    from ..adapter_files.read.adapter_file import open_adapter
    from ..adapter_files.tools.combine import combine_adapters
    from ..adapter_files.write.adapter_file import write_adapter
    from ..adapter_files.write.layouts import LAYOUTS

    paths = [existing(path, "an adapter file") for path in sources]
    weights = numbers(own, "weights", len(paths))
    rank = whole_number(own, "rank", 1)
    family = _family_of(paths, own.get("family"))
    with contextlib.ExitStack() as stack:
        opened = [stack.enter_context(open_adapter(path, family.key_map)) for path in paths]
        files = [each.file for each in opened]
        layout = word_or(own, "layout", tuple(LAYOUTS), kept_layout(files))
        dtype = word_or(own, "dtype", ("fp32", "bf16", "fp16"), kept_dtype(files))
        overwrite = is_set(own, "overwrite")
        target = new_target(
            out,
            paths,
            overwrite=overwrite,
            folder_of=PEFT_MARK if layout == "peft" else None,
        )
        clear_leftovers(target.parent, as_json=arguments.json)
        inputs = [(each.state, weight) for each, weight in zip(opened, weights, strict=True)]
        with LayerProgress("combined", as_json=arguments.json) as progress:
            state, errors = combine_adapters(inputs, family.key_map, rank, progress)
        header = derived_header(state, family, files[0].metadata if len(files) == 1 else None)
        written = write_adapter(
            target, state, layout, family.key_map, header, dtype, replace=overwrite
        )
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
            "dtype_error": rounded(written.rounding),
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
