"""What the verbs that make files of adapters and bases share: inputs, targets, headers, errors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, InputError
from ..families.run_files import load_config
from ..filesystem.storage import given_path
from ..filesystem.temporary import remove_leftovers
from ..weights.base_location import EMBEDDED
from .arguments import Arguments
from .console import show, show_json

if TYPE_CHECKING:
    from ..adapter_files.read.adapter_file import AdapterFile
    from ..families.family import Family
    from ..types import AdapterState


DIFFUSERS_MARK, PEFT_MARK = "model_index.json", "adapter_config.json"
_DIGITS = 4
_STORED = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def word_or(own: Mapping[str, str], name: str, choices: Sequence[str], default: str) -> str:
    """A setting that is one of some words.

    Raises:
        InputError: When it is another.
    """
    value = own.get(name, default)
    if value not in choices:
        raise InputError(f"{name}={value}", f"one of {', '.join(choices)}", f"Correct {name}.")
    return value


def is_set(own: Mapping[str, str], name: str) -> bool:
    """A switch, written ``--name`` or ``name=true``.

    Raises:
        InputError: When it is neither true nor false.
    """
    return word_or(own, name, ("true", "false"), "false") == "true"


def whole_number(own: Mapping[str, str], name: str, least: int) -> int | None:
    """A setting that is a whole number; None where it is not given.

    Raises:
        InputError: When it is none, or below `least`.
    """
    if name not in own:
        return None
    try:
        value = int(own[name])
    except ValueError:
        value = least - 1
    if value < least:
        raise InputError(
            f"{name}={own[name]}", f"a whole number of at least {least}", f"Correct {name}."
        )
    return value


def numbers(own: Mapping[str, str], name: str, count: int) -> tuple[float, ...]:
    """A setting like ``1,0.5``: a number for each of some adapters, or one for all; 1 if unset.

    Raises:
        InputError: When it is something else, or a number is not finite.
    """
    text = own.get(name, "1")
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = (math.nan,)
    if len(values) == 1:
        values *= count
    if len(values) != count or not all(math.isfinite(value) for value in values):
        raise InputError(
            f"{name}={text} for {count} adapter(s)",
            "one number, or one for each adapter with commas between, such as 1,0.5",
            f"Correct {name}.",
        )
    return values


def existing(path: str, what: str) -> Path:
    """A path that a word names.

    Raises:
        InputError: When nothing is there, or the system does not let anybody look.
    """
    place = given_path(path, what)
    if not place.exists():
        raise InputError(f"there is no {place}", what, "Check the path.")
    return place


def existing_base(path: str) -> None:
    """See that a base which a word names is there, before anything heavy is imported.

    Raises:
        InputError: When it is not, or the system does not let anybody look.
    """
    if path != EMBEDDED and not given_path(path, "a base model").exists():
        raise InputError(
            f"{path} does not exist",
            "a folder or file with a base model, or the word embedded",
            "Correct the path, or download the model first.",
        )


def new_target(
    path: str, inputs: Sequence[Path], *, overwrite: bool, folder_of: str | None = None
) -> Path:
    """Where the result goes.

    Args:
        path: As it was written.
        inputs: What is read; the result can be none of it, nor inside of it, nor around it.
        overwrite: Whether something may be there already.
        folder_of: The file by which a folder of the result's form is known; None where the result
            is a single safetensors file.

    Raises:
        InputError: When that cannot be the target.
    """
    target = given_path(path, "an output")
    form = "single file" if folder_of is None else f"folder with {folder_of}"
    if (target.suffix.lower() in (".safetensors", ".sft")) != (folder_of is None):
        raise InputError(
            f"the output {target} for a {form}",
            "a name that ends in .safetensors" if folder_of is None else "the name of a folder",
            "Choose another name for the output.",
        )
    place = target.resolve()
    for each in inputs:
        other = each.resolve()
        same = target.exists() and each.exists() and target.samefile(each)
        if same or place.is_relative_to(other) or other.is_relative_to(place):
            raise InputError(
                f"the output {target} is the input {each}, or lies in it or around it",
                "an output of its own",
                "Choose another name for the output; nothing was changed.",
            )
    if not target.exists():
        return target
    if not overwrite:
        raise InputError(
            f"{target} exists", "a new name, or --overwrite", "Choose another name for the output."
        )
    # A folder is replaced as a whole, so that it has to be one of those that are written here.
    fits = target.is_file() if folder_of is None else (target / folder_of).is_file()
    if not fits and not (folder_of and target.is_dir() and not any(target.iterdir())):
        raise InputError(
            f"{target}, which is no {form}",
            "one that the result can take the place of",
            "Choose another name for the output.",
        )
    return target


def check_words(
    arguments: Arguments, least: int, expected: str, example: str, *, more: bool = False
) -> None:
    """See that as many words stand behind a verb as it takes.

    Args:
        least: How many.
        example: How the verb is written with them.
        more: Whether there may be more.

    Raises:
        InputError: When there are others.
    """
    count = len(arguments.words)
    if count < least or (count > least and not more):
        raise InputError(
            f"{count} word(s) behind the verb", expected, f"Write adapter-trainer {example}."
        )


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How a command writes an adapter.

    Attributes:
        layout: The layout.
        dtype: ``fp32``, ``bf16`` or ``fp16``.
        overwrite: Whether a file that is there is replaced.
    """

    layout: str
    dtype: str
    overwrite: bool

    @classmethod
    def of(cls, own: Mapping[str, str], layout: str, dtype: str) -> OutputForm:
        """Read it from a command's settings, with what is taken where they say nothing.

        Raises:
            InputError: When a setting has a word that it does not know.
        """
        from ..adapter_files.write.write_adapter import DTYPES, LAYOUTS

        return cls(
            word_or(own, "layout", tuple(LAYOUTS), layout),
            word_or(own, "dtype", tuple(DTYPES), dtype),
            is_set(own, "overwrite"),
        )

    def target(self, path: str, inputs: Sequence[Path], *, as_json: bool) -> Path:
        """Where the adapter goes, as `new_target`; what killed commands left there is removed."""
        folder_of = PEFT_MARK if self.layout == "peft" else None
        target = new_target(path, inputs, overwrite=self.overwrite, folder_of=folder_of)
        clear_leftovers(target.parent, as_json=as_json)
        return target

    def write(
        self, target: Path, state: AdapterState, family: Family, source: Mapping[str, str] | None
    ) -> float:
        """Write the adapter with a header that tells of its source (`derived_header`).

        Returns:
            The largest relative error that the number format makes in a tensor.
        """
        from ..adapter_files.write.write_adapter import write_adapter

        header = derived_header(state, family, source)
        written = write_adapter(
            target,
            state,
            self.layout,
            family.layers.key_map,
            header,
            self.dtype,
            replace=self.overwrite,
        )
        return rounded(written.rounding)


