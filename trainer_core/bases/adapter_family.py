"""Tells which model an adapter file is for, from its header alone, also where it is not ours.

Names of layers are not enough: other models have blocks of the same names, and files of theirs
would become adapters that do nothing or harm. So the sizes of the layers and the numbers of the
blocks are held against the published base, and a file that is another model's is told its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..adapter_files.factors.fuse_layers import matrix_sizes
from ..adapter_files.factors.outlines import outline_of
from ..adapter_files.metadata import own_facts
from ..adapter_files.names.key_map import NATIVE_PREFIX, KeyMap
from ..adapter_files.names.layer_match import (
    is_native,
    match_layer,
    native_of_patch,
    unmatched_layers,
)
from ..adapter_files.names.video_model_names import VIDEO_MODELS
from ..adapter_files.read.read_adapter import AdapterFile, adapter_weights, open_adapter, open_file
from ..adapter_files.verify.load_proof import adapter_shapes
from ..errors import AdapterFileError
from ..families.graph_model_denoiser import GRAPH_MODEL
from ..families.graph_model_family import named_family, video_family
from ..families.registry import FAMILIES, get_family
from ..tensors.safetensors_reader import Source, open_tensors
from .base_weights import base_shapes, known_sizes
from .header_layers import (
    fitting_models,
    header_hint,
    layer_inputs,
    nearest_models,
    own_families,
    titles,
)

if TYPE_CHECKING:
    from ..families.family import Family
    from ..families.published_sizes import PublishedSizes, Size
    from .adapters_of_other_models import Architecture
    from .base_weights import BaseWeights


def adapter_family(path: Source, wanted: str | None = None, *, any_size: bool = False) -> Family:
    """Find the family of an adapter: a file, PEFT's folder, or tensors in memory.

    Args:
        wanted: The family that the user named.
        any_size: Whether layers may have other sizes than those of the published base and of the
            embedded one, because nothing depends on them.

    Raises:
        AdapterFileError: When it is not an adapter file, is another model's, fits no family or
            several and its header does not say which, or has other sizes.
        BaseModelError: When there is no family of the wanted name.
    """
    layers, metadata = _look(path)
    if wanted is None and _family_in_header(metadata) == GRAPH_MODEL:
        return _of_graph(path, metadata)
    if wanted is not None and wanted in VIDEO_MODELS and wanted not in FAMILIES:
        return video_family(wanted)
    if wanted is None or wanted in VIDEO_MODELS:
        video = _of_videos(path, layers, metadata, wanted)
        if video is not None:
            return video
    families = FAMILIES if wanted is None else {wanted: get_family(wanted)}
    return _published(path, families, layers, metadata, searched=wanted is None, any_size=any_size)


def _published(
    path: Source,
    families: Mapping[str, Family],
    layers: Mapping[str, int | None],
    metadata: Mapping[str, str],
    *,
    searched: bool,
    any_size: bool,
) -> Family:
    """Find the family among those that may be meant: all where `searched`, else a named one."""
    foreign, hint = fitting_models(layers), header_hint(metadata)
    comparison = _compare(path, families, layers, foreign)
    fits = comparison.named_fits()
    written_for = _family_in_header(metadata)
    if written_for in fits:
        return FAMILIES[written_for]  # its base was known where the file was written
    fits = _without_twins(fits, hint)
    found = _best_fits(fits, comparison.text_encoders)
    if searched:
        found = _chosen(path, found, foreign, layers=layers, names=comparison.names, hint=hint)
    if len(found) == 1:
        return FAMILIES[found[0]]
    if found:
        raise _several(path, found, foreign)
    models = fitting_models(layers, by_size=True) if fits else foreign or nearest_models(layers)
    if models:
        raise _foreign(path, models, layers, named=[*fits])
    if not fits:
        raise _no_family(path, comparison)
    native = [n for n in fits if _is_native(comparison.names, FAMILIES[n].layers.key_map)]
    nearest = (native or [*fits])[0]
    if not any_size:
        raise _other_size(path, FAMILIES[nearest], fits[nearest].odd[0], comparison.others)
    if len(fits) > 1 and not native:
        raise _several(path, [*fits], ())
    return FAMILIES[nearest]


class _Comparison(NamedTuple):
    """An adapter file beside the families.

    Attributes:
        names: The file's layers, and what else it changes.
        text_encoders: The text encoders that it changes.
        unmatched: Each family to the names that it lacks.
        fits: How the file fits the families that may be meant and lack no name; all that may be
            meant where each lacks some.
        others: The families that it fits without being meant, where it fits none that is.
    """

    names: list[str]
    text_encoders: set[str]
    unmatched: Mapping[str, list[str]]
    fits: Mapping[str, Fit]
    others: list[str]

    def named_fits(self) -> dict[str, Fit]:
        """The fits of families that have every name."""
        return {name: fit for name, fit in self.fits.items() if not self.unmatched[name]}


def _compare(
    path: Source,
    families: Mapping[str, Family],
    layers: Mapping[str, int | None],
    foreign: Sequence[Architecture],
) -> _Comparison:
    """Compare a file with the families that may be meant, and with all where it fits none.

    Raises:
        AdapterFileError: When the file cannot be read, or is for a model that is no family.
    """
    try:
        with open_file(path) as file:
            unmatched = {
                name: unmatched_layers(file.layers, file.extras, family.layers.key_map)
                for name, family in FAMILIES.items()
            }
            complete = [name for name in families if not unmatched[name]]
            fits = {name: nearest_base(file, FAMILIES[name]) for name in (complete or [*families])}
            is_fitted = complete and not all(fit.odd for fit in fits.values())
            others = [
                name
                for name, family in FAMILIES.items()
                if not is_fitted and name not in families and not unmatched[name]
                if not nearest_base(file, family).odd
            ]
            names, text_encoders = [*file.layers, *file.extras], {*file.texts.values()}
    except AdapterFileError as error:
        # Why it cannot be read is of no interest in a file that is not for here at all.
        models = () if own_families(layers) else foreign or nearest_models(layers)
        raise _foreign(path, models, layers) if models else error from error
    return _Comparison(names, text_encoders, unmatched, fits=fits, others=others)


def _without_twins(fits: Mapping[str, Fit], hint: str) -> dict[str, Fit]:
    """Leave out the families whose adapters are taken for those of another one that fits.

    They stay where the header speaks for them, or the other one has other sizes.
    """

    def stays(name: str) -> bool:
        files = FAMILIES[name].files
        twin = fits.get(files.twin)
        return (
            twin is None
            or re.search(files.header_hint, hint) is not None
            or (bool(twin.odd) and not fits[name].odd)
        )

    return {name: fit for name, fit in fits.items() if stays(name)}


def _best_fits(fits: Mapping[str, Fit], text_encoders: set[str]) -> list[str]:
    """Of the families whose sizes fit, those that fit in patches and text encoders too, if any."""
    found = [name for name, fit in fits.items() if not fit.odd]
    found = [name for name in found if not fits[name].patches] or found
    return [
        name
        for name in found
        if text_encoders <= FAMILIES[name].layers.key_map.text_encoders.keys()
    ] or found


def _of_videos(
    path: Source,
    layers: Mapping[str, int | None],
    metadata: Mapping[str, str],
    wanted: str | None = None,
) -> Family | None:
    """The model of videos that a file is for; None where it is none, or may be one of a family.

    Of a model that is a family too it is the family, where that has the file's layers.

    Raises:
        AdapterFileError: When it has layers without a known name in ComfyUI.
    """
    found = {
        name: each
        for each in fitting_models(layers)
        for name, video in VIDEO_MODELS.items()
        if each.title in video.titles
    }
    hint = header_hint(metadata)
    hinted = [name for name, each in found.items() if re.search(each.hint, hint)]
    names = hinted or ([] if own_families(layers) else [*found])
    names = [wanted] if wanted is not None else names
    if len(names) != 1:
        return None
    family, own = video_family(names[0]), FAMILIES.get(names[0])
    try:
        with open_file(path) as file:
            odd = unmatched_layers(file.layers, file.extras, family.layers.key_map)
            if own is not None and not unmatched_layers(
                file.layers, file.extras, own.layers.key_map
            ):
                family = family if nearest_base(file, own).odd else own
    except AdapterFileError:
        return None  # told where it is read
    if odd and wanted is not None:
        return None
    if odd:
        raise AdapterFileError(
            f"{path}: an adapter for {found[names[0]].title}, of which ComfyUI's names are not "
            f"known for {odd[0]!r} ({len(odd)} such layers)",
            "layers of the model's blocks and embedders, in any trainer's names",
            "Load it as it is; Check Adapter names what ComfyUI does not load of it.",
        )
    return family


def _of_graph(path: Source, metadata: Mapping[str, str]) -> Family:
    """The names of a model that was on a graph, as one of its adapters has them."""
    with open_file(path) as file:
        names = [*file.layers, *file.extras]
    prefix = NATIVE_PREFIX
    native = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return named_family(metadata.get("modelspec.architecture", "").partition("/")[0], native)


def require_base(path: Source, base: BaseWeights) -> None:
    """Refuse an adapter whose layers are not those of a base, by name where it is another model's.

    The sizes of the opened base count instead of the published ones. The file may be PEFT's folder,
    or tensors in memory.

    Raises:
        AdapterFileError: When it is not an adapter file, or does not fit.
    """
    shapes, key_map = base_shapes(base), base.family.layers.key_map
    try:
        with open_adapter(path, key_map) as adapter:
            wanted = adapter_shapes(adapter.state, key_map)
        for name, shape in wanted.items():
            found = shapes.get(name)
            # Not every layer has a bias, and no factors are for one.
            if _same(shape, found) or (found is None and not name.endswith(".weight")):
                continue
            here = "is not in the base" if found is None else f"is {_times(found)} in the base"
            raise AdapterFileError(
                f"{path} has a change of {_times(shape)} for {name}, which {here} {base.path}",
                "an adapter for this base",
                "Name the base that the adapter was trained on.",
            )
    except AdapterFileError:
        adapter_family(path, base.family.name, any_size=True)
        raise


def _times(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def other_models(path: Source, family: Family | None = None) -> str:
    """Name the models, besides a family, that an adapter file could be for as well.

    Empty where there are none, or the header says that it is for the family, which is None where it
    is for none. The file may be PEFT's folder, or tensors in memory.
    """
    layers, metadata = _look(path)
    if family is None:
        return titles(own_families(layers) or fitting_models(layers) or nearest_models(layers))
    hint = header_hint(metadata)
    sure = re.search(family.files.header_hint, hint) or _family_in_header(metadata) == family.name
    return "" if sure else titles((*_twins(path, family), *fitting_models(layers)))


def adapter_families(path: Source) -> list[Family]:
    """The families that have every layer of an adapter file of any method, by names and sizes."""
    return own_families(_look(path)[0])


def _twins(path: Source, family: Family) -> list[Family]:
    """The families whose adapters are taken for those of a family (`BaseFiles.twin`)."""
    twins = [each for each in FAMILIES.values() if each.files.twin == family.name]
    if not twins:
        return []
    with open_file(path) as file:
        return [
            each
            for each in twins
            if not unmatched_layers(file.layers, file.extras, each.layers.key_map)
            and not nearest_base(file, each).odd
        ]


def _look(path: Source) -> tuple[dict[str, int | None], Mapping[str, str]]:
    with open_tensors(adapter_weights(path)) as file:
        return layer_inputs(file.tensors), file.metadata


def _chosen(
    path: Source,
    found: list[str],
    foreign: Sequence[Architecture],
    layers: Mapping[str, int | None],
    names: list[str],
    hint: str,
) -> list[str]:
    """Those of the families that a file fits which its header or its spelling speaks for.

    Raises:
        AdapterFileError: When the header says that it is for another model that it fits.
    """
    hinted = [name for name in found if re.search(FAMILIES[name].files.header_hint, hint)]
    if hinted:
        return hinted
    others = [each for each in foreign if re.search(each.hint, hint)]
    if others:
        raise _foreign(path, others, layers, twins=found)
    # Two families call some layers alike in Diffusers, and only one of them so in ComfyUI.
    return [name for name in found if _is_native(names, FAMILIES[name].layers.key_map)] or found


class Fit(NamedTuple):
    """How a file fits a base.

    Attributes:
        base: What messages call it.
        odd: How the file's layers differ from it.
        patches: How many weight patches have another size, which they may.
        unknown: How many layers are not known of the base, as those for a start frame.
    """

    base: str
    odd: list[str]
    patches: int
    unknown: int


def nearest_base(file: AdapterFile, family: Family) -> Fit:
    """Find the base of a family that a file is for by its sizes, of those that are known."""
    fits = [
        Fit(
            base,
            [f"{each} in {base}" for each in _oddities(file, family, sizes)],
            [*_fitting_patches(file, family, sizes)].count(False),
            _unknown_layers(file, family, sizes),
        )
        for base, sizes in known_sizes(family).items()
    ]
    return min(fits, key=lambda fit: (len(fit.odd), fit.patches, fit.unknown))


def _unknown_layers(file: AdapterFile, family: Family, sizes: PublishedSizes) -> int:
    """How many layers of a file are of the family, and not known of a base."""
    places = (match_layer(name, family.layers.key_map) for name in file.layers)
    modules = ([module for module, _ in place.modules] for place in places if place)
    return sum(_whole_size(each, sizes) is None for each in modules)


def _oddities(file: AdapterFile, family: Family, sizes: PublishedSizes) -> Iterator[str]:
    """How a file's layers differ from those of a base."""
    for name in (*file.layers, *file.extras):
        place = match_layer(name, family.layers.key_map)
        modules = [module for module, _ in place.modules] if place else []
        native = native_of_patch(name, family.layers.key_map) if name in file.extras else None
        for path in (*modules, *([native] if native else [])):
            missing = sizes.lacks_block(path)
            if missing:
                yield f"has the layer {name!r}, and {missing}"
        if name in file.layers and modules:
            rows, columns = matrix_sizes(file.kind, outline_of(file.layers, name))
            known = _whole_size(modules, sizes)
            if known and not _same((rows, columns), known):
                yield f"changes {rows} x {columns} of {name!r}, which is {_times(known)}"


