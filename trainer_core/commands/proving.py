"""The load proof of `inspect --prove`: which family, which base's shapes, and how it is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import AdapterFileError

if TYPE_CHECKING:
    from ..adapter_files.verify.proof import Proof
    from ..bases.open import BaseWeights
    from ..families.family import Family

    Shapes = dict[str, tuple[int, ...]]


def prove_file(path: Path, family: str | None = None, base: str | None = None) -> Proof:
    """See what ComfyUI makes of an adapter file.

    Args:
        path: A safetensors file, or a folder with one.
        family: The architecture; None takes the base's, or else what the file says or its names
            fit.
        base: A Diffusers folder, a single file or ``embedded``, of which headers are read, and the
            weights of some layers (`base_warnings`); None takes the family's published sizes, or
            the embedded base's where the file fits it.

    Returns:
        What was found.

    Raises:
        AdapterFileError: When it is no safetensors file, or its family cannot be told.
        BaseModelError: When the base cannot be used, or is of another family.
    """
    from ..adapter_files.verify.proof import prove
    from ..bases.open import base_shapes, open_base

    if base is not None:
        opened = open_base(base, family)
        proof = prove(path, opened.family.key_map, base_shapes(opened), base=base)
        return _warned(proof, path, opened)
    chosen = _family_of(path, family)
    name, shapes = _usual_base(path, chosen)
    return prove(path, chosen.key_map, shapes, base=name)


def _warned(proof: Proof, path: Path, base: BaseWeights) -> Proof:
    """The proof with what only the base's weights tell; of files alone that fit the base."""
    from ..adapter_files.read.adapter_file import open_adapter
    from ..bases.adapter_warnings import base_warnings

    if proof.unread or not proof.loads:
        return proof
    with open_adapter(path, base.family.key_map) as adapter:
        found = base_warnings(adapter.state, base)
    return dataclasses.replace(proof, warnings=(*proof.warnings, *found))


def proof_report(proof: Proof, *, whole: bool) -> dict[str, Any]:
    """A proof as plain values.

    Args:
        proof: What was found.
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
    from ..adapter_files.read.adapter_file import adapter_files, open_file
    from ..bases.adapter_family import adapter_family
    from ..families.registry import FAMILIES, get_family
    from ..tensors.safetensors_reader import open_tensors

    if name is not None:
        return get_family(name)
    try:
        with open_file(path):
            pass
    except AdapterFileError as error:
        # ComfyUI reads kinds that the trainer does not; their names tell the family all the same.
        with open_tensors(adapter_files(path)[0]) as file:
            found = [each for each in FAMILIES.values() if each.detect(file.tensors)]
        if len(found) != 1:
            raise error
        return found[0]
    return adapter_family(path, None, any_size=True)


def _usual_base(path: Path, family: Family) -> tuple[str, Shapes]:
    """The name of the base that an adapter is most likely for, and its shapes."""
    from ..bases.open import base_shapes, open_base, published_shapes
    from ..weights.base_location import EMBEDDED

    published = f"{family.title} as published"
    shapes = published_shapes(family)
    if family.embedded is not None and not _fits(path, family, shapes):
        small = base_shapes(open_base(EMBEDDED, family.name))
        if _fits(path, family, small):
            return "the embedded base", small
    return published, shapes


def _fits(path: Path, family: Family, shapes: Shapes) -> bool:
    """Whether an adapter has the sizes of a base."""
    from ..adapter_files.read.adapter_file import open_adapter
    from ..adapter_files.verify.proof import adapter_shapes

    try:
        with open_adapter(path, family.key_map) as adapter:
            wanted = adapter_shapes(adapter.state, family.key_map)
    except AdapterFileError:
        return False
    return all(shapes[name] == shape for name, shape in wanted.items() if name in shapes)
