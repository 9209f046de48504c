"""Read adapter files of every layout and spelling, as layers of a family.

A file is opened in two steps. From the header alone come layout, kind, shapes and every complaint
about them; the values are read when a layer is asked for, one layer at a time. Layers then get the
trainer's names, and fused ones are read in parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from ...adapters.dora_magnitude import DORA_SCALE
from ...adapters.kinds.registry import matrix_sizes
from ...errors import AdapterFileError
from ...tensors.safetensors_reader import FilePart, HeldTensors, Source, TensorFile, open_tensors
from ...types import AdapterState, LayerState
from ..factors.fuse_layers import FusedLayer, fuse_exactly, fused_layer, is_exact
from ..factors.outlines import LazyMapping, outline_of
from ..factors.split_fused import InexactSliceError, owned_columns, slice_layer
from ..metadata import own_facts
from ..names.key_layouts import DROP, count_kinds, kinds_in_words
from ..names.key_map import KeyMap
from ..names.layer_match import WHOLE, LayerMatch, LayerRows, match_layer, matching_families
from ..names.text_encoder_names import is_text_layer
from .adapter_file import AdapterFile, has_peft_names, read_content
from .peft_config import CONFIG_NAME, WEIGHTS_NAME, PeftConfig, header_config, read_config
from .weight_patches import map_patches

_DIFFUSERS_WEIGHTS = "pytorch_lora_weights.safetensors"
_PICKLED_WEIGHTS = ("adapter_model.bin", "pytorch_lora_weights.bin")


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
        return outline_of(self.state.layers, name)


@contextmanager
def open_file(path: Source) -> Iterator[AdapterFile]:
    """Open an adapter file for the time of a block, without knowing its family.

    It is a safetensors file of any layout, PEFT's or Diffusers' folder with one, or tensors in
    memory. What lies beside the factors is not read (`AdapterFile.unread`), and a scale that the
    file does not tell is taken as 1 (`AdapterFile.assumed`).

    Raises:
        AdapterFileError: When it is not a readable adapter file; the message names file and key.
    """
    weights, config = _find(path)
    with open_tensors(weights) as file:
        is_own = config is not None and config.parent == path
        yield read_content(file, partial(_config, path, file, config), always=is_own)


def read_file(path: Source) -> AdapterFile:
    """Read a whole file of an unknown family; `AdapterFileError` also for NaN or infinity."""
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
        extras: Whether weight patches are read, and a text encoder's layers where the family has
            one that is trained.

    Raises:
        AdapterFileError: When it is not an adapter file, a key is unknown, or the layers are not
            the family's; the message names the key.
    """
    with open_file(path) as found:
        file = with_text_layers(found, key_map) if extras else found
        if not tolerant:
            refuse_unread(file)
            _refuse_assumed(file)
        layers = map_layers(file, key_map, others or {})
        differences = map_patches(file, key_map) if extras else {}
        settings = _saved_settings(file.metadata)
        yield OpenAdapter(file, AdapterState(file.kind, layers, settings, differences))


def with_text_layers(file: AdapterFile, key_map: KeyMap) -> AdapterFile:
    """The same file with text encoders' layers among the others, where a family reads them.

    Raises:
        AdapterFileError: When they are not whole.
    """
    read = {key for key, encoder in file.texts.items() if encoder in key_map.text_encoders}
    if not read:
        return file
    texts, others = file.text_layers(read), file.layers

    def of(name: str) -> LazyMapping[LayerState]:
        return texts if name in texts else others

    layers = LazyMapping(
        (*others, *texts), lambda name: of(name)[name], lambda name: of(name).outline(name)
    )
    unread = {key: what for key, what in file.unread.items() if key not in read}
    left = {key: encoder for key, encoder in file.texts.items() if key not in read}
    return replace(file, layers=layers, unread=unread, texts=left)


def of_denoiser(state: AdapterState) -> AdapterState:
    """The same adapter without layers of a text encoder; no value is read."""
    names = [name for name in state.layers if not is_text_layer(name)]
    if len(names) == len(state.layers):
        return state
    layers, outline = state.layers, partial(outline_of, state.layers)
    return replace(state, layers=LazyMapping(names, layers.__getitem__, outline))


