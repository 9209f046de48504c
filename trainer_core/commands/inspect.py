"""``inspect``: describe an adapter file, and prove that ComfyUI loads it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import AdapterFileError, BaseModelError
from ..filesystem.text_files import parse_json
from ..printable import listed
from . import VERBS
from .arguments import Arguments, existing, existing_base, is_set
from .console import show, show_report
from .result_sentences import inspected_text

if TYPE_CHECKING:
    from ..adapter_files.verify.load_proof import Proof
    from ..bases.base_weights import BaseWeights
    from ..families.family import Family

    Shapes = dict[str, tuple[int, ...]]


def inspect(arguments: Arguments) -> int:
    """Describe a file, and with ``prove`` see whether ComfyUI loads it; returns the exit code.

    Raises:
        AdapterFileError: When it is not an adapter file that the trainer knows.
    """
    own = arguments.only(VERBS["inspect"].own)
    path = existing(arguments.word("an adapter file"), "an adapter file")
    base = own.get("base")
    if base is not None:
        existing_base(base)
    proof = prove_file(path, own.get("family"), base) if is_set(own, "prove") else None
    # A kind that only ComfyUI knows has a proof and no description.
    unread = proof is not None and proof.unread
    report = {} if unread else describe_adapter(path, readably=not arguments.json)
    if arguments.json or is_set(own, "verbose"):
        if proof is not None:
            report["proof"] = proof_report(proof, whole=arguments.json)
        show_report(report, as_json=arguments.json)
    else:
        show(inspected_text(report, proof))
    return 0 if proof is None or proof.ok else 1


def describe_adapter(path: Path, *, readably: bool) -> dict[str, Any]:
    """The facts of an adapter file.

    Args:
        readably: Whether what is long is told in short.

    Raises:
        AdapterFileError: When it is not an adapter file that the trainer knows.
    """
    from ..adapter_files.tools.inspect_adapter import inspect_adapter
    from ..bases.adapter_family import other_models

    family = _told_family(path)
    try:
        report = dataclasses.asdict(inspect_adapter(path, texts=family and family.layers.key_map))
    except AdapterFileError as error:
        raise _of_models(error, path) from error
    if readably:
        report["norms"] = norm_summary(report["norms"])
    report["metadata"] = header_values(report["metadata"], readably=readably)
    if family is not None and family.lent is not None and other_models(path):
        family = None  # a model of videos, by its layers
    others = other_models(path, family)
    name = None if family is None else family.name
    if family is not None and family.headless:
        report["comfyui"] = family.headless
    return {**report, "family": name, "also_fits" if family else "made_for": others}


def _of_models(error: AdapterFileError, path: Path) -> AdapterFileError:
    """The error with the models that the file could be for, where any is known."""
    from ..bases.adapter_family import other_models

    models = other_models(path)
    found = f"{error.found}. It is an adapter for {models}" if models else error.found
    return AdapterFileError(found, error.expected, error.remedy)


def norm_summary(norms: Mapping[str, float]) -> dict[str, Any]:
    """The norms of all layers in a few lines."""
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
        readably: Whether strings that hold JSON are given as what they hold.
    """
    from ..adapter_files.metadata import WORKFLOW_KEYS, workflow_summary

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


def _told_family(path: Path) -> Family | None:
    """The family that `convert` takes the file for; None when it fits none, or several."""
    from ..bases.adapter_family import adapter_family

    try:
        return adapter_family(path, any_size=True)
    except AdapterFileError:
        return None


def prove_file(path: Path, family: str | None = None, base: str | None = None) -> Proof:
    """See what ComfyUI makes of an adapter file.

    Args:
        family: The architecture; None takes the base's, or else what the file says or its names
            fit.
        base: A Diffusers folder, a single file or ``embedded``, of which headers are read, and the
            weights of some layers (`base_warnings`); None takes the family's published sizes, or
            the embedded base's where the file fits it.

    Raises:
        AdapterFileError: When it is not a safetensors file, or its family cannot be told.
        BaseModelError: When the base cannot be used, is of another family, or of one that ComfyUI
            does not have.
    """
    from ..adapter_files.verify.load_proof import prove
    from ..bases.base_weights import base_shapes, open_base

    if base is not None:
        opened = open_base(base, family)
        _require_host(opened.family)
        proof = prove(path, opened.family.layers.key_map, base_shapes(opened), base=base)
        return _warned(proof, path, opened)
    chosen = _family_of(path, family)
    _require_host(chosen)
    if chosen.lent is not None:
        return prove(path, chosen.layers.key_map, base=f"{chosen.title}, of the file's own sizes")
    name, shapes = _usual_base(path, chosen)
    return prove(path, chosen.layers.key_map, shapes, base=name)


