"""Bases in one file, as ComfyUI's users have them: read lazily, renamed, never twice in memory."""

from __future__ import annotations

from .building import empty_model, file_settings, load_file
from .quantization import check_formats
from .weights import FILE_SUFFIXES, WeightFile, looks_like_file, open_weights, read_header

__all__ = [
    "FILE_SUFFIXES",
    "WeightFile",
    "check_formats",
    "empty_model",
    "file_settings",
    "load_file",
    "looks_like_file",
    "open_weights",
    "read_header",
]
