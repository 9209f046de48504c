"""Loads one frozen model of a Diffusers folder."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..errors import BaseModelError
from .quiet import without_bars

# How each library calls the argument that gives the weights' precision.
_PRECISION = {"diffusers": "torch_dtype", "transformers": "dtype"}


def load_frozen(
    kind: str, folder: Path, part: str, dtype: torch.dtype, device: torch.device | str
) -> Any:
    """Load a model in evaluation mode and without gradients; never from the network.

    Args:
        kind: Library and class, such as ``diffusers.FluxTransformer2DModel``. The library is
            imported here, because that takes seconds.
        folder: The Diffusers folder.
        part: Its sub-folder.
        dtype: Of the weights.
        device: Where the model computes.

    Returns:
        The model.

    Raises:
        BaseModelError: When the installed library does not know the class, or the files are damaged
            or lack weights.
    """
    library, name = kind.split(".")
    model = getattr(importlib.import_module(library), name, None)
    if model is None:
        raise BaseModelError(
            f"the installed {library} has no {name}, which {folder / part} needs",
            f"a newer {library}",
            f"Upgrade it: pip install --upgrade {library}",
        )
    try:
        with without_bars(library):
            loaded, report = model.from_pretrained(
                folder / part,
                use_safetensors=True,
                local_files_only=True,
                output_loading_info=True,
                **{_PRECISION[library]: dtype},
            )
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        # The libraries wrap a damaged file into errors that end in advice on other matters.
        raise _unreadable(folder / part, str(error).strip().splitlines()[0]) from error
    missing = sorted(report["missing_keys"])
    if missing:
        # A library fills such weights with random numbers and goes on.
        raise _unreadable(folder / part, f"{len(missing)} weights are missing, {missing[0]} first")
    return loaded.requires_grad_(False).eval().to(device)


def _unreadable(place: Path, reason: str) -> BaseModelError:
    return BaseModelError(
        f"the weights in {place} cannot be loaded ({reason})",
        "whole safetensors files of the class that config.json there names",
        "Download or copy this part of the base again.",
    )