def refuse_unread(file: AdapterFile) -> None:
    """Refuse a file that has more than this trainer reads, by `AdapterFileError` that says what."""
    if file.unread:
        raise AdapterFileError(
            f"{file.path}: {kinds_in_words(count_kinds(file.unread))}",
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
    """Read an adapter file of any layout as a whole; arguments and errors as `open_adapter`.

    The adapter is in the trainer's naming, in float32. An alpha that is absent or 0 means rank,
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
    """The files that make an adapter: the weights and, with PEFT's names, the one with its scale.

    One or two; those that are not there are not looked for.

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
        return (weights, config) if has_peft_names(file) else (weights,)


def _saved_settings(metadata: Mapping[str, str]) -> Mapping[str, Any]:
    """The adapter's settings as this trainer wrote them into a header; empty for other files."""
    settings = own_facts(metadata).get("settings")
    adapter = settings.get("adapter") if isinstance(settings, dict) else None
    return adapter if isinstance(adapter, dict) else {}


def _find(path: Source) -> tuple[Source, Path | None]:
    """The weights, and where PEFT's configuration would be."""
    if isinstance(path, HeldTensors | FilePart):
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
    if own is not None or not has_peft_names(file):
        return own
    if config is not None and config.is_file():
        return read_config(config)
    return None


def map_layers(
    file: AdapterFile, key_map: KeyMap, others: Mapping[str, KeyMap]
) -> LazyMapping[LayerState]:
    """Find the layers of a family that a file's layers are, under the trainer's names.

    Each look-up reads one. A fused layer is kept for as long as its parts are asked for in a row,
    and no longer.

    Raises:
        AdapterFileError: When a layer is not the family's, two names mean the same layer, or a
            fused layer has no parts of its kind; it names one of the other families that has them.
    """
    sources: dict[str, LayerRows] = {}
    taken: dict[str, str] = {}
    for name in file.layers:
        place = match_layer(name, key_map)
        if place is None:
            raise _no_layer(file, name, others)
        own = _sources(file, name, place, key_map)
        # An undivided layer has all of its modules.
        modules = [module for module, _ in place.modules] if place.native in own else own
        for module in modules:
            if module in taken:
                raise _twice(file, name, module, taken[module])
            taken[module] = name
        sources |= own
    return _joined(file, _mapped(file, sources), key_map)


def _mapped(file: AdapterFile, sources: Mapping[str, LayerRows]) -> LazyMapping[LayerState]:
    fused: dict[str, LayerState] = {}

    def read(module: str) -> LayerState:
        source = sources[module]
        if source.name not in fused:
            fused.clear()  # before the next one is read
            layer = file.layers[source.name]
            if source.cut.is_whole:
                return layer
            fused[source.name] = layer
        return slice_layer(file.kind, fused[source.name], source.cut)

    def outline(module: str) -> LayerState:
        source = sources[module]
        return slice_layer(file.kind, file.layers.outline(source.name), source.cut)

    return LazyMapping(sources, read, outline)


def _joined(
    file: AdapterFile, layers: LazyMapping[LayerState], key_map: KeyMap
) -> LazyMapping[LayerState]:
    """The same with layers that are trained whole in the place of parts that a file has of them.

    Parts that no factors hold together stay as they are.

    Raises:
        AdapterError: When parts of a layer do not fit each other.
    """
    parts = _parts_of_whole(layers, key_map)
    fused: dict[str, FusedLayer] = {}
    for native, names in parts.items():
        outlines = {name: layers.outline(name) for name in names}
        made = fused_layer(native, file.kind, key_map.parts(native), outlines)
        plain = not any(DORA_SCALE in each.tensors for each in outlines.values())
        if native in layers:
            raise _twice(file, native, native, names[0])
        if plain and is_exact(made, outlines):
            fused[native] = made
    if not fused:
        return layers
    taken = {name for native in fused for name in parts[native]}

    def read(name: str) -> LayerState:
        if name not in fused:
            return layers[name]
        return fuse_exactly(fused[name], {each: layers[each] for each in parts[name]})

    def outline(name: str) -> LayerState:
        if name not in fused:
            return layers.outline(name)
        return fuse_exactly(fused[name], {each: layers.outline(each) for each in parts[name]})

    return LazyMapping([*(each for each in layers if each not in taken), *fused], read, outline)


def _parts_of_whole(layers: Iterable[str], key_map: KeyMap) -> dict[str, list[str]]:
    """The layers that are trained whole of which a file has parts, to these."""
    parts: dict[str, list[str]] = {}
    for name in layers:
        key = key_map.to_native(name)
        if key is not None and key.part and key_map.to_module(key.name) == key.name:
            parts.setdefault(key.name, []).append(name)
    return parts


def _twice(file: AdapterFile, name: str, layer: str, taken: str) -> AdapterFileError:
    return AdapterFileError(
        f"{file.path}: {name!r} and another key both mean the layer {layer!r} ({taken!r})",
        "one set of factors for each layer",
        "Keep the set that ComfyUI loads (inspect --prove names the other), or make a "
        "file of each and add them up: adapter-trainer combine.",
    )


def _sources(
    file: AdapterFile, name: str, place: LayerMatch, key_map: KeyMap
) -> dict[str, LayerRows]:
    """The modules that a layer of a file is; itself by ComfyUI's name where it stays undivided."""
    outline = file.layers.outline(name)
    cuts = [cut for _, cut in place.modules]
    found: dict[str, LayerRows] = {}
    if place.native is not None and len(cuts) > 1 and key_map.is_fused_only(place.native):
        return {place.native: LayerRows(name, WHOLE)}
    try:
        owned = owned_columns(file.kind, cuts, outline.tensors, partial(file.rows, name))
        for (module, cut), columns in zip(place.modules, owned, strict=True):
            if columns is not None:
                own = replace(cut, columns=columns)
                slice_layer(file.kind, outline, own)  # refuses what cannot be read
                found[module] = LayerRows(name, own)
    except InexactSliceError as error:
        sizes = matrix_sizes(file.kind, outline)
        if place.native is not None and not sizes[0] % cuts[0].total:
            return {place.native: LayerRows(name, WHOLE)}
        modules = ", ".join(module for module, _ in place.modules)
        raise AdapterFileError(
            f"{file.path}: {name} ({file.kind}) is one layer in the file and {modules} "
            f"here, and cannot be divided: {error}",
            "factors of the sizes that this family's layers have, and a slice whose parts end "
            "between the blocks of a LoKr's first factor, without DoRA on the input axis",
            "Check that the file is for this family. ComfyUI loads a slice as it is; the program "
            "that made it can make a LoRA of it.",
        ) from error
    return found


def _no_layer(file: AdapterFile, name: str, others: Mapping[str, KeyMap]) -> AdapterFileError:
    fitting = matching_families(file.layers, others)
    return AdapterFileError(
        f"{file.path}: {name!r} is not a layer of this family",
        "layers of the chosen family",
        f"The file's layers are those of {' or '.join(fitting)}; choose that family."
        if fitting
        else "Check that the file is for this family.",
    )
