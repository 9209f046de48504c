"""Read adapter files of every layout and spelling.

A file is opened in two steps. From the header alone come layout, kind, shapes and every complaint
about them; the values are read when a layer is asked for, one layer at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ...errors import AdapterFileError
from ...filesystem.text_files import parse_json
from ...tensors.safetensors_reader import HeldTensors, Source, TensorFile, open_tensors
from ...types import AdapterState, LayerState
from ..header import SETTINGS_KEY
from ..names.key_map import KeyMap
from ..names.key_parsing import DROP, PEFT_PREFIX, count_kinds, told
from .file_content import FileContent, read_content
from .module_mapping import LazyPatches, MappedLayers, map_layers, map_patches
from .peft_config import CONFIG_NAME, WEIGHTS_NAME, PeftConfig, header_config, read_config

_DIFFUSERS_WEIGHTS = "pytorch_lora_weights.safetensors"
_PICKLED_WEIGHTS = ("adapter_model.bin", "pytorch_lora_weights.bin")


@dataclass(frozen=True, slots=True)
class AdapterFile:
    """A file's content before its names are mapped to a family's.

    Attributes:
        path: The safetensors file; of a folder the one in it.
        kind: ``lora``, ``loha`` or ``lokr``.
        layout: How its names are spelt: ``comfyui`` (ComfyUI's, also mixed with Diffusers' for the
            parts of fused layers), ``diffusers``, ``peft``, ``kohya``, ``lycoris``, ``onetrainer``,
            ``xlabs``, or ``bare`` for paths without a prefix.
        dtypes: The number formats of its tensors, without alphas.
        layers: Name in the file, with its prefix, to the layer. `open_file` reads a layer at each
            look-up; ``layers.outline(name)`` gives it without its values.
        metadata: The header's strings.
        extras: Name in the file to ending to a weight patch (`AdapterState`).
        zero_alpha: Layers of alpha 0, by which ComfyUI multiplies; the trainer takes the rank.
        unread: Key that lies beside the factors and is not read, to what it is of.
        assumed: Why the scale is not known, for which alpha / rank = 1 is taken; empty where it is.
    """

    path: Path
    kind: str
    layout: str
    dtypes: tuple[str, ...]
    layers: Mapping[str, LayerState]
    metadata: Mapping[str, str]
    extras: LazyPatches | Mapping[str, Mapping[str, Any]]
    zero_alpha: tuple[str, ...] = ()
    unread: Mapping[str, str] = field(default_factory=dict)
    assumed: str = ""


@dataclass(frozen=True, slots=True)
class OpenAdapter:
    """An adapter whose values are read when they are asked for.

    Attributes:
        file: What the file is.
        state: The adapter in the trainer's naming. ``state.layers`` reads a layer in float32 at
            each look-up, and ``state.extras`` a difference; neither keeps them.
    """

    file: AdapterFile
    state: AdapterState

    def outline(self, name: str) -> LayerState:
        """A layer on the meta device, in the number format of the file; nothing is read."""
        layers = self.state.layers
        assert isinstance(layers, MappedLayers)
        return layers.outline(name)


@contextmanager
def open_file(path: Source) -> Iterator[AdapterFile]:
    """Open an adapter file for the time of a block, without knowing its family.

    What lies beside the factors is not read (`AdapterFile.unread`), and a scale that the file does
    not tell is taken as 1 (`AdapterFile.assumed`).

    Args:
        path: A safetensors file of any layout, PEFT's or Diffusers' folder with one, or tensors in
            memory.

    Yields:
        The file; its layers can be read until the block ends.

    Raises:
        AdapterFileError: When it is no readable adapter file; the message names file and key.
    """
    with _open_content(path) as (content, assumed):
        yield _file(content, assumed)


def read_file(path: Source) -> AdapterFile:
    """Read an adapter file as a whole, without knowing its family.

    Raises:
        AdapterFileError: As `open_file`, and for values that are not finite.
    """
    with open_file(path) as file:
        extras = {name: dict(tensors) for name, tensors in file.extras.items()}
        return replace(file, layers=dict(file.layers), extras=extras)


@contextmanager
def open_adapter(
    path: Source,
    key_map: KeyMap,
    others: Mapping[str, KeyMap] | None = None,
    *,
    tolerant: bool = False,
    extras: bool = True,
) -> Iterator[OpenAdapter]:
    """Open an adapter file for the time of a block.

    The shapes of all layers are checked here; whether values are finite is seen when they are
    read. Fused layers of a file are the layers that they consist of; to find their ranks, one
    factor of each is looked through once.

    Args:
        path: As for `open_file`.
        key_map: The names of the family that the file is for.
        others: Other families, to name the right one in a message.
        tolerant: Whether a file is read that has more than this trainer reads
            (`AdapterFile.unread`), or does not tell its scale (`AdapterFile.assumed`).
        extras: Whether weight patches are read.

    Yields:
        The adapter. The file is closed when the block ends.

    Raises:
        AdapterFileError: When it is no adapter file, a key is unknown, or the layers are not the
            family's; the message names the key.
    """
    with _open_content(path) as (content, assumed):
        file = _file(content, assumed)
        if not tolerant:
            refuse_unread(file)
            _refuse_assumed(file)
        layers = map_layers(content, key_map, others or {})
        differences = map_patches(content, key_map) if extras else {}
        settings = saved_settings(file.metadata)
        yield OpenAdapter(file, AdapterState(file.kind, layers, settings, differences))


def refuse_unread(file: AdapterFile) -> None:
    """Refuse a file that has more than this trainer reads.

    Raises:
        AdapterFileError: When it has; the message says what.
    """
    if file.unread:
        raise AdapterFileError(
            f"{file.path}: {told(count_kinds(file.unread))}",
            "factors of the denoiser alone; the rest would be lost",
            f"Leave it out on purpose: {DROP}. ComfyUI loads what it knows of the file as it is.",
        )


def _refuse_assumed(file: AdapterFile) -> None:
    if file.assumed:
        raise AdapterFileError(
            f"{file.path}: {file.assumed}",
            f"the {CONFIG_NAME} that PEFT saved with it, or an alpha for each layer",
            f"Restore {CONFIG_NAME} beside it. Or convert the file, which takes alpha = rank and "
            "says so: adapter-trainer convert IN OUT --to LAYOUT.",
        )


def read_adapter(
    path: Source, key_map: KeyMap, others: Mapping[str, KeyMap] | None = None
) -> AdapterState:
    """Read an adapter file of any layout as a whole.

    Args:
        path: As for `open_file`.
        key_map: The names of the family that the file is for.
        others: Other families, to name the right one in a message.

    Returns:
        The adapter in the trainer's naming, in float32. An alpha that is absent or 0 means rank,
        unless PEFT's configuration says otherwise.

    Raises:
        AdapterFileError: As `open_adapter`, and for values that are not finite.
    """
    with open_adapter(path, key_map, others) as adapter:
        state = adapter.state
        extras = {name: dict(tensors) for name, tensors in state.extras.items()}
        return replace(state, layers=dict(state.layers), extras=extras)


def adapter_weights(path: Source) -> Source:
    """Where the tensors of what `open_file` is given lie."""
    return _find(path)[0]


def adapter_files(path: Path) -> tuple[Path, ...]:
    """The files whose content makes an adapter: the weights and, with PEFT's names, its scale.

    Args:
        path: What `read_adapter` is given.

    Returns:
        One or two files; those that are not there are not looked for.

    Raises:
        AdapterFileError: When it is a folder without weights, or no safetensors file.
    """
    path = Path(path)
    weights, config = _find(path)
    assert isinstance(weights, Path)
    if config is None or not config.is_file():
        return (weights,)
    if config.parent == path:
        return weights, config
    with open_tensors(weights) as file:
        return (weights, config) if _has_peft_names(file) else (weights,)


def saved_settings(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """The adapter's settings as this trainer wrote them into a header; empty for other files."""
    try:
        settings = parse_json(metadata.get(SETTINGS_KEY, "{}"))["settings"]["adapter"]
    except (ValueError, TypeError, KeyError):
        return {}
    return settings if isinstance(settings, dict) else {}


