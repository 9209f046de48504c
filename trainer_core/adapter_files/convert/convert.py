"""Convert an adapter file to another layout: exactly, refused, or approximated on request."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from ...adapters.dora_magnitude import DORA_SCALE, axis_of
from ...adapters.kinds.registry import FILE_RULES, LOW_RANK
from ...errors import AdapterError, InputError, NonFiniteError, PrecisionError
from ...filesystem.storage import require_folder
from ...tensors.safetensors_reader import FilePart, Source, open_tensors
from ...types import AdapterState
from ..factors.fuse_layers import undivided_layers
from ..factors.outlines import outlines_of
from ..metadata import kept_header
from ..names.key_layouts import count_kinds, patch_kinds
from ..names.key_map import ALPHA_SUFFIX, KeyMap, native_key
from ..names.layer_match import native_of_patch
from ..read.adapter_file import AdapterFile
from ..read.expert_parts import experts_of
from ..read.peft_config import CONFIG_NAME, WEIGHTS_NAME
from ..read.read_adapter import adapter_files, adapter_weights, open_adapter, refuse_unread
from ..verify.load_proof import COARSE, exchanged_layers
from ..write.write_adapter import LAYOUTS, Watch, Written, write_adapter
from .adapt_to_layout import Adapted, ConversionOptions, WeightOf, adapt_to_layout

EXACT = 1e-6
"""Relative error of a layer up to which only float32's rounding is left."""

SUFFIX = ".safetensors"
SUFFIXES = (SUFFIX, ".sft")
"""Endings of files that ComfyUI lists as safetensors, in any case."""

_FUSING = ("comfyui", "kohya")


@dataclass(frozen=True, slots=True)
class Conversion:
    """What a conversion did.

    Attributes:
        source: The given file or folder, or the tensors in memory.
        target: The new one.
        kind: The kind that the new file holds.
        layout: Its layout.
        layers: Number of layers that were converted.
        errors: Approximated layer to what it lost of its delta, relative; the others are exact.
        merged: Layers that are in the file as differences of their weight, which is exact.
        dropped: What was left out on request.
        rounding: The largest relative error that the number format makes in a tensor; 0 where
            every value is as it was.
        notes: What else is to be known.
    """

    source: Source
    target: Path
    kind: str
    layout: str
    layers: int
    errors: Mapping[str, float]
    merged: tuple[str, ...]
    dropped: tuple[str, ...]
    rounding: float
    notes: tuple[str, ...]

    @property
    def exact(self) -> bool:
        """Whether no layer lost anything but a number format's usual rounding."""
        return self.rounding <= COARSE and not self._lost

    @property
    def _lost(self) -> dict[str, float]:
        return {layer: error for layer, error in self.errors.items() if error > EXACT}

    def differences(self) -> list[str]:
        """In words, how the new file is another than the given one; empty where it is not."""
        words = []
        if self._lost:
            worst = max(self._lost, key=self._lost.__getitem__)
            words.append(
                f"{len(self._lost)} layers approximated, largest error {self._lost[worst]:.4g} "
                f"({worst})"
            )
        if self.merged:
            words.append(f"{len(self.merged)} layers written as weight patches (diff)")
        if self.dropped:
            words.append(f"{len(self.dropped)} tensors dropped")
        if self.rounding:
            words.append(f"rounded by {self.rounding:.4g}")
        return words


