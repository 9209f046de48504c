"""``convert``: rewrite adapter files in another layout."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, TrainerError
from ..filesystem.storage import given_path
from . import VERBS
from .adapter_output import clear_leftovers, rounded
from .arguments import Arguments, check_words, existing, is_set, whole_number, word_or
from .console import LayerProgress, show, show_error, show_json, show_report
from .result_sentences import conversion_sentence

if TYPE_CHECKING:
    from torch import Tensor

    from ..adapter_files.convert.convert import Conversion
    from ..bases.base_weights import BaseWeights
    from ..families.family import Family
    from ..tensors.safetensors_reader import Source

_SUFFIX = ".safetensors"
_NAMED = 10
_LONG = 2.0
"""Seconds after which the layers of a file are counted on the screen."""
_SUFFIXES = (_SUFFIX, ".sft")
_FOLDER_MARKS = (
    "adapter_model.safetensors",
    "adapter_config.json",
    "adapter_model.bin",
    "pytorch_lora_weights.safetensors",
)


def convert(arguments: Arguments) -> int:
    """Convert a file, a PEFT folder, or every adapter of a folder; returns the exit code.

    Raises:
        TrainerError: When the input is wrong or the file cannot be written. Of a folder, an error
            of one file is printed and the others are converted all the same.
    """
    check_words(arguments, 2, "what is read, and what is written", "convert IN OUT --to LAYOUT")
    source = existing(arguments.words[0], "an adapter file, or a folder of them")
    work = _Work.of(arguments)
    target = given_path(arguments.words[1], "an output")
    if not (source.is_file() or source.is_dir()):
        raise InputError(
            f"{source} is not an ordinary file",
            "an adapter file, or a folder of them",
            "Name another input.",
        )
    if source.is_file() or _is_adapter_folder(source):
        if source.is_file() and target.is_dir() and work.layout != "peft":
            target = target / f"{source.stem}{_SUFFIX}"
        clear_leftovers(target.parent, as_json=arguments.json)
        for report in work.convert(source, target):
            facts = _facts(report, as_json=arguments.json)
            show_report(facts, as_json=arguments.json, outcome=conversion_sentence(report))
        return 0
    return _convert_all(source, target, work)


@dataclass(frozen=True)
class _Work:
    """What is done with each file."""

    layout: str
    family: str | None
    base: str | None
    options: Mapping[str, Any]
    json: bool
    _bases: dict[str, BaseWeights] = field(default_factory=dict)
    _written: set[Path] = field(default_factory=set)

    @classmethod
    def of(cls, arguments: Arguments) -> _Work:
        from ..adapter_files.convert.adapt_to_layout import APPROXIMATIONS
        from ..adapter_files.write.write_adapter import DTYPES, LAYOUTS

        own = arguments.only(VERBS["convert"].own)
        if "to" not in own:
            raise InputError(
                "no layout to convert to",
                f"one of {', '.join(LAYOUTS)}",
                "Add --to LAYOUT.",
            )
        form = word_or(own, "approximate", ("none", *APPROXIMATIONS), "none")
        dtype = word_or(own, "dtype", ("keep", *DTYPES), "keep")
        options = {
            "dtype": None if dtype == "keep" else dtype,
            "fused": is_set(own, "fused"),
            "approximate": None if form == "none" else form,
            "rank": whole_number(own, "rank", 1),
            "extras": word_or(own, "extras", ("keep", "drop"), "keep"),
            "overwrite": is_set(own, "overwrite"),
        }
        layout = word_or(own, "to", tuple(LAYOUTS), "")
        return cls(layout, own.get("family"), own.get("base"), options=options, json=arguments.json)

    def convert(self, source: Path, target: Path) -> list[Conversion]:
        """Write a file's adapter, or that of each expert that the file has."""
        from ..adapter_files.convert.convert import check_target, convert, targets_of

        parts = targets_of(source, target)
        # Before a file is looked into, which may take a while.
        for own, place in parts:
            if place in self._written:
                raise InputError(
                    f"{source} and another adapter would both become {place}",
                    "names that differ in more than their ending, or than the expert behind them",
                    "Rename one of them, or convert it on its own.",
                )
            check_target(own, place, self.layout, overwrite=self.options["overwrite"])
        self._written.update(place for _, place in parts)
        done = []
        for own, place in parts:
            family, weight_of = self._family_of(own)
            with LayerProgress("layers", as_json=self.json) as progress:
                report = convert(
                    own,
                    place,
                    self.layout,
                    family.layers.key_map,
                    weight_of=weight_of,
                    watch=_after_a_while(progress),
                    **self.options,
                )
            done.append(report)
        return done

    def _family_of(self, adapter: Source) -> tuple[Family, Callable[[str], Tensor] | None]:
        """The family, and the base's weights where a base is named: that one tells the family."""
        from ..bases.adapter_family import adapter_family, require_base
        from ..bases.base_weights import open_base

        if self.base is None:
            return adapter_family(adapter, self.family), None
        if self.base not in self._bases:
            self._bases[self.base] = open_base(self.base, self.family)
        base = self._bases[self.base]
        require_base(adapter, base)
        return base.family, base.weight


