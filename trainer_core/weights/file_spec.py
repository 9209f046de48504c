"""What a family says of the files of its bases: the contract of reading and building them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from .header import WeightFile


@dataclass(frozen=True, slots=True)
class FolderSpec:
    """What a Diffusers folder of the family contains.

    Attributes:
        pipelines: Class names in ``model_index.json``, to the variant that ``base.variant: auto``
            means when there are control images; None when such a base was not made for editing.
        encoder_parts: Sub-folders of the encoders.
        edit_parts: Sub-folders that only the edit variants need.
        does_both: Whether each base was made for generating and for editing, files too.
        seeing_parts: Sub-folders of the model that shows a start frame to the denoiser.
        sees: Whether a denoiser, by its single file or its folder, is shown one.
        check: Refuses a folder of such a pipeline whose model the family does not compute; also
            given which of `DENOISERS` was named, empty for none, and ``base.path``.
    """

    pipelines: Mapping[str, str | None]
    encoder_parts: tuple[str, ...] = ("text_encoder", "tokenizer", "vae")
    edit_parts: tuple[str, ...] = ()
    does_both: bool = False
    seeing_parts: tuple[str, ...] = ()
    sees: Callable[[Path | None, Path], bool] = lambda file, denoiser: False
    check: Callable[[Path, str, str], None] = lambda folder, part, path: None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor of Diffusers' transformer is in a single file.

    Attributes:
        name: Name in the file, without prefix.
        part: Place among the parts that lie one after another in that tensor.
        swapped: Whether its two halves are in the opposite order in the file.
        flat: Whether its rows lie one after another in a single row there.
    """

    name: str
    part: int = 0
    swapped: bool = False
    flat: bool = False

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """What the file has of a tensor of this shape."""
        return (math.prod(shape),) if self.flat else shape


def _same_name(name: str, native: bool) -> Origin:
    return Origin(name)


def _as_it_is(file: WeightFile) -> WeightFile:
    return file


def _nothing(*_: object) -> None:
    """Nothing is left to do."""


@dataclass(frozen=True, slots=True)
class FileSpec:
    """How a single file, as ComfyUI's users have it, becomes the family's denoiser.

    Attributes:
        transformer: Library and class, such as ``diffusers.FluxTransformer2DModel``.
        configs: Holds Diffusers folders of settings without weights.
        config_of: (file, variant) to the name of its folder there.
        settings: What the file itself says of the transformer's settings: sizes above all.
        native_marks: How names begin that only ComfyUI's own naming has; empty when Diffusers'
            names are ComfyUI's own.
        markers: Names of tensors that are not weights but say what the file is.
        tidy: Gives the tensors their present names, where older files spell them differently.
        origin: (name in the transformer, whether the file has ComfyUI's naming) to its place; None
            for what ComfyUI has no name for.
        edit_variant: What ``base.variant: auto`` means when there are control images.
        edits: Whether the file says of itself, above all by its name, that it was made for editing.
        restore: Computes the tensors of a transformer that no file holds, such as rotary tables,
            after it was built without memory.
        check: Refuses a file with whose settings, all together, no transformer can be built.
    """

    transformer: str
    configs: Path
    settings: Callable[[WeightFile], dict[str, Any]]
    native_marks: tuple[str, ...] = ()
    markers: frozenset[str] = frozenset()
    config_of: Callable[[WeightFile, str], str] = lambda file, variant: variant
    tidy: Callable[[WeightFile], WeightFile] = _as_it_is
    origin: Callable[[str, bool], Origin | None] = _same_name
    edit_variant: Callable[[WeightFile], str] = lambda file: "edit"
    edits: Callable[[WeightFile], bool] = lambda file: "edit" in file.hints
    restore: Callable[[nn.Module], None] = _nothing
    check: Callable[[WeightFile, Mapping[str, Any]], None] = _nothing

    @property
    def class_name(self) -> str:
        """The class alone, as ``transformer/config.json`` names it."""
        return self.transformer.rpartition(".")[2]

    def is_native(self, names: Iterable[str]) -> bool:
        """Whether a file with these names has ComfyUI's naming, where that is another one."""
        return any(name.startswith(self.native_marks) for name in names)
