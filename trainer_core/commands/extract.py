"""``extract``: make an adapter of the difference between two bases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import AdapterError
from ..families.run_files import load_config
from .arguments import Arguments
from .console import show_report
from .operations import (
    LayerProgress,
    OutputForm,
    check_words,
    error_summary,
)

if TYPE_CHECKING:
    from ..config import AdapterConfig
    from ..families.family import Family

_ADAPTER = ("kind", "rank", "factor", "full_matrix", "decompose_both", "targets")
_OWN = (*_ADAPTER, "layout", "dtype", "family", "overwrite")
_DEFAULTS = {"kind": "lora", "targets": "all_linear"}
_SHOWN = 10


def run(arguments: Arguments) -> int:
    """Write the adapter and print how near it is; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the file cannot be written.
    """
    own = arguments.only(_OWN)
    expected = "the base, the tuned base, and the output"
    check_words(arguments, 3, expected, "extract BASE TUNED OUT")
    from ..adapter_files.tools.closest_adapter import extract_adapter
    from ..bases.diff import BaseDifferences, stored_formats
    from ..bases.open import open_base

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
    report: dict[str, Any] = {
        "output": target,
        "family": base.family.name,
        "kind": state.kind,
        "layers": len(state.layers),
        "error": errors if arguments.json else error_summary(errors),
        "dtype_error": rounding,
        "stored_as": {name: list(found) for name, found in formats.items()},
    }
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
    show_report(report, as_json=arguments.json)
    return 0


def _patterns(config: AdapterConfig, family: Family) -> list[str]:
    if not isinstance(config.targets, str):
        return config.targets
    if config.targets not in family.presets:
        raise AdapterError(
            f"targets={config.targets}",
            f"one of {', '.join(family.presets)}, or a list of regular expressions",
            "Correct targets; a single expression is written as a list.",
        )
    return list(family.presets[config.targets])


def _some(names: list[str]) -> dict[str, Any]:
    """How many there are, and the first of them."""
    more = len(names) - _SHOWN
    return {
        "count": len(names),
        "names": names[:_SHOWN] + ([f"... {more} more"] if more > 0 else []),
    }
