"""Which layers are adapted: presets, patterns and explicit modules, each layer once."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from ..config.patterns import compile_pattern
from ..errors import AdapterError
from .kernels.convolution import CONVOLUTIONS, is_plain_convolution

_SUGGESTED = 5

FALLBACK_PRESETS: Mapping[str, Sequence[str]] = {"default": (".*",), "all_linear": (".*",)}
"""Presets of a module of which nothing is known: every Linear."""


@dataclass(frozen=True)
class Layer:
    """A layer that an adapter could be put on.

    Attributes:
        paths: Every dotted path that leads to it, in the module's order; the first is its name.
        module: The layer itself.
        places: Every (owner, attribute) that holds it.
    """

    paths: tuple[str, ...]
    module: nn.Module
    places: tuple[tuple[nn.Module, str], ...]


@dataclass(frozen=True)
class Selection:
    """The outcome of targeting.

    Attributes:
        layers: Name in the adapter's state to layer, sorted by name.
        matched_again: The layer of each match beyond its first: several patterns, or several paths
            to the same module.
        excluded_unused: Layers of a preset that were left out because their output is unused.
    """

    layers: Mapping[str, Layer]
    matched_again: tuple[str, ...]
    excluded_unused: tuple[str, ...]


class LayerIndex:
    """Every layer of a module that could carry an adapter, and pattern matching over them.

    Args:
        module: The module that is searched; the module itself is not a candidate.
    """

    def __init__(self, module: nn.Module) -> None:
        self.root = module
        self.layers = _find_layers(module)
        self.by_path = {path: layer for layer in self.layers for path in layer.paths}

    def match(self, pattern: str, setting: str) -> list[str]:
        """Paths of the layers that a regular expression names in full; messages name the setting.

        Raises:
            AdapterError: When the pattern is not a regular expression or matches no layer.
        """
        expression = compile_pattern(pattern, setting)
        found = [path for path in self.by_path if expression.fullmatch(path)]
        if found:
            return found
        others = {
            type(module).__name__
            for path, module in self.root.named_modules()
            if path and expression.fullmatch(path)
        }
        matched = f"; it matches only {', '.join(sorted(others))}" if others else ""
        raise AdapterError(
            f"{setting}: the pattern {pattern!r} matches no layer{matched}",
            "a regular expression that matches the whole dotted name of a Linear or convolution",
            f"Remove it or correct it. Nearest names: {nearest_layers(pattern, self.by_path)}.",
        )


def select(
    index: LayerIndex,
    targets: str | Sequence[str],
    presets: Mapping[str, Sequence[str]],
    unused: Sequence[str],
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    convolutional: Collection[str] = (),
) -> Selection:
    """Choose the layers by preset or patterns: (targets - unused - exclude) + include.

    Args:
        targets: A preset's name or a list of patterns.
        unused: Patterns of layers whose output is unused; removed from a preset's matches only.
        include: Patterns of layers to adapt as well; they win over `exclude` and `unused`.
        exclude: Patterns of layers to leave out.
        convolutional: The presets that mean convolutions too; all others mean Linear layers.

    Raises:
        AdapterError: For an unknown preset, a bad or dead pattern, a convolution that does more
            than torch's, or no layer.
    """
    matches: list[str] = []
    dropped: list[str] = []
    if isinstance(targets, str):
        matches = _preset_matches(index, targets, presets, windows=targets in convolutional)
        idle = [compile_pattern(pattern, "the family's unused layers") for pattern in unused]
        dropped = [p for p in matches if any(pattern.fullmatch(p) for pattern in idle)]
        matches = [path for path in matches if path not in set(dropped)]
    else:
        for pattern in targets:
            matches += index.match(pattern, "adapter.targets")
    removed = {path for pattern in exclude for path in index.match(pattern, "adapter.exclude")}
    removed = {path for name in removed for path in index.by_path[name].paths}
    wanted = [path for path in matches if path not in removed]
    for pattern in include:
        wanted += index.match(pattern, "adapter.include")
    layers: dict[int, Layer] = {}
    again: list[str] = []
    for layer in (index.by_path[path] for path in wanted):
        if id(layer.module) in layers:
            again.append(layer.paths[0])
        layers[id(layer.module)] = layer
    _check_selected(index, layers.values())
    named = {layer.paths[0]: layer for layer in layers.values()}
    return Selection(
        layers={name: named[name] for name in sorted(named)},
        matched_again=tuple(again),
        excluded_unused=tuple(sorted({path for path in dropped if path not in set(wanted)})),
    )


def select_modules(index: LayerIndex, targets: Mapping[str, nn.Module]) -> Selection:
    """Choose the layers that are given as modules; their names are the mapping's.

    Raises:
        AdapterError: When a module is not a layer inside the module, or there is none.
    """
    by_module = {id(layer.module): layer for layer in index.layers}
    layers: dict[str, Layer] = {}
    again: list[str] = []
    for name in sorted(targets):
        layer = by_module.get(id(targets[name]))
        if layer is None:
            raise AdapterError(
                f"target {name!r} ({type(targets[name]).__name__}) is not a layer of the module",
                "modules that module.named_modules() yields, below the module itself",
                "Pass layers of the module that is adapted.",
            )
        if any(chosen is layer for chosen in layers.values()):
            again.append(name)
        else:
            layers[name] = layer
    _check_selected(index, layers.values())
    return Selection(layers, tuple(again), ())


def _find_layers(module: nn.Module) -> tuple[Layer, ...]:
    paths: dict[int, list[str]] = {}
    places: dict[int, dict[tuple[int, str], tuple[nn.Module, str]]] = {}
    modules: dict[int, nn.Module] = {}
    named = dict(module.named_modules(remove_duplicate=False))
    for path, layer in named.items():
        owner_path, _, attribute = path.rpartition(".")
        if not path or not isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
            continue
        owner = named[owner_path]
        if isinstance(owner, nn.MultiheadAttention):
            # It reads its projection's weight and never calls it: an adapter would do nothing.
            continue
        modules[id(layer)] = layer
        paths.setdefault(id(layer), []).append(path)
        places.setdefault(id(layer), {})[id(owner), attribute] = (owner, attribute)
    return tuple(
        Layer(tuple(paths[key]), layer, tuple(places[key].values()))
        for key, layer in modules.items()
    )


def _preset_matches(
    index: LayerIndex, name: str, presets: Mapping[str, Sequence[str]], *, windows: bool
) -> list[str]:
    if name not in presets:
        raise AdapterError(
            f"adapter.targets: {name!r} is not a preset",
            f"one of {', '.join(presets)}, or a list of regular expressions",
            f"Nearest: {nearest_layers(name, presets)}. A single expression is written as a list; "
            "in a node: with a dot or brackets in it, such as (name).",
        )
    expressions = [compile_pattern(p, f"preset {name!r}") for p in presets[name]]
    # Most presets mean Linear layers; what else their patterns reach is not asked for.
    meant = (nn.Linear, *CONVOLUTIONS) if windows else (nn.Linear,)
    paths = [p for p, layer in index.by_path.items() if isinstance(layer.module, meant)]
    return [path for pattern in expressions for path in paths if pattern.fullmatch(path)]


def _check_selected(index: LayerIndex, layers: Iterable[Layer]) -> None:
    chosen = list(layers)
    if not chosen:
        raise AdapterError(
            f"adapter.targets: no layer is selected; the module has {class_counts(index.root)}",
            "at least one Linear layer",
            "Change adapter.targets, adapter.include or adapter.exclude. "
            f"Some layers: {nearest_layers('', index.by_path)}.",
        )
    for layer in chosen:
        if not is_plain_convolution(layer.module):
            raise AdapterError(
                f"{layer.paths[0]} is a {type(layer.module).__name__}, which computes more than a "
                "convolution",
                "Linear layers, and convolutions with the forward pass of torch",
                "Leave it out with adapter.exclude, or narrow the pattern that names it.",
            )


def nearest_layers(wanted: str, names: Iterable[str]) -> str:
    """Name what comes closest, one name for each group that differs only in its numbers.

    Regular-expression signs of what was asked for are ignored; where it is empty, the first names.
    Up to five names, or "none" when there are no names at all.
    """
    groups: dict[str, str] = {}
    for name in names:
        groups.setdefault(re.sub(r"\d+", "0", name), name)
    plain = re.sub(r"\d+", "0", re.sub(r"\\d[+*]?", "0", wanted))
    plain = re.sub(r"[^A-Za-z0-9_.]", "", plain.replace(".*", ""))
    found = difflib.get_close_matches(plain, groups, n=_SUGGESTED, cutoff=0.3) if plain else []
    shown = [groups[key] for key in found] or list(groups.values())[:_SUGGESTED]
    return ", ".join(shown) or "none"


def class_counts(module: nn.Module) -> str:
    """Count the classes of a module's parts, the most frequent first."""
    counts = Counter(type(part).__name__ for path, part in module.named_modules() if path)
    return ", ".join(f"{count} {name}" for name, count in counts.most_common(12)) or "no parts"
