"""``resize``: give an adapter another rank or another split of its Kronecker factors."""

from __future__ import annotations

from collections import Counter

from ..errors import InputError
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
    whole_number,
)

_OWN = ("rank", "factor", "error", "layout", "dtype", "family", "overwrite")


def run(arguments: Arguments) -> int:
    """Write the resized adapter and print what it lost; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the file cannot be written.
    """
    own = arguments.only(_OWN)
    check_words(arguments, 2, "the adapter and the output", "resize IN OUT --rank N")
    from ..adapter_files.read.adapter_file import open_adapter
    from ..adapter_files.tools.closest_adapter import Sizes, resize_adapter
    from ..bases.adapter_family import adapter_family

    sizes = Sizes(
        whole_number(own, "rank", 1), _factor(own.get("factor")), _share(own.get("error"))
    )
    source = existing(arguments.words[0], "an adapter file")
    family = adapter_family(source, own.get("family"), any_size=True)
    with open_adapter(source, family.key_map) as opened:
        form = OutputForm.of(own, kept_layout([opened.file]), kept_dtype([opened.file]))
        target = form.target(arguments.words[1], [source], as_json=arguments.json)
        with LayerProgress("resized", as_json=arguments.json) as progress:
            state, errors = resize_adapter(opened.state, sizes, progress)
        rounding = form.write(target, state, family, opened.file.metadata)
    ranks = Counter(layer.rank for layer in state.layers.values())
    show_report(
        {
            "output": target,
            "family": family.name,
            "kind": state.kind,
            "layers": len(state.layers),
            "ranks": dict(sorted(ranks.items())),
            "error": errors if arguments.json else error_summary(errors),
            "dtype_error": rounding,
        },
        as_json=arguments.json,
    )
    return 0


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
