"""What differs between two bases of one family, layer by layer, whatever form each has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..config.patterns import compile_pattern
from ..errors import AdapterError, BaseModelError
from ..tensors.rounding import all_finite
from .base_weights import BaseWeights
from .merge import Progress

_NAMED = 5  # names that a message gives as examples


class BaseDifferences:
    """Walks over two bases once; the lists below are whole when the walk is over.

    Args:
        base: The base that the adapter will be for.
        tuned: The base that it is to become.
        patterns: Regular expressions of the layers to extract, each for a whole path.
        progress: Is told of every tensor.

    Attributes:
        modules: The chosen layers.
        same: Chosen layers without a difference.
        left_out: Layers that differ and could be adapted, but were not chosen.
        inexpressible: Tensors that differ and that no factors express: biases, norms.

    Raises:
        BaseModelError: When the bases are of different families.
        AdapterError: When the patterns choose no layer.
    """

    def __init__(
        self,
        base: BaseWeights,
        tuned: BaseWeights,
        patterns: Sequence[str],
        progress: Progress | None = None,
    ) -> None:
        if base.family is not tuned.family:
            raise BaseModelError(
                f"{base.path} is of family {base.family.name} and {tuned.path} of family "
                f"{tuned.family.name}",
                "two bases of one family",
                "Name the base that the other one was tuned from.",
            )
        self._base = base
        self._tuned = tuned
        self._progress = progress
        # Names of a file in ComfyUI's naming are not all Diffusers'; a folder has those.
        self._names = tuned.names if base.native else base.names
        self._adaptable = set((tuned if base.native else base).modules)
        self.modules = self._chosen(patterns)
        self.same: list[str] = []
        self.left_out: list[str] = []
        self.inexpressible: list[str] = []

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """Go through all tensors; yields path and difference of the chosen layers that differ."""
        chosen = set(self.modules)
        for done, name in enumerate(self._names, 1):
            difference = self._difference(name)
            module = name.removesuffix(".weight")
            differs = bool(difference.any()) or not all_finite(difference)
            if module in chosen:
                if differs:
                    yield module, difference
                else:
                    self.same.append(module)
            elif differs:
                (self.left_out if module in self._adaptable else self.inexpressible).append(
                    module if module in self._adaptable else name
                )
            if self._progress is not None:
                self._progress(done, len(self._names), name)

    def _chosen(self, patterns: Sequence[str]) -> tuple[str, ...]:
        expressions = [compile_pattern(pattern, "targets") for pattern in patterns]
        modules = [
            module
            for module in (name.removesuffix(".weight") for name in self._names)
            if module in self._adaptable and any(each.fullmatch(module) for each in expressions)
        ]
        if not modules:
            some = ", ".join(sorted(self._adaptable)[:_NAMED])
            raise AdapterError(
                f"targets: {', '.join(patterns)} matches no layer",
                "patterns that match whole paths of layers",
                f"Correct targets. Some layers: {some}.",
            )
        return tuple(modules)

    def _difference(self, name: str) -> Tensor:
        shapes = [each.shape(name) for each in (self._base, self._tuned)]
        if shapes[0] != shapes[1]:
            found = [
                f"{each.path} has "
                + ("none" if shape is None else f"it as {' x '.join(map(str, shape))}")
                for each, shape in zip((self._base, self._tuned), shapes, strict=True)
            ]
            raise BaseModelError(
                f"{name}: " + " and ".join(found),
                "two bases with the same tensors",
                "Name the base that the other one was tuned from.",
            )
        before, after = self._base.tensor(name), self._tuned.tensor(name)
        dtype = torch.promote_types(before.dtype, after.dtype)
        return after.to(dtype).sub_(before) if after.dtype == dtype else after.to(dtype) - before


def stored_formats(base: BaseWeights) -> tuple[str, ...]:
    """Number formats of a base's weights, as safetensors names them."""
    formats = {
        file.weights.tensors[name].code
        for file in base.files
        for name in file.weights.tensors
        if name not in file.formats.beside and len(file.weights.tensors[name].shape) > 1
    }
    return tuple(sorted(formats))