def convert(
    source: Source,
    target: Path,
    layout: str,
    key_map: KeyMap,
    *,
    dtype: str | None = None,
    fused: bool = False,
    approximate: str | None = None,
    rank: int | None = None,
    weight_of: WeightOf | None = None,
    extras: Literal["keep", "drop"] = "keep",
    overwrite: bool = False,
    watch: Watch | None = None,
) -> Conversion:
    """Convert an adapter to a layout. It streams: one layer at a time is in memory.

    What a layout cannot hold is brought into another exact form where there is one, approximated
    where that is asked for, and else refused. With the base's weights, DoRA that ComfyUI reads
    wrongly is written as the difference that it makes, which is as large as the base's layers; with
    ``approximate`` as a LoRA.

    Args:
        source: An adapter file, a PEFT folder, or tensors in memory.
        target: The new file; for layout ``peft`` the new folder.
        layout: One of `LAYOUTS`.
        key_map: The names of the adapter's family.
        dtype: ``fp32``, ``bf16`` or ``fp16``; None keeps the file's.
        fused: As in `Options`.
        approximate: ``lora`` makes every layer that is none the nearest LoRA; ``lokr`` makes the
            nearest Kronecker product of a LoKr's parts where a fused layer is written.
        rank: The most that an approximated layer may have.
        extras: ``drop`` leaves out differences and all else that is not a factor.
        overwrite: Whether an existing target is replaced.
        watch: Told (finished layers, all layers, next layer).

    Raises:
        InputError: When the source cannot be read, the layout cannot hold the adapter, or the
            target exists, is the source, or has another ending.
        RunError: When a value is not finite, or the target cannot be written.
    """
    _check_options(layout, approximate, rank, fused=fused)
    check_target(source, target, layout, overwrite=overwrite)
    wanted = ConversionOptions(layout, fused, approximate, rank=rank, weight_of=weight_of)
    with open_adapter(source, key_map, tolerant=True, extras=extras == "keep") as opened:
        if not (drop := extras == "drop"):
            refuse_unread(opened.file)
        state, dropped = opened.state, _dropped(opened.file, key_map) if drop else ()
        adapted = adapt_to_layout(state, key_map, wanted)
        kind = adapted.state.kind
        kind = FILE_RULES[kind].diffusers_kind if layout == "diffusers" else kind
        reformed = _is_reformed(adapted, key_map, wanted)
        header, left_out = kept_header(opened.file.metadata, state.kind, kind, reformed=reformed)
        options = {"options": adapted.options, "watch": watch, "replace": overwrite}
        write = partial(write_adapter, target, adapted.state, layout, key_map, header, **options)
        written, notes = _write(write, dtype)
        notes += left_out + _warnings(state, adapted, wanted, key_map)
        notes += _notes_of_file(source, opened.file, drop=drop)
    return Conversion(
        source,
        target,
        kind,
        layout=layout,
        layers=len(state.layers),
        errors=dict(adapted.errors),
        merged=adapted.merged,
        dropped=dropped,
        rounding=written.rounding,
        notes=notes,
    )


def targets_of(source: Source, target: Path) -> list[tuple[Source, Path]]:
    """The adapters of a file with the files that they become: two where it holds both experts.

    Raises:
        AdapterFileError: When it cannot be read, or a tensor is of neither expert.
    """
    named = [
        (part, target.with_name(f"{target.stem}_{expert}{target.suffix}"))
        for expert, part in experts_of(adapter_weights(source)).items()
    ]
    return named or [(source, target)]


def check_target(source: Source, target: Path, layout: str, *, overwrite: bool) -> None:
    """Refuse a target that would replace what it must not.

    Raises:
        InputError: When the target is the source, exists, or cannot be an adapter of the layout, or
            the source is not a file of an adapter.
    """
    require_folder(target.parent)
    outputs = (target / WEIGHTS_NAME, target / CONFIG_NAME) if layout == "peft" else (target,)
    read = source.path if isinstance(source, FilePart) else source
    for first in adapter_files(read) if isinstance(read, Path) else ():
        for second in outputs:
            if _is_same(first, second):
                raise InputError(
                    f"{target} is both what is read and what is written",
                    "another name for the new file",
                    "Name another output.",
                )
    if layout == "peft":
        if target.suffix.lower() in SUFFIXES or (target.exists() and not target.is_dir()):
            raise InputError(
                f"the output {target}, a file, for layout 'peft'",
                "the name of a folder: PEFT keeps an adapter in one",
                f"Name a folder without the ending {SUFFIX}.",
            )
    elif target.suffix.lower() not in SUFFIXES or target.is_dir():
        raise InputError(
            f"the output {target} for layout {layout!r}",
            f"the name of a file that ends in {SUFFIX}",
            f"Name a file with the ending {SUFFIX}.",
        )
    special = next((path for path in outputs if path.exists() and not path.is_file()), None)
    if special is not None:
        raise InputError(
            f"{special}, which is not an ordinary file",
            "a name that is free, or that of a file to be replaced",
            "Name another output.",
        )
    if not overwrite and any(path.exists() for path in outputs):
        raise InputError(
            f"{target} is there already",
            "a name that is free",
            "Name another output, or replace it on purpose: --overwrite.",
        )


def _is_same(first: Path, second: Path) -> bool:
    if first.resolve() == second.resolve():
        return True
    with contextlib.suppress(OSError):
        return first.samefile(second)
    return False


