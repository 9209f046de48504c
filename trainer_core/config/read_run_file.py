"""`load_config`: run file and overrides in, `RunConfig` out; and back, plain or with help texts.

A relative path in a run file is relative to the file's own folder, so that a dataset and its run
file can be moved together. In an override it is relative to the current folder, as in any command.
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from ..errors import ConfigError
from ..filesystem.file_names import leads_to_windows
from ..filesystem.text_files import read_text
from .adapter import AdapterConfig
from .base_path import has_hub_form
from .run import RunConfig, find_setting, names_step, walk_settings
from .run_file_problems import (
    can_be_path,
    contradictions,
    problems_of,
    raise_problems,
    refuse_newer_version,
    unknown_setting,
    unknown_words,
)
from .section import (
    Problem,
    bounds_in_words,
    choices_of,
    is_advanced,
    listed_in,
    section_of,
    traits_of,
)
from .yaml_dialect import SIZE_LIMIT, format_value, format_yaml, parse_yaml, value_in_words


def load_config(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
    *,
    choices: Mapping[str, Sequence[str]] | None = None,
    unlisted: Mapping[str, Sequence[str]] | None = None,
) -> RunConfig:
    """Read a run file.

    Args:
        source: A run file, the values of one, or None for the defaults alone.
        overrides: ``key=value`` texts that win over the source: a dotted YAML path and a YAML
            value, such as ``training.steps=500`` or ``preview.prompts=["a red star"]``. The last
            one wins. One that names another ``adapter.kind`` than the source leaves out what the
            source says of its own kind.
        tell: Hears in one sentence what was left out.
        choices: YAML path to the words that a setting chooses from and that only a caller knows,
            such as the names of the families. Without, such a setting takes any text.
        unlisted: The same, to words that are known as well and not offered to anybody.

    Returns:
        Settings that are complete, within their ranges and free of contradictions, with absolute
        paths.

    Raises:
        ConfigError: When the file cannot be read, or for all wrong settings at once.
    """
    here = Path.cwd()
    if isinstance(source, str | Path):
        path = _expanded(str(source), "the run file")
        name, folder, values = str(source), path.absolute().parent, _read_file(path)
    else:
        name = "the settings" if source is not None or not overrides else "the overrides"
        folder, values = here, copy.deepcopy(dict(source or {}))
    refuse_newer_version(values.get("config_version"), name)
    _fill_empty_sections(values, RunConfig)
    _anchor_paths(values, RunConfig, folder)
    problems, dropped = _apply(values, overrides, here)
    if dropped and tell:
        kind = values["adapter"]["kind"]
        tell(f"adapter.kind is {kind}: {', '.join(dropped)} of {name} is left out.")
    problems += unknown_words(values, choices or {}, unlisted or {})
    config = _validate(values, folder, problems)
    if config is not None:
        problems += contradictions(config)
    raise_problems(name, problems)
    assert config is not None
    return config


def parse_override(text: str) -> tuple[str, Any]:
    """Split ``key=value`` and read the value as YAML; `ConfigError` where it is neither."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(
            f"{text!r}",
            "key=value, such as training.steps=500",
            "Write the setting's path, '=' and its value without spaces, or quote the whole.",
        )
    return key.strip(), parse_yaml(value, f"override {text!r}")


def dump_config(config: RunConfig) -> str:
    """Write settings as a run file that `load_config` reads back equal."""
    return format_yaml(config.model_dump(mode="json"))


def _read_file(path: Path) -> dict[str, Any]:
    def refuse(reason: str) -> ConfigError:
        return ConfigError(
            f"{path} cannot be read as a run file ({reason})",
            f"a YAML run file in UTF-8, of at most {SIZE_LIMIT} characters",
            "Check the path, or write one with `adapter-trainer template FAMILY > run.yaml`.",
        )

    values = parse_yaml(read_text(path, refuse), str(path))
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path} holds {value_in_words(values)}",
            "sections and settings, such as 'training:' with 'steps: 1000' under it",
            "See `adapter-trainer template FAMILY`.",
        )
    return values