def _fitting_patches(file: AdapterFile, family: Family, sizes: PublishedSizes) -> Iterator[bool]:
    """For each weight patch of an adapted layer, whether it has the size of weight or bias."""
    for name, patches in file.extras.items():
        place = match_layer(name, family.layers.key_map)
        known = _whole_size([module for module, _ in place.modules], sizes) if place else None
        if known:
            yield from (patches.outline(e).shape in (known, known[:1]) for e in patches)


def _whole_size(modules: list[str], sizes: PublishedSizes) -> Size | None:
    """The size of a file's layer; one of several modules has all of their rows."""
    each = [size for module in modules if (size := sizes.of(module))]
    return (sum(rows for rows, _ in each), each[0][1]) if len(each) == len(modules) else None


def _same(shape: Sequence[int], known: Sequence[int] | None) -> bool:
    """Whether shapes are the same; what an adapter does not tell of its weight is 0."""
    return (
        known is not None
        and len(shape) == len(known)
        and all(wanted in (0, found) for wanted, found in zip(shape, known, strict=True))
    )


def _foreign(
    path: Source,
    models: Sequence[Architecture],
    layers: Mapping[str, int | None],
    twins: Sequence[str] = (),
    named: Sequence[str] = (),
) -> AdapterFileError:
    ours = " and ".join(family.title for family in FAMILIES.values())
    why = f"layers such as {next(iter(layers))!r}"
    remedy = f"Load it as it is with a model of {titles(models)}: only adapters for {ours} "
    remedy += "are converted or changed here. Check Adapter names what ComfyUI does not load of it."
    if twins:
        why = "its header says so"
        remedy += (
            f" Its layers have the names and sizes of {FAMILIES[twins[0]].title} too: if the header"
            f" is wrong, say --family {twins[0]}."
        )
    elif named:
        remedy += f" If it was made for a smaller or pruned {FAMILIES[named[0]].title}, name that "
        remedy += "base: --base PATH, or the node's input base."
    return AdapterFileError(
        f"{path}: an adapter for {titles(models)} ({why})", f"an adapter for {ours}", remedy
    )


