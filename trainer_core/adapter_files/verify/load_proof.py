"""Prove that ComfyUI loads an adapter file as the trainer means it, without ComfyUI.

ComfyUI says in its log alone what it does not load, and a shape that does not fit, or a magnitude
that it reads another way, it does not say at all. So this goes the way of its loader: the table of
names (`comfyui_table`), the tensors behind them and what is computed with them
(`comfyui_loader_rules`), and compares the delta of every layer with the trainer's own
(`delta_comparison`), one layer after another.
"""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE, axis_of
from ...adapters.kinds.registry import FILE_RULES, matrix_sizes
from ...errors import AdapterFileError, RunError
from ...tensors.safetensors_reader import Source, TensorFile, open_tensors
from ...types import AdapterState, LayerState
from ..factors.fuse_layers import undivided_layers
from ..factors.outlines import outline_of, outlines_of, patch_outline
from ..names.key_layouts import FACTOR_ENDINGS
from ..names.key_map import WEIGHT, KeyMap, Shapes, is_swapped, native_layer, patched_tensor
from ..names.text_encoder_names import text_layers
from ..read.read_adapter import adapter_weights, open_adapter
from .delta_comparison import LOADED, MOST_ROUNDING, DeltaComparison, LayerProof, TensorProof

BLIND = (
    "whether the file holds what was trained. Two readings of one file agree however it was made; "
    "only an image made with it shows that it does what it should."
)
"""What no proof of a file sees."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Whether ComfyUI loads a file as the trainer means it.

    Attributes:
        path: The file; None for an adapter of a graph.
        base: Whose shapes were taken.
        tensors: Key to its fate.
        layers: Layer to its difference; empty where there was nothing to compare with.
        unread: Why the trainer itself cannot read the file, so that nothing was compared.
        bypassed: What ComfyUI's bypass loaders make of the file, where that is another thing.
        warnings: What loads as it is meant, and will hardly do what was meant.
        advice: What was expected of a file that the trainer cannot read, and what to do.
    """

    path: Path | None
    base: str
    tensors: Mapping[str, TensorProof]
    layers: Mapping[str, LayerProof]
    unread: str = ""
    bypassed: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the file loads as it is meant (`loads`), was compared, and changes anything."""
        return self.loads and not self.inert and self.compared > 0

    @property
    def compared(self) -> int:
        """How many layers ComfyUI's reading and the trainer's were held against each other of."""
        return sum(layer.difference is not None for layer in self.layers.values())

    @property
    def loads(self) -> bool:
        """Whether every tensor is loaded and no layer differs by more than rounding."""
        loaded = all(each.outcome == LOADED for each in self.tensors.values())
        return bool(self.tensors) and loaded and all(each.ok for each in self.layers.values())

    @property
    def still(self) -> tuple[str, ...]:
        """The layers whose delta is zero."""
        return tuple(name for name, layer in self.layers.items() if layer.still)

    @property
    def inert(self) -> bool:
        """Whether there are layers, and the delta of every one of them is zero."""
        return bool(self.layers) and len(self.still) == len(self.layers)

    @property
    def largest(self) -> float | None:
        """The largest difference; None when nothing was compared, not a number before all."""
        found = [each.difference for each in self.layers.values() if each.difference is not None]
        return max(found, key=lambda value: (math.isnan(value), value), default=None)

    def problems(self) -> Iterator[str]:
        """A line for each tensor that is not loaded, each layer that differs, and for no change."""
        for key, each in self.tensors.items():
            if each.outcome != LOADED:
                yield f"{each.outcome}: {key}: {each.reason}"
        for name, layer in self.layers.items():
            if not layer.ok:
                yield (
                    f"differs: {name}: by {layer.difference:.2g} of its change, where rounding "
                    f"allows {layer.allowed:.2g}" + (f": {layer.cause}" if layer.cause else "")
                )
        if self.loads and not self.compared:
            reasons = "; ".join(self._reasons()) or self.unread
            yield "proved nothing: no layer was compared" + (f": {reasons}" if reasons else "")
        if self.inert:
            yield (
                f"changes nothing: the change of every layer ({len(self.layers)}) is zero, as "
                "before the first step of training"
            )

    def summary(self) -> dict[str, Any]:
        """The result in a few plain values."""
        outcomes = Counter(each.outcome for each in self.tensors.values())
        compared = self.compared
        summary: dict[str, Any] = {
            "ok": self.ok,
            "base": self.base,
            "tensors": dict(outcomes),
            "layers compared": compared,
            "largest difference": self.largest,
        }
        if compared < len(self.layers):
            summary["layers not compared"] = len(self.layers) - compared
            summary["because"] = self._reasons()
        if self.still:
            summary["layers that change nothing"] = len(self.still)
        others = {
            "not compared": self.unread,
            "bypass loaders": list(self.bypassed),
            "warnings": list(self.warnings),
            "cannot see": BLIND,
        }
        return summary | {name: value for name, value in others.items() if value}

    def _reasons(self) -> list[str]:
        """Why layers were not compared."""
        return sorted({each.reason for each in self.layers.values() if each.difference is None})

    def text(self, most: int = 40) -> str:
        """The result for a person: one paragraph, then the problems, of which so many are named."""
        loaded = sum(each.outcome == LOADED for each in self.tensors.values())
        summary, verdict = self.summary(), "Fine" if self.ok else "NOT FINE"
        if self.loads and not self.compared:
            verdict = "PROVED NOTHING"
        lines = [
            f"{verdict}: {loaded} of {len(self.tensors)} tensors are "
            f"loaded; {summary['layers compared']} layers compared"
            + ("" if self.largest is None else f", largest difference {self.largest:.1e}")
            + f". Base: {self.base}."
        ]
        if self.unread and not self.loads:
            lines.append(f"Nothing was compared: {self.unread}")
        if "because" in summary:
            count = summary["layers not compared"]
            lines.append(f"{count} layers were not compared: {'; '.join(summary['because'])}")
        if self.still and not self.inert:
            lines.append(f"{len(self.still)} layers change nothing, {self.still[0]} first")
        problems = list(self.problems())
        lines += problems[:most]
        if len(problems) > most:
            lines.append(f"and {len(problems) - most} more")
        lines += [f"Warning: {line}" for line in self.warnings]
        lines += [f"Bypass loaders: {line}" for line in self.bypassed]
        lines += self.advice
        lines.append(f"Not seen: {BLIND}")
        return "\n".join(lines)


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

    Raises:
        AdapterFileError: When it is not a safetensors file; without shapes also when the trainer
            cannot read it.
    """
    with contextlib.ExitStack() as stack:
        own, refusal = state, None
        if own is None:
            own, refusal = _reading(stack, path, key_map, needed=shapes is None)
        if shapes is None:
            shapes = adapter_shapes(own, key_map) if own else {}
        elif own is not None and (texts := _text_part(own)).layers:
            # The base is the denoiser alone.
            shapes = {**shapes, **adapter_shapes(texts, key_map)}
        file = stack.enter_context(open_tensors(adapter_weights(path)))
        comparison = DeltaComparison(file, key_map, shapes, own=own, with_base=state is not None)
        warning = "" if state is not None else format_warning(file)
        warnings = (warning,) if warning else ()
        layers = dict(comparison.layers())
        proof = Proof(Path(str(path)), base, comparison.tensors(), layers, warnings=warnings)
        if refusal is None:
            return proof
        unread = f"the trainer does not read this file ({refusal.found})"
        advice = f"Expected: {refusal.expected}", f"To do: {refusal.remedy}"
        return replace(proof, unread=unread, advice=advice)


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

    In layout ``lycoris`` a DoRA of rows, undivided layers, and what multiplies a layer whose
    halves ComfyUI exchanges are for LyCORIS alone.
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
    """The shapes of the weights that an adapter fits, by ComfyUI's name of the tensor.

    Those of a fused layer follow from the parts that are adapted.
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
            shapes.setdefault(f"{native}{WEIGHT}", (*bias[:1], 0))
    return shapes


def _text_part(state: AdapterState) -> AdapterState:
    """An adapter's layers of a text encoder alone."""
    return replace(
        state, layers={n: outline_of(state.layers, n) for n in text_layers(state.layers)}, extras={}
    )