def _apply(
    values: dict[str, Any], overrides: Sequence[str], folder: Path
) -> tuple[list[Problem], list[str]]:
    """Write overrides into the values; returns those without a place, and what they drop."""
    problems: list[Problem] = []
    changes: dict[str, Any] = {}
    for text in overrides:
        key, value = parse_override(text)
        change: dict[str, Any] = {}
        _set(change, key.split("."), value)
        _anchor_paths(change, RunConfig, folder)
        owner = key.rpartition(".")[0]
        field = find_setting(owner) if owner else None
        if field is not None and section_of(field) is None and "dict" not in str(field.annotation):
            problems.append(unknown_setting(key))
        else:
            _merge(changes, change)
    kept = {text.partition("=")[0].strip() for text in overrides}
    dropped = drop_of_other_kind(values, changes, kept)
    _merge(values, changes)
    return problems, dropped


def _set(target: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    for key in keys[:-1]:
        target = target.setdefault(key, {})
    target[keys[-1]] = value


def _merge(values: dict[str, Any], change: Mapping[str, Any]) -> None:
    for key, value in change.items():
        present = values.get(key)
        if isinstance(value, dict) and isinstance(present, dict):
            _merge(present, value)
        else:
            values[key] = value


def _validate(values: dict[str, Any], folder: Path, problems: list[Problem]) -> RunConfig | None:
    try:
        config = RunConfig.model_validate(values, strict=True)
    except ValidationError as error:
        problems += problems_of(error)
        return None
    # The default folder lies beside the run file too: a run is found again from anywhere.
    output = config.output.model_copy(
        update={"dir": _anchored("output.dir", config.output.dir, (), folder)}
    )
    for setting, path in (("output.dir", output.dir), ("cache.dir", config.cache.dir or "")):
        if leads_to_windows(path):
            found = f"{setting}: {path} is a path of Windows"
            remedy = f"Correct {setting} in the run file, or write {setting}=FOLDER in the command."
            raise ConfigError(found, "a folder of this computer", remedy)
    return config.model_copy(update={"output": output})


def _fill_empty_sections(values: dict[str, Any], section: type[BaseModel]) -> None:
    """Read ``cache:`` with every setting below it commented out as a section of defaults."""
    for name, field in section.model_fields.items():
        inner = section_of(field)
        if inner is None or name not in values:
            continue
        if values[name] is None:
            values[name] = {}
        if isinstance(values[name], dict):
            _fill_empty_sections(values[name], inner)


def _anchor_paths(values: Any, section: type[BaseModel], folder: Path, prefix: str = "") -> None:
    """Make the paths in raw values absolute; what is not text is left for validation."""
    for name, field in section.model_fields.items() if isinstance(values, dict) else ():
        if name not in values:
            continue
        traits, inner, items = traits_of(field), section_of(field), listed_in(field)
        if traits and traits.path == "anchored":
            words = traits.no_paths
            values[name] = _anchored(f"{prefix}{name}", values[name], words, folder)
        elif inner:
            _anchor_paths(values[name], inner, folder, f"{prefix}{name}.")
        elif items and isinstance(values[name], list):
            for item in values[name]:
                _anchor_paths(item, items, folder, f"{prefix}{name}.")


def _anchored(setting: str, value: Any, words: Collection[str], folder: Path) -> Any:
    """Make the path that a setting holds, or a list of them, absolute.

    Words that the setting takes in place of a path, a hub id for ``base.path`` and a step for
    ``resume`` stay as they are. A folder that exists wins over a hub id.
    """
    if isinstance(value, list):
        return [_anchored(setting, item, words, folder) for item in value]
    if not isinstance(value, str) or not can_be_path(value) or value in words:
        return value
    if setting == "resume" and names_step(value):
        return value
    if leads_to_windows(value):
        return value
    expanded = _expanded(value, setting)
    path = folder / expanded
    if "\\" in value and not path.exists():
        path = folder / PureWindowsPath(expanded).as_posix()  # as it is meant on Windows
    if setting == "base.path" and has_hub_form(value) and not path.exists():
        return value
    return str(path)


def _expanded(text: str, what: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"{what}: {text} begins with the home of a user who is not known here ({error})",
            "a path",
            "Write the path in full.",
        ) from error


def drop_of_other_kind(
    values: dict[str, Any], change: Mapping[str, Any], kept: Collection[str]
) -> list[str]:
    """Leave out what a run file says of its own kind, where an override names another one.

    A template writes the settings of its kind into the file, so that they need not be the user's
    wish. What the override itself says (`kept`), or what never fitted the file's own kind, stays
    and is refused later. The raw values are changed in place. Gives the settings that were left
    out, such as ``adapter.factor (4)``.
    """
    adapter, wanted = values.get("adapter"), _section(change, "adapter").get("kind")
    if wanted is None or not isinstance(adapter, dict):
        return []
    own = adapter.get("kind", AdapterConfig.model_fields["kind"].default)
    dropped = []
    for path, field in walk_settings():
        traits, (*sections, name) = traits_of(field), path.split(".")
        at = {"kind", "adapter.kind"} if sections == ["adapter"] else {"adapter.kind"}
        conditions = traits.only_with if traits else ()
        kinds = [kind for other in conditions if other.path in at for kind in other.values]
        place: Any = values
        for section in sections:
            place = _section(place, section)
        if own not in kinds or wanted in kinds or path in kept or name not in place:
            continue
        if traits and place[name] not in traits.neutral:
            dropped.append(f"{path} ({place.pop(name)})")
    return dropped


def _section(values: Any, name: str) -> dict[str, Any]:
    found = values.get(name) if isinstance(values, Mapping) else None
    return found if isinstance(found, dict) else {}


_WIDTH = 96


def commented_run_file(
    title: str,
    values: Mapping[str, Any],
    choices: Mapping[str, Sequence[str]],
    notes: Sequence[str] = (),
    remarks: Mapping[str, str] | None = None,
    missing: Sequence[str] = ("dataset.path", "output.name"),
) -> str:
    """Write a run file that explains itself; settings for experts show their default as comments.

    Of values that differ from the defaults, by YAML path. Notes stand below the title, remarks
    between a setting and its help, and a person has to set first what is `missing`. Choices are as
    `load_config` takes them.
    """
    lines = [
        f"# {title}",
        *(line for note in notes for line in _comment(f"- {note}", "")),
        "#",
        f"# Set {' and '.join(missing)}, then:" if missing else "# Check the settings, then:",
        "#   adapter-trainer doctor run.yaml                     what will be trained",
        "#   adapter-trainer train run.yaml                      train",
        "#   adapter-trainer train run.yaml training.steps=500   with another value for this time",
        "# Relative paths are relative to this file's folder. Lines that begin with '#' and a name",
        "# show the default of a setting that is seldom changed.",
        *_section_lines(RunConfig, "", values, choices=choices, remarks=remarks or {}),
    ]
    return "\n".join(lines) + "\n"


def _section_lines(
    section: type[BaseModel],
    prefix: str,
    values: Mapping[str, Any],
    choices: Mapping[str, Sequence[str]],
    remarks: Mapping[str, str],
) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, field in section.model_fields.items():
        inner = section_of(field)
        if inner is not None or not prefix:
            yield ""
        path = prefix + name
        words = choices.get(path) or choices_of(field)
        yield from _comment(_help_text(field, words), indent)
        if inner is not None:
            yield f"{indent}{name}:"
            yield from _section_lines(inner, f"{path}.", values, choices=choices, remarks=remarks)
            continue
        value = values.get(path, field.get_default(call_default_factory=True))
        hidden = is_advanced(field) and path not in values
        if path in remarks:
            yield from _comment(f"> {remarks[path]}", indent)
        yield f"{indent}{'# ' if hidden else ''}{name}: {format_value(value)}"


def _help_text(field: FieldInfo, choices: Sequence[str]) -> str:
    text = field.description or ""
    if sum(word not in text for word in choices) > 1:
        text += " One of " + ", ".join(choices) + "."
    bounds = (
        ""
        if any(getattr(part, "pattern", None) for part in field.metadata)
        else bounds_in_words(field)
    )
    return f"{text} ({bounds})" if bounds else text


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=indent + "# ",
        subsequent_indent=indent + "# ",
        break_on_hyphens=False,
    )