def _several(
    path: Source, found: Sequence[str], foreign: Sequence[Architecture]
) -> AdapterFileError:
    more = f", and those of {titles(foreign)}" if foreign else ""
    return AdapterFileError(
        f"{path}: its layers fit {' and '.join(found)}: they have the same names and sizes in "
        f"both{more}",
        "an adapter whose layers or header tell its family",
        f"Name the family: {' or '.join(f'--family {name}' for name in found)}, or the node's "
        "input family. Whoever made the file knows it; a wrong one gives a file that does nothing "
        "good.",
    )


def _other_size(
    path: Source, family: Family, oddity: str, others: Sequence[str] = ()
) -> AdapterFileError:
    """``others``: the families that have all of its layers, in their sizes."""
    if others:
        fitting_ones = " or ".join(FAMILIES[name].title for name in others)
        return AdapterFileError(
            f"{path} {oddity}: it is an adapter for {fitting_ones}",
            f"an adapter for {family.title}, as it was said to be",
            f"Say --family {others[0]}, or leave it out.",
        )
    return AdapterFileError(
        f"{path} {oddity}",
        "an adapter for the published base, whose sizes are known",
        f"If it was made for a smaller or pruned {family.title}, name that base: --base PATH, or "
        "the node's input base. Else it is for another model.",
    )


