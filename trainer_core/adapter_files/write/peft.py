"""Layout ``peft``: a folder with ``adapter_model.safetensors`` and ``adapter_config.json``.

PEFT finds a layer's shapes by its own rules from the numbers in the configuration and multiplies
by alpha / r always, so the configuration is made so that its rules give the factors that are there.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from ...adapters.dora_magnitude import DORA_SCALE
from ...adapters.kinds.registry import FILE_RULES, layer_scale
from ...filesystem.storage import (
    claim,
    flush_folder,
    move,
    name_taken_error,
    storage_error,
    unlink,
    write_json,
)
from ...filesystem.temporary import temporary_beside
from ...types import AdapterState, LayerState
from ..factors.fuse_layers import with_divided_layers
from ..factors.outlines import Layers
from ..names.key_layouts import MAGNITUDE, PEFT_PREFIX
from ..names.key_map import KeyMap
from ..read.peft_config import CONFIG_NAME, WEIGHTS_NAME
from .diffusers import named_as_diffusers, peft_outlines
from .write_plan import Options, WritePlan, layer_pieces, refuse_text_encoder


def plan_peft(state: AdapterState, key_map: KeyMap, options: Options) -> WritePlan:
    """PEFT's names and its configuration.

    Raises:
        AdapterError: When no configuration makes PEFT compute what the adapter computes.
    """
    del options
    refuse_text_encoder(state, "peft")
    state = with_divided_layers(named_as_diffusers(state, key_map, "peft"), key_map)
    outlines = peft_outlines(state, key_map, "peft")
    config = {
        "base_model_name_or_path": None,
        "inference_mode": True,
        "peft_type": state.kind.upper(),
        "task_type": None,
        # An expression, because PEFT takes a listed name also for the end of a longer one.
        "target_modules": "|".join(re.escape(name) for name in sorted(outlines)),
        **_ranks_and_alphas(state.kind, outlines),
        **FILE_RULES[state.kind].peft_options(outlines),
    }
    return WritePlan(layer_pieces(state, partial(_encode, state.kind)), config=config)


def save_folder(
    path: Path, config: Mapping[str, Any], write: Callable[[Path], None], *, replace: bool = True
) -> None:
    """Write both files of a PEFT folder, so that no half of them is left.

    A new folder gets its name when it is whole. In a folder that is there already, both files are
    replaced one right after the other when both are whole; other files in it stay.

    Args:
        write: Writes the weights to the path that it is given.
        replace: Whether an adapter that is in the folder is replaced, also one that came while this
            was written.

    Raises:
        InputError: When there is an adapter that is not to be replaced.
        StorageError: When the disk is full or the folder cannot be written.
    """
    with temporary_beside(path) as temporary:
        try:
            temporary.mkdir(parents=True)
            write(temporary / WEIGHTS_NAME)
            write_json(temporary / CONFIG_NAME, dict(config))
            _place(temporary, path, replace=replace)
            flush_folder(path.parent)
        except OSError as error:
            raise storage_error(path, error) from error


def _place(temporary: Path, path: Path, *, replace: bool) -> None:
    """Put both files where they belong, with or without their folder."""
    if not path.exists():
        try:
            move(temporary, path)
        except OSError:
            if not path.is_dir():
                raise
            # It has come in the meantime.
        else:
            return
    placed: list[Path] = []
    for name in (WEIGHTS_NAME, CONFIG_NAME):
        if replace:
            move(temporary / name, path / name, replace=True)
            continue
        try:
            claim(temporary / name, path / name)
        except FileExistsError as error:
            for each in placed:
                unlink(each)
            raise name_taken_error(path) from error
        placed.append(path / name)
    flush_folder(path)


def _encode(kind: str, name: str, layer: LayerState) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for factor, tensor in layer.tensors.items():
        if factor == DORA_SCALE:
            tensors[f"{PEFT_PREFIX}{name}.{MAGNITUDE}"] = tensor.flatten()
        else:
            tensors[f"{PEFT_PREFIX}{name}{FILE_RULES[kind].peft_ending(factor)}"] = tensor
    return tensors


def _ranks_and_alphas(kind: str, layers: Layers) -> dict[str, Any]:
    """Rank and alpha of each layer: the most frequent ones, and patterns for the others."""
    ranks = FILE_RULES[kind].peft_ranks(layers)
    alphas = {name: _plain(layer_scale(kind, layers[name]) * r) for name, r in ranks.items()}
    usual_rank = Counter(ranks.values()).most_common(1)[0][0]
    usual_alpha = Counter(alphas.values()).most_common(1)[0][0]
    return {
        "r": usual_rank,
        FILE_RULES[kind].peft_alpha: usual_alpha,
        "rank_pattern": {_exactly(n): r for n, r in ranks.items() if r != usual_rank},
        "alpha_pattern": {_exactly(n): a for n, a in alphas.items() if a != usual_alpha},
    }


def _exactly(name: str) -> str:
    return f"^{re.escape(name)}"


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number
