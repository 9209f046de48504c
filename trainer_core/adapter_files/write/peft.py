"""Layout ``peft``: a folder with ``adapter_model.safetensors`` and ``adapter_config.json``.

PEFT finds a layer's shapes by its own rules from the numbers in the configuration and multiplies
by alpha / r always, so the configuration is made so that its rules give the factors that are there.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...adapters.dora import DORA_SCALE
from ...adapters.kinds.registry import layer_scale
from ...errors import AdapterError
from ...filesystem.storage import (
    claim,
    flush_folder,
    move,
    storage_error,
    taken,
    unlink,
    write_json,
)
from ...filesystem.temporary import temporary_beside
from ...types import AdapterState, LayerState
from ..factors.fuse import split_sizes
from ..factors.outlines import Layers, outlines_of
from ..factors.whole_layers import refuse_undivided
from ..names.key_map import KeyMap
from ..names.key_parsing import PEFT_PREFIX
from ..read.peft_config import CONFIG_NAME, WEIGHTS_NAME
from .diffusers import (
    APPROXIMATE,
    KEEP_WHOLE,
    peft_factor,
    refuse_convolutions,
    refuse_unread_lengths,
)
from .write_plan import Options, Plan, piece_of, refuse_extras

_KEYS = {"lora_down": "lora_A.weight", "lora_up": "lora_B.weight"}


def plan_peft(state: AdapterState, key_map: KeyMap, options: Options) -> Plan:
    """PEFT's names and its configuration.

    Raises:
        AdapterError: When no configuration makes PEFT compute what the adapter computes.
    """
    del options
    refuse_extras(state, "peft")
    refuse_undivided(state, key_map, "layout 'peft'", KEEP_WHOLE)
    outlines = outlines_of(state)
    refuse_convolutions(outlines)
    refuse_unread_lengths(outlines, state.kind)
    config = {
        "base_model_name_or_path": None,
        "bias": "none",
        "inference_mode": True,
        "peft_type": state.kind.upper(),
        "task_type": None,
        # An expression, because PEFT takes a listed name also for the end of a longer one.
        "target_modules": "|".join(re.escape(name) for name in sorted(outlines)),
        **_CONFIGS[state.kind](outlines),
    }
    if state.kind != "lora":
        # PEFT has no field for biases there, and refuses one that it does not know.
        del config["bias"]
    return Plan(
        tuple(piece_of(state, name, [name], _encode) for name in state.layers), config=config
    )


def save_folder(
    path: Path, config: Mapping[str, Any], write: Callable[[Path], None], *, replace: bool = True
) -> None:
    """Write both files of a PEFT folder, so that no half of them is left.

    A new folder gets its name when it is whole. In a folder that is there already, both files are
    replaced one right after the other when both are whole; other files in it stay.

    Args:
        path: The folder.
        config: Content of the configuration.
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
            raise taken(path) from error
        placed.append(path / name)
    flush_folder(path)


def _encode(layers: Layers) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for name, layer in layers.items():
        for factor, tensor in layer.tensors.items():
            if factor == DORA_SCALE:
                tensors[f"{PEFT_PREFIX}{name}.lora_magnitude_vector"] = tensor.flatten()
            else:
                tensors[f"{PEFT_PREFIX}{name}.{_KEYS.get(factor, factor)}"] = tensor
    return tensors


def _sizes(kind: str, layers: Layers, rank: Callable[[LayerState], int]) -> dict[str, Any]:
    """Rank and alpha of each layer: the most frequent ones, and patterns for the others."""
    ranks = {name: rank(layer) for name, layer in layers.items()}
    alphas = {name: _plain(layer_scale(kind, layers[name]) * r) for name, r in ranks.items()}
    usual_rank = Counter(ranks.values()).most_common(1)[0][0]
    usual_alpha = Counter(alphas.values()).most_common(1)[0][0]
    return {
        "r": usual_rank,
        "lora_alpha" if kind == "lora" else "alpha": usual_alpha,
        "rank_pattern": {_exactly(n): r for n, r in ranks.items() if r != usual_rank},
        "alpha_pattern": {_exactly(n): a for n, a in alphas.items() if a != usual_alpha},
    }


def _exactly(name: str) -> str:
    return f"^{re.escape(name)}"


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number


def _lora_config(layers: Layers) -> dict[str, Any]:
    with_lengths = [name for name, layer in layers.items() if DORA_SCALE in layer.tensors]
    if with_lengths and len(with_lengths) < len(layers):
        without = next(name for name in layers if name not in with_lengths)
        raise AdapterError(
            f"{with_lengths[0]} has DoRA lengths and {without} has none",
            "lengths in every layer or in none, because PEFT has one switch for all",
            f"Choose layout 'diffusers'. {APPROXIMATE} --base PATH.",
        )
    sizes = _sizes("lora", layers, lambda layer: layer.tensors["lora_down"].shape[0])
    return {**sizes, "use_dora": bool(with_lengths), "lora_dropout": 0.0, "fan_in_fan_out": False}


def _loha_config(layers: Layers) -> dict[str, Any]:
    return _sizes("loha", layers, lambda layer: layer.tensors["hada_w1_b"].shape[0])


def _lokr_config(layers: Layers) -> dict[str, Any]:
    factor = peft_factor(layers)
    both = any("lokr_w1_a" in layer.tensors for layer in layers.values())
    ranks = {name: _lokr_rank(layer, both=both) for name, layer in layers.items()}
    wrong = next((name for name, rank in ranks.items() if rank is None), None)
    if factor is None or wrong is not None:
        raise AdapterError(
            f"a LoKr whose factors PEFT would give other shapes ({wrong or 'all layers together'})",
            "one factor for all layers, and a low-rank form that follows from the rank alone",
            "Export with layout 'comfyui', or train with adapter.factor = -1 and without "
            f"full_matrix. {APPROXIMATE}.",
        )
    sizes = _sizes("lokr", layers, lambda layer: _lokr_rank(layer, both=both) or 1)
    return {**sizes, "decompose_both": both, "decompose_factor": factor}


def _lokr_rank(layer: LayerState, *, both: bool) -> int | None:
    """The rank for which PEFT's rules give a layer the factors that it has; None without one."""
    (out_first, out_second), (in_first, in_second) = split_sizes(layer.tensors)
    bound_first, bound_second = max(out_first, in_first) / 2, max(out_second, in_second) / 2
    ranks = {
        layer.tensors[name].shape[0] for name in ("lokr_w1_b", "lokr_w2_b") if name in layer.tensors
    }
    if not ranks:
        ranks = {max(1, math.ceil(bound_second), math.ceil(bound_first) if both else 1)}
    rank = ranks.pop()
    first_whole, second_whole = not (both and rank < bound_first), rank >= bound_second
    found = ("lokr_w1" in layer.tensors, "lokr_w2" in layer.tensors)
    return rank if not ranks and found == (first_whole, second_whole) else None


_CONFIGS: Mapping[str, Callable[[Layers], dict[str, Any]]] = {
    "lora": _lora_config,
    "loha": _loha_config,
    "lokr": _lokr_config,
}
