"""``inspect``: describe an adapter file."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..filesystem.storage import given_path
from ..filesystem.text_files import parse_json
from .arguments import Arguments
from .console import show_report

if TYPE_CHECKING:
    from ..families.family import Family


def run(arguments: Arguments) -> int:
    """Describe a file, and with ``prove`` see whether ComfyUI loads it; returns the exit code.

    Raises:
        AdapterFileError: When it is no adapter file that the trainer knows.
    """
    from .operations import is_set

    own = arguments.only(("prove", "base", "family"))
    path = given_path(arguments.word("an adapter file"), "an adapter file")
    if not is_set(own, "prove"):
        show_report(describe(path, readably=not arguments.json), as_json=arguments.json)
        return 0
    from .proving import proof_report, prove_file

    proof = prove_file(path, own.get("family"), own.get("base"))
    # A kind that only ComfyUI knows has a proof and no description.
    report = {} if proof.unread else describe(path, readably=not arguments.json)
    report["proof"] = proof_report(proof, whole=arguments.json)
    show_report(report, as_json=arguments.json)
    return 0 if proof.ok else 1


def describe(path: Path, *, readably: bool) -> dict[str, Any]:
    """The facts of an adapter file.

    Args:
        path: The file.
        readably: Whether what is long is told in short.

    Raises:
        AdapterFileError: When it is no adapter file that the trainer knows.
    """
    from ..adapter_files.tools.inspect_adapter import inspect_adapter
    from ..bases.adapter_family import other_models
    from ..errors import AdapterFileError

    try:
        report = dataclasses.asdict(inspect_adapter(path))
    except AdapterFileError as error:
        models = other_models(path)
        if not models:
            raise
        raise AdapterFileError(
            f"{error.found}. It is an adapter for {models}", error.expected, error.remedy
        ) from error
    if readably:
        report["norms"] = norm_summary(report["norms"])
    report["metadata"] = header_values(report["metadata"], readably=readably)
    family = _family_of(path)
    others = other_models(path, family)
    name = None if family is None else family.name
    return {**report, "family": name, "also_fits" if family else "made_for": others}


def norm_summary(norms: Mapping[str, float]) -> dict[str, Any]:
    """The norms of all layers in a few lines.

    Args:
        norms: Layer to the Frobenius norm of its delta.
    """
    if not norms:
        return {"layers": 0}
    weakest, strongest = min(norms, key=norms.__getitem__), max(norms, key=norms.__getitem__)
    return {
        "layers": len(norms),
        "median": round(statistics.median(norms.values()), 4),
        "smallest": {weakest: round(norms[weakest], 4)},
        "largest": {strongest: round(norms[strongest], 4)},
    }


def header_values(metadata: Mapping[str, str], *, readably: bool) -> dict[str, Any]:
    """A header's values in order; of a workflow only its size.

    Args:
        metadata: Of a file that may come from anybody.
        readably: Whether strings that hold JSON are given as what they hold.
    """
    from ..adapter_files.header import WORKFLOW_KEYS, workflow_summary

    shown: dict[str, Any] = {}
    for name, text in sorted(metadata.items()):
        if name in WORKFLOW_KEYS:
            shown[name] = workflow_summary(text)
        else:
            shown[name] = readable(text) if readably else text
    return shown


def readable(text: str) -> Any:
    """A header's string; one that holds a JSON object or list as what it holds."""
    if not text.startswith(("{", "[")):
        return text
    try:
        return parse_json(text)
    except ValueError:
        return text


def _family_of(path: Path) -> Family | None:
    """The family that `convert` takes the file for; None when it fits none, or several."""
    from ..bases.adapter_family import adapter_family
    from ..errors import AdapterFileError

    try:
        return adapter_family(path, any_size=True)
    except AdapterFileError:
        return None
