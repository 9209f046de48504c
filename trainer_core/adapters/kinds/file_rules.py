"""What an adapter kind is in files: names, shapes, algebra, and what other programs read.

What is written here holds for kinds whose factors are pairs that are multiplied, and whose delta is
added to the weight. A kind says what differs, in a class of its own.
"""

from __future__ import annotations

import functools
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from ...errors import AdapterError
from ...types import LayerState
from ..kernels.convolution import as_matrices, filed_shape
from .kind import LayerPlan
from .low_rank_algebra import (
    Spectrum,
    fit_product,
    norm_of_product,
    product_norm,
    spectrum_of_product,
)

Shape = tuple[int, ...]
Tensors = Mapping[str, Tensor]
Outcome = Literal["loaded", "ignored", "wrong shape", "read wrongly"]
"""What becomes of a tensor in ComfyUI."""

STOPS = "ComfyUI stops with an error"
SKIPS = "ComfyUI writes an error into its log and leaves the layer as it is"
PLANE = 4
"""Axes of a weight with a window of two, the only one that ComfyUI multiplies cores for."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why ComfyUI does not compute with some tensors what their factors stand for.

    Attributes:
        outcome: ``wrong shape`` or ``read wrongly``.
        reason: What it does instead.
    """

    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class FactorPair:
    """Two factors that are multiplied.

    Attributes:
        up: The one on the outputs' side, `[rows, r]`.
        down: The one on the inputs' side, `[r, columns]`.
        core: The Tucker core that may stand between them.
        whole: One factor that may stand in the place of both.
        lies: Whether `up` is filed as `[r, rows]` beside a core.
    """

    up: str
    down: str
    core: str = ""
    whole: str = ""
    lies: bool = True


