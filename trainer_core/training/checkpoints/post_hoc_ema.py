"""Post-hoc EMA: adapters of averages that are chosen after the run, from its checkpoints."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...adapter_files.metadata import SETTINGS_KEY, kept_header, own_facts
from ...adapter_files.names.key_map import KeyMap
from ...adapter_files.write.write_adapter import layout_name, write_adapter
from ...adapters.init.pissa_olora import joined_factors
from ...config import RunConfig
from ...errors import CheckpointError, InputError
from ...families.graph_model_denoiser import GRAPH_MODEL
from ...families.graph_model_family import named_family
from ...families.registry import get_family
from ...tensors.safetensors_reader import TensorFile, open_tensors
from ...types import AdapterState, LayerState
from .checkpoint import ADAPTER_FILE, checkpoint_folders, open_state, read_facts
from .ema import POWER
from .power_ema import LONGEST, Profile, sum_for
from .train_state import ADAPTER

POWER_FACTS = "power_averages"
"""Where a checkpoint's ``state.json`` says what makes an adapter of its averages."""


@dataclass(frozen=True, slots=True)
class KeptAverages:
    """The averages of one checkpoint.

    Attributes:
        updates: How many they are made of.
        began: The step behind which they began.
        layers: Alpha, rank and kernel of each layer.
    """

    folder: Path
    step: int
    updates: int
    began: int
    lengths: tuple[float, ...]
    layers: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Averaged:
    """An adapter that was made of averages.

    Attributes:
        length: That was wanted, as a share of the run's updates.
        error: How far the average's shares are from the wanted ones, relative.
        paths: Its files, one for each layout.
    """

    length: float
    error: float
    paths: tuple[Path, ...]


def layer_outlines(state: AdapterState) -> dict[str, Any]:
    """What makes layers of their factors, as JSON values."""
    return {
        name: {"alpha": each.alpha, "rank": each.rank, "kernel": list(each.kernel)}
        for name, each in state.layers.items()
    }


def kept_averages(version: Path) -> list[KeptAverages]:
    """Find the averages of a run's checkpoints, oldest first.

    Where averages were begun again, those from before are not part of the same ones.

    Raises:
        InputError: When no checkpoint has any.
        CheckpointError: When what a checkpoint says of itself cannot be read.
    """
    folders = checkpoint_folders(version / "checkpoints")
    found = [each for each in map(_read, folders) if each is not None]
    if not found:
        what = f"none of its {len(folders)} checkpoints" if folders else "it has no checkpoints and"
        raise InputError(
            f"{version} keeps no averages to choose from: {what} has any",
            "checkpoints of a run with training.ema.post_hoc",
            "Set training.ema.post_hoc to true and train; a run that goes on keeps averages of "
            "the steps to come.",
        )
    return [each for each in found if each.began == found[-1].began]


def _read(folder: Path) -> KeptAverages | None:
    facts = read_facts(folder)
    about = facts.get(POWER_FACTS)
    if about is None:
        return None
    try:
        found = KeptAverages(
            folder,
            int(facts["step"]),
            int(about["updates"]),
            began=int(about["began"]),
            lengths=tuple(float(each) for each in about["lengths"]),
            layers={str(name): dict(each) for name, each in about["layers"].items()},
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CheckpointError(
            f"{folder} says of its averages what cannot be read ({type(error).__name__}: {error})",
            "state.json as it was written",
            "Leave this checkpoint out: move its folder away.",
        ) from error
    # Before the first update there is nothing to average.
    return found if found.updates else None


def check_length(length: float) -> None:
    """Refuse a length that no average has.

    Raises:
        InputError: When it is not between 0 and that of the plain mean.
    """
    if not 0.001 <= length <= 0.28:
        raise InputError(
            f"a length of {length}",
            f"from 0.001 to 0.28, as a share of the run; the mean of all steps has {LONGEST:.3f}",
            "Try 0.05, 0.1 and 0.2.",
        )


def make_averaged(
    kept: Sequence[KeptAverages],
    config: RunConfig,
    length: float,
    target: tuple[Path, str],
    replace: bool,
) -> Averaged:
    """Make an adapter of an average of any length, over all steps up to the last checkpoint.

    Args:
        length: As a share of the run's updates.
        target: The folder of the files, and their name without ending.

    Raises:
        InputError: For a length that no average has, or when a file is there.
        CheckpointError: When tensors of a checkpoint are absent.
        StorageError: When a file cannot be written.
    """
    check_length(length)
    newest = kept[-1]
    profiles = [Profile(each.updates, own) for each in kept for own in each.lengths]
    factors, error = sum_for(profiles, Profile(newest.updates, length))
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open_state(each.folder)) for each in kept]
        state = _summed_state(kept, files, factors, config)
    header = _header(newest, state, length, error)
    key_map = _key_map(config, state)
    folder, name = target
    paths: list[Path] = []
    for layout in config.output.layouts:
        path = folder / layout_name(name, layout)
        dtype = config.output.dtype
        write_adapter(
            path, state, layout, key_map=key_map, metadata=header, dtype=dtype, replace=replace
        )
        paths.append(path)
    return Averaged(length, error, tuple(paths))


