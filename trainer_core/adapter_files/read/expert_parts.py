"""Files that hold the adapters of both experts of Wan 2.2, and what each of them has.

Wan 2.2 A14B samples high noise with one model and low noise with another. Programs that train both
at once may put both adapters into one file, whose names say the expert. ComfyUI has a MODEL for
each expert and reads none of these names.

Source: ostris/ai-toolkit at 27a03a91, ``wan22_14b_model.py`` (``transformer_1`` and
``transformer_2``); Diffusers 0.42, ``WanLoraLoaderMixin`` (``transformer`` and ``transformer_2``);
DiffSynth-Studio's ``WanVideoPipeline`` (``dit`` and ``dit2``); the folders of Wan-AI's own
repositories (``high_noise_model`` and ``low_noise_model``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ...errors import AdapterFileError
from ...tensors.safetensors_reader import FilePart, HeldTensors, Source, open_tensors
from ..names.key_layouts import FLAT_PREFIXES, PEFT_PREFIX
from ..names.key_map import NATIVE_PREFIX

HIGH, LOW = "high_noise", "low_noise"
"""What is put behind the name of each expert's file."""

_PIPE = "pipe."
_PREFIXES = "|".join(map(re.escape, (NATIVE_PREFIX, PEFT_PREFIX, _PIPE, *FLAT_PREFIXES)))
_BEFORE = f"(?P<before>(?:{_PREFIXES})?)"
_NAMED = {
    HIGH: re.compile(
        _BEFORE + r"(?:transformer_1|high_noise(?:_model)?)[._](?P<rest>.+)", re.DOTALL
    ),
    LOW: re.compile(
        _BEFORE + r"(?:transformer_2|low_noise(?:_model)?|dit2)[._](?P<rest>.+)", re.DOTALL
    ),
}
_FIRST = re.compile(r"(?:pipe\.)?(?:transformer|dit)\.(?P<rest>.+)", re.DOTALL)
"""The name of the first expert where that of the second is marked alone."""


def experts_of(source: Source) -> dict[str, Source]:
    """Divide a file, or tensors in memory, that holds adapters of experts.

    Expert, `HIGH` or `LOW`, to its adapter under names without the expert; one of them where the
    file names one alone, and none for any other file.

    Raises:
        AdapterFileError: When it is not a safetensors file, or a tensor is of neither expert.
    """
    with open_tensors(source) as file:
        names = expert_names(file.tensors)
        metadata = file.metadata
    if not names:
        return {}
    strange = set(file.tensors).difference(*(each.values() for each in names.values()))
    if strange:
        raise AdapterFileError(
            f"{source}: adapters of experts of Wan 2.2, and {min(strange)!r}, which is of neither "
            f"({len(strange)} such keys)",
            "a file whose every tensor is of one of the two experts",
            "Use it with the program that made it.",
        )
    if isinstance(source, HeldTensors):
        return {
            expert: HeldTensors(
                f"{source} ({expert})", {new: source.tensors[own[new]] for new in own}, metadata
            )
            for expert, own in names.items()
        }
    assert isinstance(source, Path)  # a part names no expert any more
    return {expert: FilePart(source, own, expert) for expert, own in names.items()}


def expert_names(keys: Iterable[str]) -> dict[str, Mapping[str, str]]:
    """Find the experts that keys of a file name: each to keys without its name to the file's."""
    found: dict[str, dict[str, str]] = {}
    others: list[str] = []
    for key in keys:
        for expert, pattern in _NAMED.items():
            if named := pattern.fullmatch(key):
                before = named["before"].removeprefix(_PIPE)
                found.setdefault(expert, {})[before + named["rest"]] = key
                break
        else:
            others.append(key)
    if LOW in found and HIGH not in found:
        for key in others:
            if named := _FIRST.fullmatch(key):
                found.setdefault(HIGH, {})[named["rest"]] = key
    return {expert: found[expert] for expert in (HIGH, LOW) if expert in found}


def refuse_experts(source: object, keys: Iterable[str]) -> None:
    """Refuse a file whose names say experts, by `AdapterFileError`: it is to be divided first."""
    names = expert_names(keys)
    if not names:
        return
    sizes = " and ".join(f"{len(own)} tensors for {expert}" for expert, own in names.items())
    raise AdapterFileError(
        f"{source} holds adapters of experts of Wan 2.2: {sizes}",
        "the adapter of one model, under names that do not say an expert",
        "Divide it: adapter-trainer convert FILE OUT.safetensors --to comfyui, or the node Convert "
        f"Adapter, writes OUT_{HIGH} and OUT_{LOW}, each for its own MODEL.",
    )
