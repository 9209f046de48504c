"""Write adapter files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from ..errors import AdapterError, NonFiniteError
from ..storage import save_tensors
from ..types import AdapterState
from .keys import KeyMap
from .layouts import LAYOUTS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def write_adapter(
    path: Path,
    state: AdapterState,
    layout: str,
    key_map: KeyMap,
    metadata: Mapping[str, str],
    dtype: str = "fp32",
) -> None:
    """Write an adapter as one safetensors file, whole or not at all.

    Args:
        path: The file's name.
        state: The adapter.
        layout: ``comfyui`` or ``diffusers``.
        key_map: The family's names.
        metadata: Strings for the header, from `adapter_metadata`.
        dtype: ``fp32``, ``bf16`` or ``fp16``; alphas are always fp32.

    Raises:
        AdapterError: For an unknown layout or dtype, or an adapter that the layout cannot hold.
        NonFiniteError: When a value is not finite, or becomes so in the chosen dtype.
        StorageError: When the file cannot be written.
    """
    if layout not in LAYOUTS or dtype not in DTYPES:
        raise AdapterError(
            f"layout {layout!r} in {dtype!r}",
            f"a layout of {', '.join(LAYOUTS)} and a dtype of {', '.join(DTYPES)}",
            "Correct output.layouts or output.dtype.",
        )
    if not state.layers:
        raise AdapterError(
            "an adapter without layers", "at least one layer", "Check what was attached or read."
        )
    encoded = LAYOUTS[layout](state, key_map)
    tensors = {}
    for key, tensor in encoded.tensors.items():
        ready = tensor if key.endswith(".alpha") else tensor.to(DTYPES[dtype])
        if not bool(torch.isfinite(ready).all()):
            overflowed = bool(torch.isfinite(tensor).all())
            raise NonFiniteError(
                f"{key} holds a value that is not finite" + (f" in {dtype}" if overflowed else ""),
                "finite values; nothing was written",
                "Set output.dtype to fp32 or bf16."
                if overflowed
                else "Use an earlier checkpoint, and lower the learning rate.",
            )
        tensors[key] = ready
    save_tensors(path, tensors, {"format": "pt", **encoded.header, **metadata})
