"""Errors of libraries that load a part of a base, as errors that name the part."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError

from ..errors import BaseModelError, TrainerError
from ..printable import shortened
from .diffusers_folder import read_json


@contextmanager
def reading_part(place: Path) -> Iterator[None]:
    """Turn whatever the files of a part lead a library, or us, into one error that names it.

    The libraries take what stands in a configuration as it is, and check some of it with errors of
    their own: a text where a number belongs can end in any class of error.

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
        raise unreadable(place, f"{kind}{lines[0] if lines else 'no reason given'}") from error


@contextmanager
def without_bars(library: str) -> Iterator[None]:
    """Switch a library's progress bars off, and back to what they were.

    Whoever has decided on bars with ``HF_HUB_DISABLE_PROGRESS_BARS`` keeps them as they are.
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


def unreadable(place: Path, reason: str) -> BaseModelError:
    """The error of a part whose files cannot be loaded."""
    packed = _quantized_by(place)
    if packed:
        return BaseModelError(
            f"{place} is stored by {packed}, which cannot load it here ({shortened(reason, 500)})",
            f"a GPU that {packed} supports, and {packed} itself",
            f"Install {packed} on a machine with a GPU, or name the model in bf16: "
            "memory.base_format stores it in fewer bits here.",
        )
    return BaseModelError(
        f"the files in {place} cannot be loaded ({shortened(reason, 500)})",
        "whole safetensors files and settings of the class that config.json there names",
        "Download or copy this part of the base again.",
    )


def _quantized_by(place: Path) -> str:
    """The library that has quantized a part of a base; empty where none has."""
    try:
        settings = read_json(place / "config.json")
    except BaseModelError:
        return ""
    config = settings.get("quantization_config")
    method = config.get("quant_method") if isinstance(config, dict) else None
    return method if isinstance(method, str) and method.isidentifier() else ""
