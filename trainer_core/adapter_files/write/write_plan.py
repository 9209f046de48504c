"""What a file is written from: pieces that are made one after another, so that one is in memory.

Every piece is made twice. From outlines, which are tensors of the meta device, come the names,
shapes and number formats of the whole file, and every refusal; from the tensors comes its content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE, axis_of
from ...adapters.kinds.registry import FILE_RULES, layer_scale
from ...errors import AdapterError
from ...types import AdapterState, LayerState
from ..factors.fuse_layers import Fuse, fuse_exactly
from ..factors.outlines import Layers, outline_of, patch_outline
from ..names.text_encoder_names import text_layers

if TYPE_CHECKING:
    from ..names.key_map import KeyMap

Encode = Callable[[Layers], Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class Options:
    """How a layout is written, where it leaves a choice.

    Attributes:
        fused: Write the parts of a layer that ComfyUI fuses as that one layer, which its bypass
            loaders need. Layout ``kohya`` always does.
        fuse: Makes the fused layer of its parts.
        approximated: Whether layers are approximations that are made when they are asked for. They
            are then asked for once: parts are not looked through for factors that they share, and
            the proof takes the layers that were written.
    """

    fused: bool = False
    fuse: Fuse = fuse_exactly
    approximated: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """Tensors of a file that are made together.

    Attributes:
        title: The layer that they are of, for progress and messages.
        outlines: Makes them on the meta device, by key; an alpha is a real tensor.
        tensors: Makes them, at least in the precision that they are written in.
    """

    title: str
    outlines: Callable[[], Mapping[str, Tensor]]
    tensors: Callable[[], Mapping[str, Tensor]]


@dataclass(frozen=True, slots=True)
class WritePlan:
    """A file before it is written.

    Attributes:
        pieces: Its content, in order.
        header: Strings that the layout's readers look for in the file's header.
        config: What the file ``adapter_config.json`` beside it holds; None without such a file.
    """

    pieces: tuple[Piece, ...]
    header: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] | None = None


Layout = Callable[[AdapterState, "KeyMap", Options], WritePlan]


def piece_of(state: AdapterState, title: str, modules: Iterable[str], encode: Encode) -> Piece:
    """Make a piece of some of an adapter's layers; ``encode`` takes layers and outlines alike."""
    names = tuple(modules)
    layers = state.layers
    return Piece(
        title,
        lambda: encode({name: outline_of(layers, name) for name in names}),
        lambda: encode({name: layers[name] for name in names}),
    )


def layer_pieces(
    state: AdapterState, encode: Callable[[str, LayerState], Mapping[str, Tensor]]
) -> tuple[Piece, ...]:
    """Make a piece of each of an adapter's layers, as `piece_of`, by its name and itself."""

    def piece(name: str) -> Piece:
        return piece_of(state, name, [name], lambda layers: encode(name, layers[name]))

    return tuple(piece(name) for name in state.layers)


def patch_pieces(state: AdapterState, name: Callable[[str], str]) -> list[Piece]:
    """Make a piece of each layer's weight patches; ``name`` spells ComfyUI's name for the file."""

    def keyed(native: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {f"{name(native)}.{ending}": tensor for ending, tensor in tensors.items()}

    def piece(native: str) -> Piece:
        return Piece(
            native,
            lambda: keyed(native, patch_outline(state, native)),
            lambda: keyed(native, state.extras[native]),
        )

    return [piece(native) for native in state.extras]


def refuse_patches(state: AdapterState, layout: str) -> None:
    """Refuse weight patches, which only ComfyUI reads, by `AdapterError` that names the first."""
    for native in state.extras:
        ending = next(iter(patch_outline(state, native)))
        raise AdapterError(
            f"{native}.{ending}, a weight patch, and {len(state.extras)} such layer(s) in all",
            f"factors alone in layout {layout!r}",
            "Choose layout 'comfyui' or 'kohya', or leave them out on purpose: --extras drop.",
        )


def refuse_text_encoder(state: AdapterState, layout: str) -> None:
    """Refuse layers of a text encoder in a layout without names for them, by `AdapterError`."""
    for name in text_layers(state.layers):
        raise AdapterError(
            f"{name}, and {len(text_layers(state.layers))} layer(s) of a text encoder in all",
            f"layers of the denoiser alone in layout {layout!r}",
            "Choose layout 'comfyui', 'kohya' or 'diffusers', or leave them out on purpose: "
            "--extras drop.",
        )


def refuse_magnitude(outlines: Layers, axis: str, expected: str, remedy: str) -> None:
    """Refuse DoRA of an axis that a layout's readers do not compute as it was trained.

    Raises:
        AdapterError: When a layer has a magnitude of the axis.
    """
    for name, layer in outlines.items():
        magnitude = layer.tensors.get(DORA_SCALE)
        if magnitude is not None and axis_of(magnitude) == axis:
            raise AdapterError(f"{name} has a DoRA magnitude of the {axis} axis", expected, remedy)


def refuse_same_names(names: Iterable[str]) -> None:
    """Refuse two layers that would have the same name in a file, by `AdapterError`."""
    taken: set[str] = set()
    for name in names:
        if name in taken:
            raise AdapterError(
                f"two adapted layers are both written as {name!r}",
                "one name for each layer",
                "This is a fault of the family's key map; please report it.",
            )
        taken.add(name)


def with_alpha(prefix: str, kind: str, layer: LayerState) -> dict[str, Tensor]:
    """A layer as ComfyUI and LyCORIS read it: factors, and an alpha of its own in float32."""
    tensors: dict[str, Tensor] = {}
    rules = FILE_RULES[kind]
    for factor, tensor in rules.comfyui_factors(layer.tensors).items():
        ending = f".{factor}" if factor == DORA_SCALE else rules.ending(factor)
        tensors[prefix + ending] = tensor
    rank = rules.alpha_rank(layer.tensors)
    unused = layer.rank if rules.unused_alpha is None else rules.unused_alpha
    alpha = unused if rank is None else layer_scale(kind, layer) * rank
    tensors[f"{prefix}.alpha"] = torch.tensor(float(alpha), dtype=torch.float32)
    return tensors
