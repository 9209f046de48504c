"""The scale of an adapter whose file has no alphas: PEFT's configuration.

PEFT keeps it in ``adapter_config.json`` beside the weights, Diffusers as JSON in the file's header.
Only numbers, switches and patterns are read; what names a model, a file or a class is not looked
at, so that nothing is followed.

Source: PEFT 0.21, ``peft/tuners`` (LoRA, LoHa and LoKr) and ``get_pattern_key``; Diffusers 0.42,
``lora_adapter_metadata``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ...adapters.kinds.registry import FILE_RULES, LOW_RANK, layer_scale
from ...config.patterns import LONGEST_NAME, NO_EXPRESSION, pattern_mistake
from ...errors import AdapterFileError
from ...filesystem.text_files import parse_json, read_text
from ...types import LayerState
from ..names.key_layouts import KIND_TITLES
from ..names.key_map import DIFFUSERS_PREFIX, UNET_PREFIX

WEIGHTS_NAME, CONFIG_NAME = "adapter_model.safetensors", "adapter_config.json"
"""The two files of a PEFT folder."""

HEADER_KEY = "lora_adapter_metadata"
"""The header key under which Diffusers keeps the configuration."""

_LARGEST = 4 * 1024 * 1024
_LARGEST_RANK = 2**31
_TYPES = {name.upper(): name for name in FILE_RULES}
_ALPHA = FILE_RULES[LOW_RANK].peft_alpha
"""PEFT's name of alpha, where the kind is not said or has no other."""

_PLAIN_STARTS = {"gaussian", "eva", "orthogonal", "lycoris"}
"""Initializations that leave the base as it is; with others the file belongs to a changed base."""
_UNREAD = (
    "alora_invocation_tokens",
    "arrow_config",
    "fan_in_fan_out",
    "kasa_config",
    "layer_replication",
    "lora_bias",
    "monteclora_config",
    "trainable_token_indices",
    "use_bdlora",
    "use_qalora",
    "velora_config",
)
"""Switches that change what a file's factors mean, or what else it holds."""

_LITERAL = re.compile(r"(?P<start>\^?)(?P<name>(?:[\w-]|\\?\.|\\[-_])+)\$?")
_LONGEST = 256
_SAME = 1e-4
"""How far an alpha in 16 bits may be from the configuration's scale, relatively."""

