"""Loads the frozen parts of a Diffusers folder, and is where the libraries' errors end."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from ..errors import BaseModelError, TrainerError
from ..printable import shortened

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
    with reading_part(folder / part), without_bars(library):
        loaded, report = model.from_pretrained(
            folder / part,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
            **{_PRECISION[library]: dtype},
        )
    missing = sorted(report["missing_keys"])
    if missing:
        # A library fills such weights with random numbers and goes on.
        raise _unreadable(folder / part, f"{len(missing)} weights are missing, {missing[0]} first")
    return loaded.requires_grad_(False).eval().to(device)


def load_words(kind: str, folder: Path, part: str) -> Any:
    """Load a tokenizer or a processor of images; never from the network.

    Args:
        kind: A class of transformers, such as ``AutoTokenizer``.
        folder: The Diffusers folder.
        part: Its sub-folder.

    Raises:
        BaseModelError: When its files are damaged or missing.
    """
    loader = getattr(importlib.import_module("transformers"), kind)
    with reading_part(folder / part):
        return loader.from_pretrained(folder / part, local_files_only=True)


@contextmanager
def reading_part(place: Path) -> Iterator[None]:
    """Turn whatever the files of a part lead a library, or us, into one error that names it.

    The libraries take what stands in a configuration as it is, and check some of it with errors of
    their own: a text where a number belongs can end in any class of error.

    Args:
        place: The folder or file that is read.

    Raises:
        BaseModelError: In place of the library's error.
    """
    try:
        yield
    except (TrainerError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        # Some wrap a damaged file into errors that end in advice on other matters.
        lines = str(error).strip().splitlines()
        kind = "" if isinstance(error, OSError | SafetensorError) else f"{type(error).__name__}: "
        raise _unreadable(place, f"{kind}{lines[0] if lines else 'no reason given'}") from error


@contextmanager
def without_bars(library: str) -> Iterator[None]:
    """Switch a library's progress bars off, and back to what they were.

    Whoever has decided on bars with ``HF_HUB_DISABLE_PROGRESS_BARS`` keeps them as they are.

    Args:
        library: ``transformers`` or ``diffusers``.
    """
    from huggingface_hub import constants
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars

    bars = importlib.import_module(f"{library}.utils.logging")
    decided = constants.HF_HUB_DISABLE_PROGRESS_BARS is not None
    if decided or not bars.is_progress_bar_enabled():
        yield
        return
    downloads_are_silent = are_progress_bars_disabled()
    bars.disable_progress_bar()
    try:
        yield
    finally:
        bars.enable_progress_bar()
        # transformers switches the bars of downloads together with its own.
        if downloads_are_silent:
            disable_progress_bars()


def _unreadable(place: Path, reason: str) -> BaseModelError:
    return BaseModelError(
        f"the files in {place} cannot be loaded ({shortened(reason, 500)})",
        "whole safetensors files and settings of the class that config.json there names",
        "Download or copy this part of the base again.",
    )