def _check_options(layout: str, approximate: str | None, rank: int | None, *, fused: bool) -> None:
    if layout not in LAYOUTS:
        raise AdapterError(
            f"the layout {layout!r}", f"one of {', '.join(LAYOUTS)}", "Choose one of these."
        )
    if fused and layout not in _FUSING:
        raise AdapterError(
            f"fused with layout {layout!r}",
            "a layout that has ComfyUI's own layers: comfyui, or kohya, which is always fused",
            "Leave --fused out.",
        )
    if rank is not None and approximate != LOW_RANK:
        raise AdapterError(
            f"a rank of {rank} without an approximation as a {LOW_RANK}",
            "a rank only where layers are approximated; an exact conversion keeps every rank",
            f"Add --approximate {LOW_RANK}, or leave --rank out.",
        )
    if rank is not None and rank < 1:
        raise AdapterError(f"a rank of {rank}", "a rank of 1 or more", "Correct --rank.")


def _dropped(file: AdapterFile, key_map: KeyMap) -> tuple[str, ...]:
    """What is left out: differences by ComfyUI's names where they have one, and other keys."""
    patches = (f"{native_of_patch(n, key_map) or n}.{ending}" for n, ending in file.patches())
    return (*patches, *file.unread)


def _warnings(
    source: AdapterState, adapted: Adapted, wanted: ConversionOptions, key_map: KeyMap
) -> tuple[str, ...]:
    found = (layer.tensors.get(DORA_SCALE) for layer in outlines_of(adapted.state).values())
    magnitude = [each for each in found if each is not None]
    notes = []
    if wanted.layout == "lycoris" and any(axis_of(each) == "output" for each in magnitude):
        notes.append(
            "A DoRA magnitude of the output axis is for LyCORIS; ComfyUI up to 0.33 misreads it"
        )
    if wanted.layout == "lycoris" and undivided_layers(adapted.state.layers, key_map):
        notes.append(
            "Layers that ComfyUI fuses are whole here, so that all have ComfyUI's names, for "
            "LyCORIS beside a model of these names; ComfyUI reads none of them in this layout"
        )
    if wanted.layout == "lycoris" and exchanged_layers(adapted.state, key_map):
        notes.append(
            "A layer whose halves ComfyUI has the other way round is for LyCORIS; ComfyUI "
            "multiplies the wrong rows of it in this layout"
        )
    if wanted.layout == "diffusers" and magnitude:
        notes.append(
            f"{len(magnitude)} layers have a DoRA magnitude: Diffusers reads it, and ComfyUI "
            "ignores it in this layout, so that it computes plain factors"
        )
    if wanted.form == LOW_RANK and source.kind != LOW_RANK and magnitude:
        notes.append(
            f"{len(magnitude)} layers keep their DoRA magnitude; their errors are those of the "
            "factors' delta alone, before it is stretched"
        )
    return tuple(notes)


def _write(
    write: Callable[[str | None], Written], dtype: str | None
) -> tuple[Written, tuple[str, ...]]:
    notes = ()
    try:
        written = write(dtype)
    except (NonFiniteError, PrecisionError) as error:
        if dtype is not None:
            raise
        # A layout that takes alpha into a factor can make it too large or small for fp16.
        written, notes = write("fp32"), (f"Written in fp32, because {error.found}",)
    if written.rounding > COARSE:
        notes += (
            f"The number format loses {written.rounding:.1%} of a tensor, whose values are too "
            "small for it: dtype bf16 or fp32 holds them",
        )
    return written, notes


def _is_reformed(adapted: Adapted, key_map: KeyMap, wanted: ConversionOptions) -> bool:
    """Whether layers get other ranks or another form than they had."""
    if adapted.merged or wanted.form is not None:
        return True
    fuses = wanted.fused or wanted.layout == "kohya"
    return fuses and any(native_key(name, key_map).part for name in adapted.state.layers)


def _notes_of_file(source: Source, file: AdapterFile, *, drop: bool) -> tuple[str, ...]:
    notes = () if FILE_RULES[file.kind].unused_alpha == 0.0 else _zero_alphas(source)
    if file.assumed:
        notes += (f"The scale is a guess (alpha = rank): {file.assumed}",)
    if drop:
        kinds = {**patch_kinds(file.patches()), **count_kinds(file.unread)}
        notes += tuple(
            f"Left out: {count} tensor(s), {what}, {first!r} first"
            for what, (count, first) in kinds.items()
        )
    return notes


def _zero_alphas(source: Source) -> tuple[str, ...]:
    """A note where alphas are 0, which kohya's and LyCORIS's readers take as the rank."""
    with open_tensors(adapter_weights(source)) as file:
        count = sum(
            not bool(file.read(key).any()) for key in file.tensors if key.endswith(ALPHA_SUFFIX)
        )
    return (f"The alpha of {count} layers is 0, which was taken as the rank",) if count else ()