def _key_map(config: RunConfig, state: AdapterState) -> KeyMap:
    """The names of the run's layers; of a model that was on a graph they are its own."""
    if config.family == GRAPH_MODEL:
        return named_family("", state.layers).layers.key_map
    return get_family(config.family).layers.key_map


def _summed_state(
    kept: Sequence[KeptAverages],
    files: Sequence[TensorFile],
    factors: Sequence[float],
    config: RunConfig,
) -> AdapterState:
    newest, names = files[-1], _factor_names(files[-1])
    places = [
        (each, file, prefix)
        for each, file in zip(kept, files, strict=True)
        for prefix in POWER[: len(each.lengths)]
    ]
    layers: dict[str, LayerState] = {}
    for layer, outline in kept[-1].layers.items():
        tensors = {
            factor: _summed(places, factors, f"{layer}.{factor}")
            for factor in names.get(layer, {}).get(POWER[0], ())
        }
        for factor in names.get(layer, {}).get(ADAPTER.rstrip("."), ()):
            # Frozen ones, from which those that were trained are differences.
            if factor not in tensors:
                tensors[factor] = newest.read(f"{ADAPTER}{layer}.{factor}")
        kernel = tuple(outline["kernel"])
        layers[layer] = LayerState(
            joined_factors(tensors), outline["alpha"], outline["rank"], kernel
        )
    settings = config.adapter.model_dump(mode="json")
    return AdapterState(config.adapter.kind, layers, settings)


def _factor_names(file: TensorFile) -> dict[str, dict[str, list[str]]]:
    """Layer to the beginnings of a file's keys, to the factors that have them."""
    found: dict[str, dict[str, list[str]]] = {}
    for key in file.tensors:
        prefix, _, rest = key.partition(".")
        layer, _, factor = rest.rpartition(".")
        found.setdefault(layer, {}).setdefault(prefix, []).append(factor)
    return found


def _summed(
    places: Sequence[tuple[KeptAverages, TensorFile, str]], factors: Sequence[float], name: str
) -> Tensor:
    total: Tensor | None = None
    for (kept, file, prefix), factor in zip(places, factors, strict=True):
        key = f"{prefix}.{name}"
        if key not in file.tensors:
            raise CheckpointError(
                f"{kept.folder} lacks the tensor {key}",
                "the averages of every layer in each checkpoint",
                "Leave this checkpoint out: move its folder away.",
            )
        part = file.read(key)
        own = factor * part.to(torch.float64)
        total = own if total is None else total.add_(own)
    assert total is not None, "there is at least one checkpoint"
    return total.float()


def _header(
    newest: KeptAverages, state: AdapterState, length: float, error: float
) -> dict[str, str]:
    """That of the newest checkpoint's adapter, with what average this one is."""
    with open_tensors(newest.folder / ADAPTER_FILE) as file:
        metadata = file.metadata
    header, _ = kept_header(metadata, state.kind, state.kind, reformed=False)
    facts = own_facts(metadata)
    if facts:
        average = {"kind": "power", "length": length, "updates": newest.updates, "error": error}
        header[SETTINGS_KEY] = json.dumps({**facts, "average": average}, sort_keys=True)
        # As exactly as the header has it: a shareable one tells no time of day.
        date = header.get("modelspec.date", "")
        if date:
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            header["modelspec.date"] = now[: len(date)]
    return header