@contextmanager
def _open_content(path: Source) -> Iterator[tuple[FileContent, str]]:
    """The content, and why its scale is not known."""
    weights, config = _find(path)
    with open_tensors(weights) as file:
        is_own = config is not None and config.parent == path
        found: list[PeftConfig | None] = []

        def find_config() -> PeftConfig | None:
            found.append(_config(path, file, config))
            return found[0]

        content = read_content(file, find_config, always=is_own)
        yield content, _assumed(file) if found == [None] else ""


def _find(path: Source) -> tuple[Source, Path | None]:
    """The weights, and where PEFT's configuration would be."""
    if isinstance(path, HeldTensors):
        return path, None
    path = Path(path)
    if not path.is_dir():
        return path, path.parent / CONFIG_NAME
    if (path / WEIGHTS_NAME).is_file():
        return path / WEIGHTS_NAME, path / CONFIG_NAME
    if (path / _DIFFUSERS_WEIGHTS).is_file():
        return path / _DIFFUSERS_WEIGHTS, None
    for name in _PICKLED_WEIGHTS:
        if (path / name).is_file():
            return path / name, None  # refused as a pickle, by its name
    raise AdapterFileError(
        f"{path} cannot be read: it is a folder without {WEIGHTS_NAME}",
        "an adapter file, or a folder that PEFT or Diffusers saved",
        "Name the .safetensors file itself.",
    )


def _config(path: Source, file: TensorFile, config: Path | None) -> PeftConfig | None:
    """The configuration that says the scale: the header's own, or the one beside PEFT's names."""
    if config is not None and config.parent == path:
        return read_config(config)
    own = header_config(file.path, file.metadata)
    if own is not None or not _has_peft_names(file):
        return own
    if config is not None and config.is_file():
        return read_config(config)
    return None


def _assumed(file: TensorFile) -> str:
    if not _has_peft_names(file) or any(key.endswith(".alpha") for key in file.tensors):
        return ""
    return f"its names are PEFT's, and the {CONFIG_NAME} that says its scale is not beside it"


def _has_peft_names(file: TensorFile) -> bool:
    return any(key.startswith(PEFT_PREFIX) for key in file.tensors)


def _file(content: FileContent, assumed: str) -> AdapterFile:
    return AdapterFile(
        content.file.path,
        content.kind,
        content.layout,
        content.dtypes,
        content.layers,
        content.file.metadata,
        content.extras,
        content.zero_alpha,
        content.unread,
        assumed,
    )