def _layer_shape(kind: str, layer: LayerState) -> tuple[int, ...]:
    rows, columns = matrix_sizes(kind, layer)
    kernel = FILE_RULES[kind].window(layer)
    return rows, columns // math.prod(kernel), *kernel


def _reading(
    stack: contextlib.ExitStack, path: Source, key_map: KeyMap, *, needed: bool
) -> tuple[AdapterState | None, AdapterFileError | None]:
    """The trainer's own reading of a file, or why there is none."""
    try:
        return stack.enter_context(open_adapter(path, key_map)).state, None
    except AdapterFileError as error:
        if needed:
            raise
        return None, error


COARSE = 0.01
"""Relative error from which on a number format has lost something: bf16 rounds by 0.002."""

_SHORT = (torch.float16, torch.float8_e4m3fn, torch.float8_e5m2)


def expected_loss(tensor: Tensor, dtype: torch.dtype) -> float:
    """How far a tensor is from what it was before it was rounded to its format, on the average.

    The norm of the expected error over that of the tensor; 0 for a tensor of zeros. A number is
    rounded by up to half a step, evenly spread: by a step over the root of 12. Steps shrink with
    the number down to the format's smallest normal one, and no further.
    """
    facts, values = torch.finfo(dtype), tensor.abs()
    size = float(values.square().sum().sqrt())
    if size == 0.0:
        return 0.0
    powers = torch.exp2(torch.floor(torch.log2(values.clamp(min=facts.smallest_normal))))
    steps = torch.where(values > 0, powers * facts.eps, 0.0)
    return float((steps.square().sum() / 12).sqrt()) / size


def format_warning(file: TensorFile) -> str:
    """What is to be said of factors that their number format holds badly; empty where all is well.

    Factors of bf16, whose steps shrink as far as float32's, and of more bits are not read.
    """
    losses: dict[str, float] = {}
    for key, info in file.tensors.items():
        if info.dtype in _SHORT and key.endswith(FACTOR_ENDINGS):
            losses[key] = expected_loss(file.read(key).float(), info.dtype)
    odd = {key: loss for key, loss in losses.items() if loss > COARSE}
    if not odd:
        return ""
    worst = max(odd, key=odd.__getitem__)
    stored = str(file.tensors[worst].dtype).removeprefix("torch.")
    return (
        f"{len(odd)} factors have lost more than {COARSE:.0%} to their number format, {worst} "
        f"first: about {odd[worst]:.1%} in {stored}. What was lost "
        "cannot be brought back: use the file that it was made from"
    )