def _no_family(path: Source, comparison: _Comparison) -> AdapterFileError:
    """None of the families that may be meant has every layer; another one may, of any size."""
    unmatched, names = comparison.unmatched, comparison.names
    distances = {n: len(unmatched[n]) + len(fit.odd) for n, fit in comparison.fits.items()}
    nearest = min(distances, key=distances.__getitem__)
    title = FAMILIES[nearest].title
    complete = [name for name, missing in unmatched.items() if not missing]
    if complete:
        return AdapterFileError(
            f"{path}: {unmatched[nearest][0]!r} is not a layer of {title}, but of "
            + " and ".join(FAMILIES[name].title for name in complete),
            f"an adapter for {title}, as it was said to be",
            f"Say --family {complete[0]}, or leave it out.",
        )
    if distances[nearest] < len(names):
        return AdapterFileError(
            f"{path}: {unmatched[nearest][0]!r} is not a layer of {title}, which others of its "
            "layers fit",
            "an adapter of one family, whose every layer the family has",
            "Use it as it is with the program that made it. What ComfyUI makes of it: "
            f"adapter-trainer inspect FILE --prove --family {nearest}.",
        )
    return AdapterFileError(
        f"{path}: an adapter with layers such as {names[0]!r}, of no model that is known here",
        "an adapter for " + " or ".join(family.title for family in FAMILIES.values()),
        "Load it as it is with the program and the model that it was made for. Only adapters of "
        "these families are converted or changed here.",
    )


def _is_native(names: Iterable[str], key_map: KeyMap) -> bool:
    """Whether all names that claim to be ComfyUI's are names of the family in ComfyUI."""
    claimed = [n.removeprefix(NATIVE_PREFIX) for n in names if n.startswith(NATIVE_PREFIX)]
    return bool(claimed) and all(is_native(name, key_map) for name in claimed)


def _family_in_header(metadata: Mapping[str, str]) -> str | None:
    family = own_facts(metadata).get("family")
    return family if isinstance(family, str) else None