# Letters, escapes of a class or a sign, sets, groups and alternatives; no group that repeats.
_HARMLESS = re.compile(r"(?:[\w.|^$\-]|\\[dw.\-_]|\[[\w\-^]+\]|\((?!\?)|\)(?![*+?{])|[*+?])+")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """What is needed of a configuration.

    Attributes:
        source: Where it was found, for messages.
        kind: Name of the kind; None when it does not say.
        rank: The usual rank.
        alpha: The usual alpha.
        rank_pattern: Pattern to the rank of the layers that it matches.
        alpha_pattern: Pattern to their alpha.
        rslora: Whether the scale is alpha over the square root of the rank.
        dora: Whether it says that there are magnitudes; None when it does not say.
    """

    source: str
    kind: str | None
    rank: int
    alpha: float
    rank_pattern: _Patterns
    alpha_pattern: _Patterns
    rslora: bool
    dora: bool | None

    def rank_of(self, module: str) -> int:
        """The rank of a layer, by its path without prefix."""
        return int(self.rank_pattern.value(module, self.rank))

    def scale(self, module: str) -> float:
        """The number that multiplies a layer's product, always: for whole LoKr factors too."""
        rank, alpha = self.rank_of(module), self.alpha_pattern.value(module, self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank

    def check(self, kind: str, bare: str | None) -> None:
        """Refuse a configuration that was not saved with factors of a kind.

        Raises:
            AdapterFileError: When it says something else of them, or DoRA where ``bare`` has none.
        """
        if self.kind not in (None, kind):
            raise AdapterFileError(
                f"{self.source}: it is of a {self.kind}, and the factors are of a {kind}",
                "the configuration that was saved with the factors",
                "Restore the file that was saved with the adapter.",
            )
        if self.dora and bare is not None:
            raise AdapterFileError(
                f"{self.source}: use_dora is set, and {bare} has no magnitude",
                "a lora_magnitude_vector for every layer",
                "Export the adapter again.",
            )

    def scaled(
        self, module: str, kind: str, outline: LayerState, *, own: bool
    ) -> tuple[LayerState, float | None]:
        """Give a layer, by its path without prefix, the scale that the configuration says.

        The outline has the alpha that the file says, or with `own` false none. Gives it with the
        right alpha, and what its delta is multiplied by besides, or None.

        Raises:
            AdapterFileError: When the file says another rank or scale.
        """
        scale, rank = self.scale(module), self.rank_of(module)
        whole = FILE_RULES[kind].is_whole(outline.tensors)
        if not whole and rank != outline.rank:
            raise AdapterFileError(
                f"{self.source}: it gives {module} the rank {rank}, and its factors have "
                f"{outline.rank}",
                "the configuration that was saved with the factors",
                "Restore the file that was saved with the adapter.",
            )
        if own:
            own_scale = layer_scale(kind, outline)
            if abs(own_scale - scale) > _SAME * abs(own_scale):
                raise AdapterFileError(
                    f"{self.source}: it gives {module} the scale {scale:g}, and the alpha in the "
                    f"file {own_scale:g}",
                    "one scale for each layer",
                    "Take out what is wrong: the alphas, or the configuration.",
                )
            return outline, None
        if whole:
            # PEFT multiplies whole factors too, for which alpha says nothing elsewhere.
            return replace(outline, alpha=float(rank), rank=rank), scale
        return replace(outline, alpha=scale * outline.rank), None


class _Patterns:
    """PEFT's patterns: the first counts that matches a path, or what stands behind a dot in it."""

    def __init__(self, source: str, numbers: Mapping[str, float]) -> None:
        self._values = list(numbers.values())
        self._starts: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        self._others: list[tuple[int, re.Pattern[str]]] = []
        for place, text in enumerate(numbers):
            literal = _LITERAL.fullmatch(text)
            if literal is not None:
                names = self._starts if literal["start"] else self._ends
                names.setdefault(literal["name"].replace("\\", ""), place)
            else:
                self._others.append((place, _compiled(source, text)))

    def value(self, module: str, usual: float) -> float:
        """What the first pattern gives that matches; the usual value without one."""
        pieces = module.split(".")
        ends = (".".join(pieces[index:]) for index in range(len(pieces)))
        found = [self._ends[end] for end in ends if end in self._ends]
        found += [self._starts[module]] if module in self._starts else []
        if len(module) <= LONGEST_NAME:
            found += [place for place, each in self._others if each.fullmatch(module)]
        return self._values[min(found)] if found else usual


def read_config(path: Path) -> PeftConfig:
    """Read an ``adapter_config.json``.

    Raises:
        AdapterFileError: When it is not there, too large, no configuration, or of an adapter whose
            factors mean something else.
    """
    text = read_text(path, lambda why: _broken(f"{path} cannot be read", why), _LARGEST)
    try:
        return _config(str(path), parse_json(text, unique=True))
    except ValueError as error:
        raise _broken(str(path), str(error).splitlines()[0][:500]) from error


def header_config(path: Path, metadata: Mapping[str, str]) -> PeftConfig | None:
    """Find the denoiser's configuration in a file's header; None when there is none.

    Diffusers' pipelines put the part's name before each field, its models do not.

    Raises:
        AdapterFileError: As `read_config`.
    """
    text = metadata.get(HEADER_KEY)
    if text is None:
        return None
    source = f"{path}: {HEADER_KEY} in its header"
    try:
        if len(text) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST} bytes")
        values = parse_json(text, unique=True)
        if not isinstance(values, dict):
            raise ValueError("it is not an object")
        prefixes = (DIFFUSERS_PREFIX, UNET_PREFIX)
        own = {k.partition(".")[2]: v for k, v in values.items() if k.startswith(prefixes)}
        if not own and "r" not in values:
            return None
        return _config(source, own or values)
    except ValueError as error:
        raise _broken(source, str(error).splitlines()[0][:500]) from error


