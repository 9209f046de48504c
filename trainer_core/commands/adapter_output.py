"""How verbs write adapters and bases that are made of others: targets, headers, number formats."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError, InputError
from ..families.run_files import load_config
from ..filesystem.storage import given_path, require_folder
from ..filesystem.temporary import remove_leftovers
from .arguments import is_set, word_or
from .console import show, show_json

if TYPE_CHECKING:
    from ..adapter_files.read.adapter_file import AdapterFile
    from ..families.family import Family
    from ..types import AdapterState


DIFFUSERS_MARK, PEFT_MARK = "model_index.json", "adapter_config.json"
_DIGITS = 4
_STORED = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def new_target(
    path: str, inputs: Sequence[Path], *, overwrite: bool, folder_of: str | None = None
) -> Path:
    """Where the result goes.

    Args:
        inputs: What is read; the result can be none of it, nor inside of it, nor around it.
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
    require_folder(target.parent)
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


@dataclass(frozen=True, slots=True)
class OutputForm:
    """How a command writes an adapter."""

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
        """Write it with a derived header; gives the largest relative error of the format."""
        from ..adapter_files.write.write_adapter import write_adapter

        header = derived_header(state, family, source)
        written = write_adapter(
            target,
            state,
            self.layout,
            key_map=family.layers.key_map,
            metadata=header,
            dtype=self.dtype,
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
    """Errors of all layers in a few lines."""
    worst = max(errors, key=errors.__getitem__)
    return {
        "median": rounded(statistics.median(errors.values())),
        "worst": {worst: rounded(errors[worst])},
    }


def rounded(value: float) -> float:
    """A number with as many digits as a person reads."""
    return float(f"{value:.{_DIGITS}g}")