def _after_a_while(progress: LayerProgress) -> Callable[[int, int, str], None]:
    """Pass progress on when the work turns out to be long."""
    start = time.monotonic()

    def watch(done: int, count: int, layer: str) -> None:
        if done and time.monotonic() - start > _LONG:
            progress(done, count, layer)

    return watch


def _is_adapter_folder(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _FOLDER_MARKS)


def _convert_all(source: Path, target: Path, work: _Work) -> int:
    """Convert every adapter of a folder; returns 1 when one of them could not be."""
    found, skipped = _sorted(source)
    if not found:
        raise InputError(
            f"{source} holds no adapter file",
            f"files that end in {_SUFFIX}, or PEFT's and Diffusers' folders",
            "Name another folder.",
        )
    if (target.exists() and not target.is_dir()) or target.resolve() == source.resolve():
        raise InputError(
            f"the output {target} for the adapters of a folder",
            "another folder",
            "Name a folder of its own for the new files.",
        )
    clear_leftovers(target, as_json=work.json)
    failed = 0
    for number, path in enumerate(found, 1):
        try:
            reports = work.convert(path, _name_of(path, target, work))
        except TrainerError as error:
            failed += 1
            _show_failure(path, number, len(found), error=error, work=work)
        else:
            for report in reports:
                _show_done(report, number, len(found), work)
    _show_end(len(found) - failed, failed, skipped, work)
    return 1 if failed else 0


def _sorted(folder: Path) -> tuple[list[Path], list[str]]:
    """What of a folder is to be converted, and the names of what is passed over."""
    found: list[Path] = []
    skipped: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        try:
            is_folder = path.is_dir()
            fits = _is_adapter_folder(path) if is_folder else path.suffix.lower() in _SUFFIXES
        except OSError:
            fits = True  # why it cannot be read is told when it is converted
        if fits:
            found.append(path)
        else:
            skipped.append(path.name)
    return found, skipped


def _name_of(path: Path, folder: Path, work: _Work) -> Path:
    """The new name of one of a folder's adapters.

    Raises:
        InputError: When it cannot be looked at.
    """
    existing(str(path), "an adapter file, or PEFT's or Diffusers' folder")
    stem = path.stem if path.is_file() else path.name
    name = stem if work.layout == "peft" else f"{stem}{_SUFFIX}"
    return given_path(str(folder / name), "an output")


def _show_end(converted: int, failed: int, skipped: Sequence[str], work: _Work) -> None:
    if work.json:
        done = {"event": "done", "converted": converted, "failed": failed, "skipped": skipped}
        show_json(done)
        return
    show(f"{converted} of {converted + failed} converted.")
    if skipped:
        more = ", ..." if len(skipped) > _NAMED else ""
        show(f"{len(skipped)} passed over, no adapters: {', '.join(skipped[:_NAMED])}{more}")


def _show_failure(path: Path, number: int, count: int, error: TrainerError, work: _Work) -> None:
    if not work.json:
        show(f"{number}/{count} {path.name}: not converted")
        # The reason goes to the other stream, where nothing else says which file it is of.
        message = error.found if str(path) in error.found else f"{path}: {error.found}"
        show_error(TrainerError(message, error.expected, error.remedy), as_json=False)
        return
    parts = {"found": error.found, "expected": error.expected, "remedy": error.remedy}
    show_json({"event": "failed", "input": path, "number": number, "count": count, **parts})


def _show_done(report: Conversion, number: int, count: int, work: _Work) -> None:
    if work.json:
        facts = _facts(report, as_json=True)
        show_json({"event": "converted", "number": number, "count": count, **facts})
        return
    exact = ["exact"] if report.exact else []
    words = [f"{report.kind}, {report.layers} layers", *exact, *report.differences()]
    show(f"{number}/{count} {report.source.name} -> {report.target}: {', '.join(words)}")
    for layer, error in report.errors.items():
        show(f"    {layer}: {rounded(error)}")
    for note in report.notes:
        show(f"    {note}")


def _shortened(names: Sequence[str]) -> list[str]:
    """The first names of a list, and how many there are besides."""
    more = len(names) - _NAMED
    return [*names[:_NAMED], *([f"and {more} more of {len(names)}"] if more > 0 else [])]


def _facts(report: Conversion, *, as_json: bool) -> dict[str, Any]:
    def shown(error: float) -> float:
        return error if as_json else rounded(error)

    facts = {
        "input": str(report.source),
        "output": report.target,
        "layout": report.layout,
        "kind": report.kind,
        "layers": report.layers,
        "exact": report.exact,
        "errors": {layer: shown(error) for layer, error in report.errors.items()},
        "as_differences": report.merged,
        "dropped": report.dropped if as_json else _shortened(report.dropped),
        "dtype_error": shown(report.rounding),
        "notes": report.notes,
    }
    if as_json:
        return facts
    # A person is told what there is; whether it is exact stands in the last sentence.
    del facts["exact"]
    return {name: each for name, each in facts.items() if each not in ({}, [], ())}