def _config(source: str, values: Any) -> PeftConfig:
    if not isinstance(values, dict):
        raise ValueError("it is not an object")
    kind = _kind(values.get("peft_type"))
    _refuse_special(source, values)
    alpha_name = "alpha" if kind != LOW_RANK and "alpha" in values else _ALPHA
    return PeftConfig(
        source,
        kind,
        _rank("r", values.get("r")),
        alpha=_number(alpha_name, values.get(alpha_name)),
        rank_pattern=_patterns(source, values, "rank_pattern"),
        alpha_pattern=_patterns(source, values, "alpha_pattern"),
        rslora=_switch(values, "use_rslora") or False,
        dora=_switch(values, "use_dora"),
    )


def _kind(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value.upper() not in _TYPES:
        raise ValueError(f"peft_type is {str(value)[:100]}, and only {', '.join(_TYPES)} are read")
    return _TYPES[value.upper()]


def _refuse_special(source: str, values: Mapping[str, Any]) -> None:
    for name in _UNREAD:
        if values.get(name):
            raise AdapterFileError(
                f"{source}: {name} is set",
                f"a plain {KIND_TITLES}, or a LoRA with DoRA",
                "Merge the adapter with PEFT, and extract one from the result.",
            )
    for name in ("init_lora_weights", "init_weights"):
        start = values.get(name, True)
        if isinstance(start, str) and start not in _PLAIN_STARTS:
            raise AdapterFileError(
                f"{source}: {name} is {start[:100]}, so that the factors belong to a base that "
                "PEFT changed at the start",
                "factors for the base as it is published",
                "Save it with PEFT's path_initial_model_for_weight_conversion.",
            )


def _rank(name: str, value: Any) -> int:
    if type(value) is not int or not 1 <= value < _LARGEST_RANK:
        raise ValueError(f"{name} is {str(value)[:100]}, not a rank of 1 or more")
    return value


def _number(name: str, value: Any) -> float:
    if type(value) not in (int, float) or not abs(value) < _LARGEST_RANK or not value:
        raise ValueError(f"{name} is {str(value)[:100]}, not a finite number other than 0")
    return float(value)


def _switch(values: Mapping[str, Any], name: str) -> bool | None:
    value = values.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} is {str(value)[:100]}, neither true nor false")
    return value


def _patterns(source: str, values: Mapping[str, Any], name: str) -> _Patterns:
    table = values.get(name)
    if table is None:
        table = {}
    if not isinstance(table, dict):
        raise ValueError(f"{name} is not an object")
    check = _rank if name == "rank_pattern" else _number
    return _Patterns(source, {text: check(f"{name}[{text!r}]", v) for text, v in table.items()})


def _compiled(source: str, text: str) -> re.Pattern[str]:
    """Compile a pattern as PEFT does, if no text can make it run for long."""
    harmless = len(text) <= _LONGEST and _HARMLESS.fullmatch(text) is not None
    whole = rf"(.*\.)?({text})$"
    mistake = pattern_mistake(whole)
    if harmless and NO_EXPRESSION in mistake:
        raise ValueError(f"the pattern {text!r} is not an expression ({mistake})")
    if not harmless or mistake:
        raise AdapterFileError(
            f"{source}: the pattern {text[:_LONGEST]!r}",
            "names of layers, or expressions with few repetitions and none of a group",
            "Write the layers' names out.",
        )
    return re.compile(whole)


def _broken(source: str, reason: str) -> AdapterFileError:
    return AdapterFileError(
        f"{source}: {reason}",
        "the configuration that PEFT or Diffusers wrote",
        "Export the adapter again, or restore the file that was saved with it.",
    )