class FileRules(ABC):
    """The rules of one kind.

    Tensors are factors as they are filed, or their outlines on the meta device; matrices are those
    of `as_matrices`.

    Attributes:
        name: As the kind's.
        title: For people.
        mark: What the names of its factors have in common.
        pairs: Its factors.
        spellings: Ending of a file's key, the factor, and the set of endings that it belongs to.
        other_methods: Expression for a key that is like this kind's and means something else, to
            what it is.
        beside: The same for keys without which the factors mean the same.
        rank_factors: Whose rows are the rank by which readers divide alpha, the first that is
            there.
        window_factors: Which show a convolution's window, the first that is there.
        flat_factors: Which hold no window: it is in the core, in the columns, or in another one.
        filed_planes: Whose window ComfyUI reads with two axes alone.
        scaled_factors: Which takes up a difference of scales, the first that is there: the one that
            starts at zero.
        multiplies: As the kind's. Its factors are no sum, cut or fit of others, and every number
            of columns fits them, for which `sizes` gives 0.
        unused_alpha: What is filed as alpha where the factors have no rank for it; None for the
            layer's rank. A number says that alpha means something else to readers (`check_alpha`).
        stacks: Whether factors of one layer can hold several layers one below the other.
        product_is_exact: Whether the delta is a low-rank product of small rank.
        closest_is_known: Whether there is a method that finds the closest delta of a smaller rank.
        splits: Whether the setting ``factor`` says how a layer is split.
        comfyui_endings: Endings of keys that ComfyUI takes for this kind's.
        peft_alpha: PEFT's name of alpha.
        peft_dora: Whether PEFT, which Diffusers reads with too, knows DoRA of this kind.
        diffusers_kind: Name of the kind that it is in layout ``diffusers``.
        network_module: What kohya's trainers call the program that reads it.
        probe: ``(x [n, in], matrices, scale)`` to ``x @ delta.T`` where that costs less than the
            kind's `apply`.
    """

    name: str
    title: str
    mark: str
    pairs: tuple[FactorPair, ...]
    spellings: tuple[tuple[str, str, str], ...]
    other_methods: tuple[tuple[str, str], ...] = ()
    beside: tuple[tuple[str, str], ...] = ()
    rank_factors: tuple[str, ...]
    window_factors: tuple[str, ...]
    flat_factors: frozenset[str] = frozenset()
    filed_planes: tuple[str, ...]
    scaled_factors: tuple[str, ...]
    multiplies = False
    unused_alpha: float | None = None
    stacks = True
    product_is_exact = True
    closest_is_known = True
    splits = False
    comfyui_endings: tuple[str, ...]
    peft_alpha = "alpha"
    peft_dora = False
    diffusers_kind: str
    network_module = "lycoris.kohya"
    probe: Callable[[Tensor, Tensors, float], Tensor] | None = None

    # Names and shapes

    def ending(self, factor: str) -> str:
        """How the key of a factor ends that ComfyUI and LyCORIS read."""
        return f".{factor}"

    def peft_ending(self, factor: str) -> str:
        """How PEFT's key of a factor ends."""
        return f".{factor}"

    def factor_sets(self) -> list[frozenset[str]]:
        """The sets of factors that make a whole layer."""
        return [
            frozenset().union(*chosen)
            for chosen in itertools.product(*(_forms(pair) for pair in self.pairs))
        ]

    def is_whole(self, names: Iterable[str]) -> bool:
        """Whether no factor is low-rank, so that alpha says nothing."""
        present = set(names)
        return all(pair.whole in present for pair in self.pairs)

    def pair_sizes(self, tensors: Tensors) -> tuple[tuple[int, int], ...]:
        """Rows and columns of what each pair makes, as matrices."""
        matrices = as_matrices(tensors)
        return tuple(
            (matrices[pair.whole].shape[0], matrices[pair.whole].shape[1])
            if pair.whole in matrices
            else (matrices[pair.up].shape[0], matrices[pair.down].shape[1])
            for pair in self.pairs
        )

    def sizes(self, tensors: Tensors) -> tuple[int, int]:
        """Rows and columns of a layer's delta as a matrix."""
        return self.pair_sizes(tensors)[0]

    def alpha_rank(self, tensors: Tensors) -> int | None:
        """The number by which ComfyUI's and LyCORIS's readers divide a file's alpha.

        None when nothing is low-rank, so that alpha is ignored.
        """
        found = (tensors[name].shape[0] for name in self.rank_factors if name in tensors)
        return next(found, None)

    def guessed_rank(self, tensors: Tensors) -> int:
        """A rank at which a layer of whole factors would keep them whole."""
        return math.ceil(max(tensors[self.pairs[-1].whole].shape[:2]) / 2)

    def window(self, layer: LayerState) -> tuple[int, ...]:
        """A convolution's window as far as the layer's factors show it; empty where none does."""
        found = (
            tuple(layer.tensors[n].shape[2:]) for n in self.window_factors if n in layer.tensors
        )
        return layer.kernel or next((each for each in found if each), ())

    def row_factors(self, tensors: Tensors) -> tuple[tuple[str, int], ...]:
        """The factors whose rows are those of the delta, or blocks of them, and their axis of rows.

        A number that multiplies the first of them multiplies the delta.
        """
        return tuple(
            (_whole_or_up(pair, tensors), int(pair.lies and pair.core in tensors))
            for pair in self.pairs
        )

    def block_rows(self, tensors: Tensors) -> int:
        """How many rows of the delta one row of the `row_factors` stands for."""
        del tensors
        return 1

    def mistake(self, tensors: Tensors) -> str:
        """Why factors are not a layer's, besides what the `pairs` tell; empty where they are."""
        del tensors
        return ""

    def own_form(self, tensors: Tensors) -> dict[str, Tensor]:
        """A file's factors, or some of them, in the form that they have here; outlines too."""
        return dict(tensors)

    def check_alpha(self, tensors: Tensors, alpha: float) -> str:
        """Why readers disagree on a file's alpha that has no rank; empty where they do not."""
        del tensors, alpha
        return ""

    # Algebra

    def norm(self, matrices: Tensors) -> float:
        """The Frobenius norm of the delta at scale 1; of what multiplies, that of ``R - I``."""
        return math.prod(
            float(torch.linalg.vector_norm(matrices[pair.whole], dtype=torch.float64))
            if pair.whole in matrices
            else product_norm(matrices[pair.up], matrices[pair.down])
            for pair in self.pairs
        )

    def norm_on_device(self, matrices: Tensors) -> Tensor:
        """The same as a float32 scalar where the factors are, without a wait for the device."""
        norms = [
            torch.linalg.vector_norm(matrices[pair.whole], dtype=torch.float32)
            if pair.whole in matrices
            else norm_of_product(matrices[pair.up], matrices[pair.down])
            for pair in self.pairs
        ]
        return functools.reduce(torch.mul, norms)

    @abstractmethod
    def product(self, matrices: Tensors, scale: float) -> tuple[Tensor, Tensor]:
        """The delta as ``up [out, r]``, with the scale in it, and ``down [r, in]``, exactly."""

    def product_rank(self, tensors: Tensors) -> int:
        """The rank of `product`, read off the shapes."""
        matrices = as_matrices(tensors)
        return math.prod(
            min(matrices[pair.whole].shape)
            if pair.whole in matrices
            else matrices[pair.down].shape[0]
            for pair in self.pairs
        )

    def full_rank(self, tensors: Tensors) -> int:
        """The rank at which a low-rank product holds the delta, whatever the values are."""
        return self.product_rank(tensors)

    def spectrum(self, matrices: Tensors, kept: int) -> Spectrum:
        """Singular values of the delta at scale 1, and vectors of at least the first `kept`."""
        del kept
        return spectrum_of_product(*self.product(matrices, 1.0))

    def fit(self, source: Tensors, fresh: Tensors) -> tuple[dict[str, Tensor], float]:
        """Bring a layer's matrices, in float64, to other sizes; gives the delta's relative error.

        Fresh ones are initial ones of the wanted sizes, whose delta is zero.

        Raises:
            AdapterError: When no method finds them.
        """
        (pair,) = self.pairs
        names = pair.up, pair.down
        up, down, error = fit_product(*(source[n] for n in names), *(fresh[n] for n in names))
        return {pair.up: up, pair.down: down}, error

    @abstractmethod
    def resized_shapes(
        self, layer: LayerState, rank: int, factor: int | None
    ) -> tuple[int, dict[str, Shape]]:
        """The rank that a layer can have of a wanted one, and its factors' shapes then."""

    def rank_values(self, matrices: Tensors) -> Tensor:
        """Singular values that a smaller rank cuts, of which the error of the delta follows."""
        return self.spectrum(matrices, 0)[1]

    def extract(self, plan: LayerPlan, matrix: Tensor) -> LayerState:
        """The closest layer to a difference ``[out, in * window]``; its scale is 1.

        What splits gives whole factors, which are then cut to the rank.
        """
        raise AdapterError(
            f"kind={plan.config.kind}",
            f"another kind: no method finds the closest {self.name}",
            "Extract an adapter of another kind.",
        )

    def stack(self, rows: Iterable[int], matrix: Tensor) -> tuple[dict[str, Tensor], float]:
        """The closest factors of layers one below the other, which `stacks` does not tell.

        And their relative error. None of the layers shares a row of the `row_factors` with another;
        an outline of all their deltas gives outlines.
        """
        raise NotImplementedError

    # Diffusers and PEFT

    @abstractmethod
    def diffusers(self, tensors: Tensors, scale: float) -> dict[str, Tensor]:
        """A Linear's factors by the endings of Diffusers' keys, with the scale multiplied in."""

    def diffusers_problem(self, layers: Mapping[str, LayerState]) -> tuple[str, str, str] | None:
        """Why Diffusers' reader cannot follow the factors: found, expected, remedy."""
        del layers
        return None

    def peft_ranks(self, layers: Mapping[str, LayerState]) -> dict[str, int]:
        """The rank that PEFT's configuration gives each layer; `AdapterError` for none."""
        return {n: layer.tensors[self.pairs[0].down].shape[0] for n, layer in layers.items()}

    def peft_options(self, layers: Mapping[str, LayerState]) -> dict[str, Any]:
        """What PEFT's configuration says of this kind alone, besides rank and alpha.

        Raises:
            AdapterError: When no configuration gives these factors.
        """
        del layers
        return {}

    # ComfyUI and kohya's trainers

    def comfyui_factors(self, tensors: Tensors) -> dict[str, Tensor]:
        """Factors as ComfyUI's reader can use them; only those of convolutions change."""
        readable = dict(tensors)
        for name in self.filed_planes:
            if name in readable:
                readable[name] = readable[name].reshape(filed_shape(tuple(readable[name].shape)))
        return readable

    @abstractmethod
    def comfyui_slots(self, found: Mapping[str, str]) -> dict[str, str]:
        """What ComfyUI takes of a layer's keys: factor to ending; empty for no such layer."""

    @abstractmethod
    def comfyui_fault(self, shapes: Mapping[str, Shape]) -> Fault | None:
        """Why ComfyUI does not multiply factors of these shapes as they are meant."""

    @abstractmethod
    def comfyui_sizes(self, shapes: Mapping[str, Shape]) -> Shape:
        """Rows and columns of what factors without a fault make in ComfyUI."""

    def comfyui_rank(self, shapes: Mapping[str, Shape]) -> int | None:
        """The number by which ComfyUI divides alpha; None when it ignores it."""
        # Beside a whole factor ComfyUI passes over its two halves.
        passed = {pair.down for pair in self.pairs if pair.whole in shapes}
        names = (each for each in self.rank_factors if each in shapes and each not in passed)
        return next((shapes[name][0] for name in names), None)

    def kohya_arguments(self, options: Mapping[str, Any]) -> dict[str, str]:
        """The kind's own settings as kohya's trainers and LyCORIS write them."""
        return {"use_tucker": "True"} if options.get("tucker") else {}


def different_ranks(up: Shape, down: Shape, what: str = SKIPS) -> Fault:
    """The fault of two factors that cannot be multiplied."""
    return Fault("wrong shape", f"factors of {list(up)} and {list(down)} differ in rank: {what}")


def scaled_factor(tensor: Tensor, scale: float) -> Tensor:
    """Multiply at least in float32; an outline keeps the number format that is written."""
    if scale == 1.0 or tensor.is_meta:
        return tensor
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32)) * scale


def _forms(pair: FactorPair) -> list[set[str]]:
    both = {pair.up, pair.down}
    cores = [both | {pair.core}] if pair.core else []
    return [both, *cores, *([{pair.whole}] if pair.whole else [])]


def _whole_or_up(pair: FactorPair, tensors: Tensors) -> str:
    return pair.whole if pair.whole in tensors else pair.up
