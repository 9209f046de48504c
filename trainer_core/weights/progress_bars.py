"""Keeps the libraries' own progress bars out of the trainer's output while a model is loaded."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator


@contextlib.contextmanager
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