def clear_leftovers(*folders: Path, as_json: bool) -> None:
    """Remove what killed commands left where something is about to be written, and say so.

    Args:
        folders: Where; some may be absent.
        as_json: One JSON object a line instead of text.
    """
    for note in remove_leftovers(*folders):
        if as_json:
            show_json({"event": "warned", "message": note})
        else:
            show(f"Note: {note}")


def derived_header(
    state: AdapterState, family: Family, source: Mapping[str, str] | None = None
) -> dict[str, str]:
    """The header of a file that no run made.

    Args:
        source: The header of the file that it was made from, whose run it tells of; None where
            there is none or several.
    """
    from ..adapter_files.metadata import RunInfo, adapter_metadata, own_facts
    from ..requirements import installed_versions

    facts = own_facts(source or {})
    settings, variant = _run_settings(facts.get("settings")), None
    if isinstance(settings.get("base"), dict):
        variant = settings["base"].get("variant")
    step = facts.get("step")
    names = family.files.header_names.get(variant or "") or family.files.header_names.get(
        family.variants[0]
    )
    hashes = facts.get("hashes")
    info = RunInfo(
        family=family.name,
        step=step if isinstance(step, int) else 0,
        settings=settings,
        title=family.title,
        architecture=names.architecture if names else None,
        base_version=names.version if names else None,
        hashes=hashes if isinstance(hashes, dict) else {},
        versions=installed_versions(),
    )
    return adapter_metadata(state, info, "shareable")


def _run_settings(value: object) -> dict[str, Any]:
    """The settings of a run without those of its adapter, if they are such as this trainer writes.

    A header may come from anybody.
    """
    if not isinstance(value, dict):
        return {}
    settings = {name: each for name, each in value.items() if name != "adapter"}
    try:
        load_config(settings)
    except ConfigError:
        return {}
    return settings


def kept_layout(files: Sequence[AdapterFile]) -> str:
    """The layout of the given files where they share one that is written; else comfyui."""
    from ..adapter_files.write.write_adapter import LAYOUTS

    layouts = {file.layout for file in files}
    only = layouts.pop() if len(layouts) == 1 else "comfyui"
    return only if only in LAYOUTS and only != "peft" else "comfyui"


def kept_dtype(files: Sequence[AdapterFile]) -> str:
    """The number format of the given files where they share one; else fp32."""
    dtypes = {dtype for file in files for dtype in file.dtypes}
    return _STORED.get(dtypes.pop(), "fp32") if len(dtypes) == 1 else "fp32"


def error_summary(errors: Mapping[str, float]) -> dict[str, Any]:
    """Errors of all layers in a few lines.

    Args:
        errors: Layer to its relative error; at least one.
    """
    worst = max(errors, key=errors.__getitem__)
    return {
        "median": rounded(statistics.median(errors.values())),
        "worst": {worst: rounded(errors[worst])},
    }


def rounded(value: float) -> float:
    """A number with as many digits as a person reads."""
    return float(f"{value:.{_DIGITS}g}")
