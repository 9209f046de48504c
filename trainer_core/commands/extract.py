"""``extract``: make an adapter of the difference between two bases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import AdapterError, InputError
from ..families.run_files import load_config
from .arguments import Arguments
from .console import show_report
from .operations import (
    PEFT_MARK,
    LayerProgress,
    clear_leftovers,
    derived_header,
    error_summary,
    is_set,
    new_target,
    rounded,
    word_or,
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
    if len(arguments.words) != 3:
        raise InputError(
            f"{len(arguments.words)} word(s) behind the verb",
            "the base, the tuned base, and the output",
            "Write adapter-trainer extract BASE TUNED OUT.",
        )
    from ..adapter_files.tools.extract import extract_adapter
    from ..adapter_files.write.adapter_file import write_adapter
    from ..adapter_files.write.layouts import LAYOUTS
    from ..bases.diff import BaseDifferences, stored_formats
    from ..bases.open import open_base

    layout = word_or(own, "layout", tuple(LAYOUTS), "comfyui")
    settings = {**_DEFAULTS, **{name: own[name] for name in _ADAPTER if name in own}}
    config = load_config(None, [f"adapter.{name}={text}" for name, text in settings.items()])
    dtype = word_or(own, "dtype", ("fp32", "bf16", "fp16"), config.output.dtype)
    replace = is_set(own, "overwrite")
    base, tuned = (open_base(path, own.get("family")) for path in arguments.words[:2])
    target = new_target(
        arguments.words[2],
        [base.path, tuned.path],
        overwrite=replace,
        folder_of=PEFT_MARK if layout == "peft" else None,
    )
    clear_leftovers(target.parent, as_json=arguments.json)
    with LayerProgress("compared", as_json=arguments.json) as progress:
        walk = BaseDifferences(base, tuned, _patterns(config.adapter, base.family), progress)
        state, errors = extract_adapter(walk, config.adapter)
    header = derived_header(state, base.family)
    names = base.family.key_map
    written = write_adapter(target, state, layout, names, header, dtype, replace=replace)
    formats = {"base": stored_formats(base), "tuned": stored_formats(tuned)}
    report: dict[str, Any] = {
        "output": target,
        "family": base.family.name,
        "kind": state.kind,
        "layers": len(state.layers),
        "error": errors if arguments.json else error_summary(errors),
        "dtype_error": rounded(written.rounding),
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
