"""In which format each weight of a base would be kept, told by its files' headers alone."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ..quantization.stored_format import StoredFormat
from .base_location import BaseLocation
from .file_spec import FileSpec
from .layer_packing import Packing
from .loading import plan_weights


class KeptWeight(NamedTuple):
    """How a weight of a model is kept.

    Attributes:
        stored: Its format; None where it is dense.
        size: Its bytes.
        mapped: Whether it may stay in the file as it is, for a model on the CPU.
    """

    stored: StoredFormat | None
    size: int
    mapped: bool


def kept_weights(
    location: BaseLocation, spec: FileSpec, packing: Packing | None, dtype: torch.dtype
) -> dict[str, KeptWeight]:
    """How each weight of the files would be kept, by name.

    Args:
        packing: Which layers are kept in fewer bits; None keeps all weights dense.

    Raises:
        BaseModelError: As `load_file` and `load_packed`; no weight is read.
    """
    plan = plan_weights(location, spec, torch.device("meta"), packing)
    found: dict[str, KeptWeight] = {}
    for name, cut in plan.cuts.items():
        reader = plan.readers[name]
        for index, target in enumerate(cut.targets):
            stored = plan.stored(name, index)
            if stored is None or packing is None:
                wanted = torch.float32 if plan.is_precise(target) else dtype
                rows, shape = cut.rows[index], reader.shape_of(name)
                size = (rows[1] - rows[0]) * math.prod(shape[1:]) * wanted.itemsize
                mapped = not cut.swapped and reader.has(name, wanted)
                # `load_packed` copies what it reads.
                mapped = mapped and (location.file is not None or packing is None)
            else:
                layer = plan.model.get_submodule(target.removesuffix(".weight"))
                size = stored.stored_bytes((layer.out_features, layer.in_features))
                mapped = location.file is not None and packing.leaves_there(stored, reader, name)
            found[target] = KeptWeight(stored, size, mapped)
    return found


def stored_layers(location: BaseLocation, spec: FileSpec, packing: Packing) -> dict[str, int]:
    """Bytes of each weight that `load_file` or `load_packed` would keep in fewer bits, by name.

    Raises:
        BaseModelError: As they do; no weight is read.
    """
    kept = kept_weights(location, spec, packing, torch.float32)
    return {name: each.size for name, each in kept.items() if each.stored is not None}
