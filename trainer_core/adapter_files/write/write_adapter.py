"""Write adapter files in any of the layouts, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ...errors import AdapterError, NonFiniteError, PrecisionError
from ...tensors.rounding import all_finite
from ...tensors.safetensors_writer import Outline, stream_tensors
from ...types import AdapterState
from ..factors.fuse_layers import fuse_exactly
from ..names.key_map import ALPHA_SUFFIX, MAGNITUDE_SUFFIXES, KeyMap
from ..read.read_adapter import open_adapter
from ..verify.load_proof import is_for_comfyui, require_loadable
from .comfyui import plan_comfyui, plan_kohya, plan_lycoris
from .diffusers import plan_diffusers
from .peft import plan_peft, save_folder
from .write_plan import Layout, Options, WritePlan

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

_COARSE = 0.1
"""Relative error of a tensor above which its number format does not hold it."""

Watch = Callable[[int, int, str], None]
"""Told (finished layers, all layers, the layer that is made next)."""


@dataclass(frozen=True, slots=True)
class Written:
    """What writing a file came to.

    Attributes:
        tensors: How many tensors it holds.
        rounding: The largest error that the number format makes in a tensor: the norm of the
            difference over the norm; 0 where no value was rounded.
    """

    tensors: int
    rounding: float


def write_adapter(
    path: Path,
    state: AdapterState,
    layout: str,
    key_map: KeyMap,
    metadata: Mapping[str, str],
    dtype: str | None = "fp32",
    options: Options | None = None,
    watch: Watch | None = None,
    *,
    proof: bool = True,
    replace: bool = True,
) -> Written:
    """Write an adapter as one safetensors file, whole or not at all.

    Everything that can be refused is refused before the first byte is written. Then one layer after
    another is encoded and written, so that the file is never in memory as a whole. A file for
    ComfyUI is then read again as ComfyUI reads it, before it gets its name (`require_loadable`).

    Args:
        path: The file's name; of layout ``peft`` the folder's.
        state: The adapter. Its layers may be read when they are asked for (`outlines.outline_of`).
        layout: One of `LAYOUTS`.
        metadata: Strings for the header, from `adapter_metadata`.
        dtype: ``fp32``, ``bf16`` or ``fp16``; None keeps every tensor in the number format that the
            state's outlines have. Alphas and DoRA's magnitudes are always fp32 (`_dtype`).
        options: Where the layout leaves a choice.
        watch: Told before each layer and at the end.
        proof: Whether a file for ComfyUI is proved to load, which takes as long as writing.
        replace: Whether what has the name is replaced, also if it came in the meantime.

    Returns:
        What was written.

    Raises:
        AdapterError: For an unknown layout or dtype, or an adapter that the layout cannot hold.
        NonFiniteError: When a value is not finite, or becomes so in the chosen dtype.
        PrecisionError: When a tensor's values are too small for the dtype.
        InputError: When something has the name and is not to be replaced.
        StorageError: When the file cannot be written.
        RunError: When the proof fails.
    """
    _refuse_unknown(state, layout, dtype)
    options = options or Options()
    plan = LAYOUTS[layout](state, key_map, options)
    outlines = _outlines(plan, None if dtype is None else DTYPES[dtype])
    content = _Content(plan, outlines, watch)
    header = {"format": "pt", **plan.header, **metadata}
    check = partial(_require_loadable, state=state, key_map=key_map, options=options)
    checked = check if proof and is_for_comfyui(state, layout, key_map) else None

    def write(target: Path) -> None:
        stream_tensors(
            target, outlines, content.tensors(), metadata=header, check=checked, replace=replace
        )

    if plan.config is not None:
        save_folder(path, plan.config, write, replace=replace)
    else:
        write(path)
    return Written(len(outlines), content.rounding)


def check_layouts(state: AdapterState, layouts: Iterable[str], key_map: KeyMap) -> None:
    """Refuse layouts that could not hold an adapter, before it is trained.

    Only names, shapes and settings of the adapter count, not its values.

    Raises:
        AdapterError: When one of them cannot hold it.
    """
    # Factors that parts share at initialization will differ after training.
    options = Options(approximated=True)
    for layout in layouts:
        _outlines(LAYOUTS[layout](state, key_map, options), None)


def _refuse_unknown(state: AdapterState, layout: str, dtype: str | None) -> None:
    if layout not in LAYOUTS or dtype not in (*DTYPES, None):
        raise AdapterError(
            f"layout {layout!r} in {dtype!r}",
            f"a layout of {', '.join(LAYOUTS)} and a dtype of {', '.join(DTYPES)}",
            "Choose one of these (for a run: output.layouts and output.dtype).",
        )
    if not state.layers and not state.extras:
        raise AdapterError(
            "an adapter without layers", "at least one layer", "Check what was attached or read."
        )


def _require_loadable(
    written: Path, state: AdapterState, key_map: KeyMap, options: Options
) -> None:
    if not options.approximated:
        require_loadable(written, state, key_map, exact=options.fuse is fuse_exactly)
        return
    with open_adapter(written, key_map) as opened:
        require_loadable(written, opened.state, key_map)


def _outlines(plan: WritePlan, dtype: torch.dtype | None) -> dict[str, Outline]:
    """Every tensor of the file before any of them is made."""
    outlines: dict[str, Outline] = {}
    for piece in plan.pieces:
        for key, tensor in piece.outlines().items():
            if key in outlines:
                raise AdapterError(
                    f"the key {key!r} twice",
                    "one tensor for each key",
                    "This is a fault of the family's key map; please report it.",
                )
            outlines[key] = Outline(_dtype(key, tensor, dtype), tuple(tensor.shape))
    return outlines


def _dtype(key: str, outline: Tensor, wanted: torch.dtype | None) -> torch.dtype:
    # A magnitude is rounded by its own size, which is that of the weight; training changes it by a
    # hundredth of that, so that in 16 bits a tenth of the change is lost.
    if key.endswith((ALPHA_SUFFIX, *MAGNITUDE_SUFFIXES)):
        return torch.float32
    own = outline.dtype if wanted is None else wanted
    # bfloat16 holds all numbers of 8 bits, and others compute with it.
    return own if own.itemsize > 1 else torch.bfloat16


class _Content:
    """The tensors of a file, made one layer after another, and what rounding them cost."""

    def __init__(
        self, plan: WritePlan, outlines: Mapping[str, Outline], watch: Watch | None
    ) -> None:
        self.rounding = 0.0
        self._plan = plan
        self._outlines = outlines
        self._watch = watch or (lambda done, count, title: None)

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        count = len(self._plan.pieces)
        for done, piece in enumerate(self._plan.pieces):
            self._watch(done, count, piece.title)
            # Not kept while the next piece is made.
            tensors = dict(piece.tensors())
            while tensors:
                key = next(iter(tensors))
                yield key, self._ready(key, tensors.pop(key))
        self._watch(count, count, "")

    def _ready(self, key: str, tensor: Tensor) -> Tensor:
        dtype = self._outlines[key].dtype
        ready = tensor.to(dtype)
        if not all_finite(ready):
            overflowed, name = all_finite(tensor), _name_of(dtype)
            raise NonFiniteError(
                f"{key} holds a value that is not finite" + (f" in {name}" if overflowed else ""),
                "finite values; nothing was written",
                "Write it in fp32 or bf16: --dtype fp32 (for a run: output.dtype)."
                if overflowed
                else "Use an earlier checkpoint, and lower the learning rate.",
            )
        if dtype != tensor.dtype:
            error = _rounding(tensor, ready)
            if error > _COARSE:
                raise _too_coarse(key, tensor, dtype, error)
            self.rounding = max(self.rounding, error)
        return ready


def _name_of(dtype: torch.dtype) -> str:
    return next((name for name, known in DTYPES.items() if known == dtype), str(dtype))


def _too_coarse(key: str, tensor: Tensor, dtype: torch.dtype, error: float) -> PrecisionError:
    name = _name_of(dtype)
    return PrecisionError(
        f"{key} loses {min(error, 1.0):.0%} of itself in {name}: its largest value is "
        f"{float(tensor.abs().max()):.1e}",
        f"values that {name} can hold; nothing was written",
        "Write it in bf16 or fp32: --dtype bf16 (for a run: output.dtype).",
    )


def _rounding(tensor: Tensor, ready: Tensor) -> float:
    lost = float(torch.linalg.vector_norm(ready.to(tensor.dtype).sub_(tensor)))
    return lost / float(torch.linalg.vector_norm(tensor)) if lost else 0.0


LAYOUTS: Mapping[str, Layout] = {
    "comfyui": plan_comfyui,
    "diffusers": plan_diffusers,
    "peft": plan_peft,
    "kohya": plan_kohya,
    "lycoris": plan_lycoris,
}


def layout_name(stem: str, layout: str) -> str:
    """What a run's adapter is called in a layout: a file, or a folder for ``peft``."""
    own = stem if layout == "comfyui" else f"{stem}_{layout}"
    return own if layout == "peft" else f"{own}.safetensors"
