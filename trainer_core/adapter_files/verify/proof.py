"""Prove that ComfyUI loads an adapter file as the trainer means it, without ComfyUI.

ComfyUI says in its log alone what it does not load, and a shape that does not fit, or a magnitude
that it reads another way, it does not say at all. So this goes the way of its loader: the table of
names (`comfyui_names`), the tensors behind them and what is computed with them
(`comfyui_reading`), and compares the delta of every layer with the trainer's own (`comparison`).
One layer after another is read.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from pathlib import Path

from ...adapters.dora import DORA_SCALE, axis_of
from ...adapters.kinds.registry import FILE_RULES, matrix_sizes
from ...errors import AdapterFileError, RunError
from ...tensors.safetensors_reader import Source, open_tensors
from ...types import AdapterState, LayerState
from ..factors.outlines import outlines_of, patch_outline
from ..factors.whole_layers import undivided_layers
from ..names.comfyui_names import WEIGHT, Shapes, is_swapped, native_layer, patched_tensor
from ..names.key_map import KeyMap
from ..read.adapter_file import adapter_weights, open_adapter
from .comparison import Comparison
from .format_loss import format_warning
from .result import LOADED, MOST_ROUNDING, Proof


def prove(
    path: Source,
    key_map: KeyMap,
    shapes: Shapes | None = None,
    state: AdapterState | None = None,
    *,
    base: str = "the one that the adapter fits",
) -> Proof:
    """See what ComfyUI makes of an adapter file.

    Args:
        path: A safetensors file of any layout, or a folder with one.
        key_map: The names of the family that the file is for.
        shapes: The base's tensors by ComfyUI's names. Without them only those are known that follow
            from the adapter's own sizes, so that an adapter for a base of another size passes.
        state: What the file should hold; None takes what the trainer reads from it.
        base: Whose shapes they are, for the report.

    Returns:
        What was found.

    Raises:
        AdapterFileError: When it is no safetensors file; without shapes also when the trainer
            cannot read it.
    """
    with contextlib.ExitStack() as stack:
        own, unread = state, ""
        if own is None:
            own, unread = _reading(stack, path, key_map, needed=shapes is None)
        if shapes is None:
            shapes = adapter_shapes(own, key_map) if own else {}
        file = stack.enter_context(open_tensors(adapter_weights(path)))
        comparison = Comparison(file, key_map, shapes, own, state is not None)
        warning = "" if state is not None else format_warning(file)
        warnings = (warning,) if warning else ()
        layers = dict(comparison.layers())
        return Proof(Path(str(path)), base, comparison.tensors(), layers, unread, warnings=warnings)


def require_loadable(
    path: Path,
    state: AdapterState,
    key_map: KeyMap,
    *,
    exact: bool = True,
    shapes: Shapes | None = None,
) -> None:
    """Refuse a file that ComfyUI would not load as the adapter that it was written from.

    Args:
        path: The file; it may still have a temporary name.
        state: The adapter.
        key_map: The family's names. One that does not say how ComfyUI spells layers proves nothing.
        exact: Whether the changes have to agree too; not where an approximation was asked for.
        shapes: As for `prove`. Without them the sizes are the adapter's own, and only names are
            proved against something else.

    Raises:
        RunError: When a tensor is not loaded, or a layer's delta differs by more than rounding.
    """
    if not key_map.comfyui_spellings:
        return
    proof = prove(path, key_map, shapes, state)
    if not exact:
        proof = replace(proof, layers={})
    # Not `ok`: an adapter that was not trained yet changes nothing, and may be kept.
    if not proof.loads:
        problems = list(proof.problems())
        raise RunError(
            f"ComfyUI would not load this file as it was meant: {problems[0]}"
            + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""),
            "a file of which ComfyUI loads every tensor, and computes what the trainer computes",
            f"The file was not written. {_remedy(proof, based=shapes is not None)}",
        )


def _remedy(proof: Proof, *, based: bool) -> str:
    wrong = [layer for layer in proof.layers.values() if not layer.ok]
    if all(each.outcome == LOADED for each in proof.tensors.values()) and all(
        layer.rounding > MOST_ROUNDING for layer in wrong
    ):
        return "Choose dtype bf16 or fp32, which hold numbers as small as the adapter's."
    if based:
        return "Choose the base that the adapter was made for."
    return (
        "This is a fault of the program; please report it. Until it is fixed, choose another "
        "layout."
    )


def is_for_comfyui(state: AdapterState, layout: str, key_map: KeyMap) -> bool:
    """Whether a file is written for ComfyUI to read.

    Args:
        state: The adapter.
        layout: The file's layout. In layout ``lycoris`` a DoRA of rows, undivided layers, and what
            multiplies a layer whose halves ComfyUI exchanges are for LyCORIS alone.
        key_map: The family's names.
    """
    if layout != "lycoris":
        return layout in ("comfyui", "kohya")
    if undivided_layers(state.layers, key_map) or exchanged_layers(state, key_map):
        return False
    magnitude = (layer.tensors.get(DORA_SCALE) for layer in outlines_of(state).values())
    return all(each is None or axis_of(each) == "input" for each in magnitude)


def exchanged_layers(state: AdapterState, key_map: KeyMap) -> list[str]:
    """Layers that a kind multiplies, and whose halves lie the other way round in ComfyUI.

    By a name of such a layer's module, ComfyUI exchanges the rows of what is added, and not those
    that are multiplied.
    """
    if not FILE_RULES[state.kind].multiplies:
        return []
    return [name for name in state.layers if is_swapped(name, key_map)]


def adapter_shapes(state: AdapterState, key_map: KeyMap) -> dict[str, tuple[int, ...]]:
    """The shapes of the weights that an adapter fits.

    Args:
        state: The adapter.
        key_map: The family's names.

    Returns:
        ComfyUI's name of a tensor to its shape; of a fused layer from the parts that are adapted.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, layer in outlines_of(state).items():
        key = native_layer(key_map, name)
        if key is None:
            continue
        rows, *rest = _layer_shape(state.kind, layer)
        if key.part:
            parts = {part.module: part.share for part in key_map.parts(key.name)}
            rows = rows // parts.get(name, 1) * sum(parts.values())
        shapes.setdefault(f"{key.name}{WEIGHT}", (rows, *rest))
        shapes.setdefault(f"{key.name}.bias", (rows,))
    for native in state.extras:
        for ending, tensor in patch_outline(state, native).items():
            shapes.setdefault(patched_tensor(native, ending), tuple(tensor.shape))
    for native in state.extras:
        # ComfyUI finds a layer by its weight, also where only the bias is changed. The number of
        # columns is not known, and nothing is compared with it.
        bias = shapes.get(f"{native}.bias")
        if bias is not None:
            shapes.setdefault(f"{native}{WEIGHT}", (*bias[:1], 1))
    return shapes


def _layer_shape(kind: str, layer: LayerState) -> tuple[int, ...]:
    rows, columns = matrix_sizes(kind, layer)
    kernel = FILE_RULES[kind].window(layer)
    return rows, columns // math.prod(kernel), *kernel


def _reading(
    stack: contextlib.ExitStack, path: Source, key_map: KeyMap, *, needed: bool
) -> tuple[AdapterState | None, str]:
    """The trainer's own reading of a file, or why there is none."""
    try:
        return stack.enter_context(open_adapter(path, key_map)).state, ""
    except AdapterFileError as error:
        if needed:
            raise
        return None, f"the trainer does not read this file ({error.found})"
