"""What a family says of the files of its bases: the contract of reading and building them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        transformer: Class name in ``transformer/config.json``.
        pipelines: Class names in ``model_index.json``, to the variant that ``base.variant: auto``
            means when there are control images; None when such a base was not made for editing.
        encoder_parts: Sub-folders of the encoders.
        edit_parts: Sub-folders that only the edit variants need.
    """

    transformer: str
    pipelines: Mapping[str, str | None]
    encoder_parts: tuple[str, ...]
    edit_parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a tensor of Diffusers' transformer is in a single file.

    Attributes:
        name: Name in the file, without prefix.
        part: Place among the parts that lie one after another in that tensor.
        swapped: Whether its two halves are in the opposite order in the file.
    """

    name: str
    part: int = 0
    swapped: bool = False


def no_check(file: WeightFile, settings: Mapping[str, Any]) -> None:
    """`FileSpec.check` where the tensors' shapes say everything."""
    del file, settings


@dataclass(frozen=True, slots=True)
class FileSpec:
    """How a single file, as ComfyUI's users have it, becomes the family's denoiser.

    Attributes:
        transformer: Library and class, such as ``diffusers.FluxTransformer2DModel``.
        configs: Holds a Diffusers folder of settings without weights for each variant.
        native_marks: How names begin that only ComfyUI's own naming has; empty when Diffusers'
            names are ComfyUI's own.
        markers: Names of tensors that are no weights but say what the file is.
        tidy: Gives the tensors their present names, where older files spell them differently.
        origin: (name in the transformer, whether the file has ComfyUI's naming) to its place.
        settings: What the file itself says of the transformer's settings: sizes above all.
        edit_variant: What ``base.variant: auto`` means when there are control images.
        restore: Computes the tensors of a transformer that no file holds, such as rotary tables,
            after it was built without memory.
        check: Refuses a file with whose settings, all together, no transformer can be built.
    """

    transformer: str
    configs: Path
    native_marks: tuple[str, ...]
    markers: frozenset[str]
    tidy: Callable[[WeightFile], WeightFile]
    origin: Callable[[str, bool], Origin]
    settings: Callable[[WeightFile], dict[str, Any]]
    edit_variant: Callable[[WeightFile], str]
    restore: Callable[[nn.Module], None]
    check: Callable[[WeightFile, Mapping[str, Any]], None] = no_check