def _require_host(family: Family) -> None:
    if family.headless:
        raise BaseModelError(
            f"an adapter for {family.title}, and {family.headless}",
            "an adapter for a model that ComfyUI has, to see what it makes of the file",
            "Use it with Diffusers, in the layout diffusers (convert), or in a ComfyUI that has "
            "the model.",
        )


def _warned(proof: Proof, path: Path, base: BaseWeights) -> Proof:
    """The proof with what only the base's weights tell; of files alone that fit the base."""
    from ..adapter_files.read.read_adapter import open_adapter
    from ..bases.adapter_warnings import base_warnings

    if proof.unread or not proof.loads:
        return proof
    with open_adapter(path, base.family.layers.key_map) as adapter:
        found = base_warnings(adapter.state, base)
    return dataclasses.replace(proof, warnings=(*proof.warnings, *found))


def proof_report(proof: Proof, *, whole: bool) -> dict[str, Any]:
    """A proof as plain values.

    Args:
        whole: Whether to tell of every tensor and layer, or of those alone that are not right.
    """
    report = proof.summary()
    if whole:
        report["tensors"] = {key: dataclasses.asdict(each) for key, each in proof.tensors.items()}
        report["layers"] = {name: dataclasses.asdict(each) for name, each in proof.layers.items()}
    else:
        report["problems"] = list(proof.problems())
    return report


def _family_of(path: Path, name: str | None) -> Family:
    from ..adapter_files.names.video_model_names import VIDEO_MODELS
    from ..adapter_files.read.read_adapter import open_file
    from ..bases.adapter_family import adapter_families, adapter_family
    from ..bases.base_weights import is_installed
    from ..families.graph_model_family import video_family
    from ..families.registry import FAMILIES, get_family

    if name is not None:
        if name not in VIDEO_MODELS:
            return get_family(name)
        return adapter_family(path, name) if name in FAMILIES else video_family(name)
    try:
        with open_file(path):
            pass
    except AdapterFileError as error:
        # ComfyUI reads kinds that the trainer does not; their layers tell the family all the same.
        found = [each for each in adapter_families(path) if is_installed(each)]
        loaded = {each.name: _most_loaded(path, each).loaded for each in found}
        found = [each for each in found if loaded[each.name] == max(loaded.values())]
        if len(found) != 1:
            raise _of_models(error, path) from error
        return found[0]
    return adapter_family(path, None, any_size=True)


def _usual_base(path: Path, family: Family) -> tuple[str, Shapes]:
    """The name of the base whose sizes an adapter has, and its shapes; of others it is refused."""
    from ..adapter_files.read.read_adapter import open_file
    from ..bases.adapter_family import nearest_base
    from ..bases.base_weights import known_bases, published_shapes

    try:
        with open_file(path) as file:
            title, odd, *_ = nearest_base(file, family)
    except AdapterFileError:
        title, odd, _ = _most_loaded(path, family)
    if odd:
        raise AdapterFileError(
            f"{path} {odd[0]}, and no other {family.title} that is known has its sizes",
            f"the sizes of {listed(known_bases(family))}, or a base",
            "Name the base that it was made for: --base PATH. Without it nothing is known of what "
            "ComfyUI makes of the file.",
        )
    return title, published_shapes(family, title)


class _Loaded(NamedTuple):
    """The base of which ComfyUI loads most, why the rest does not fit it, and how many keys."""

    title: str
    odd: list[str]
    loaded: int


def _most_loaded(path: Path, family: Family) -> _Loaded:
    """As `nearest_base`, by what ComfyUI loads of a file that the trainer does not read."""
    from ..adapter_files.verify.load_proof import prove
    from ..bases.base_weights import known_bases, published_shapes

    fates = {
        title: list(
            prove(path, family.layers.key_map, published_shapes(family, title)).tensors.values()
        )
        for title in known_bases(family)
    }
    counts = {t: sum(each.outcome == "loaded" for each in fates[t]) for t in fates}
    best = max(counts, key=counts.__getitem__)
    wrong = [each.reason for each in fates[best] if each.outcome == "wrong shape"]
    return _Loaded(best, [f"does not fit {best} ({reason})" for reason in wrong], counts[best])
