"""The trials of a sweep: which settings differ, checked before the first one is trained."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo

from ...config import RunConfig
from ...config.run import find_setting, walk_settings
from ...config.run_file_problems import unknown_setting
from ...config.section import section_of, traits_of
from ...config.yaml_dialect import format_value, parse_yaml
from ...errors import ConfigError
from ...families.run_files import load_config
from ...filesystem.file_names import LONGEST_NAME, name_mistake
from ...filesystem.text_files import read_text
from ..checkpoints.best_loss import MEASURED_BY

MOST = 100
"""Trials of a sweep; a grid grows quickly."""

_KEYS = ("run", "grid", "trials", "stop_hopeless")
_SECTIONS = ("adapter", "training", "memory")
_TEXT = ".text_encoder."
"""Whose settings are not named by their ends: rank is the adapter's, not the text encoder's."""
_OF_TRAINING = (
    "dataset.caption_dropout",
    "dataset.control_dropout",
    "dataset.flip",
    "dataset.num_repeats",
    "dataset.preservation",
    "dataset.regularization.weight",
)
"""Settings of the dataset that leave held-out images as they are."""

Values = Mapping[str, Any]
"""YAML path to value."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of a sweep.

    Attributes:
        name: The ``output.name`` of its run.
        values: What makes it differ from the others.
    """

    name: str
    values: Values
    config: RunConfig


@dataclass(frozen=True, slots=True)
class SweepFile:
    """A sweep as it is written.

    Attributes:
        run: The run file that the trials share.
        combinations: The values of each trial.
        stop_hopeless: Whether `MedianRule` ends trials.
    """

    run: Path
    combinations: tuple[Values, ...]
    stop_hopeless: bool = True


def read_sweep(path: Path) -> SweepFile:
    """Read a sweep file.

    Raises:
        ConfigError: When it cannot be read, or names what is not a setting.
    """

    def refuse(reason: str) -> ConfigError:
        return _wrong(path, f"it cannot be read ({reason})")

    found = parse_yaml(read_text(path, refuse), str(path))
    if not isinstance(found, dict) or not isinstance(found.get("run"), str):
        raise _wrong(path, "it names no run file")
    if unknown := [str(key) for key in found if key not in _KEYS]:
        raise _wrong(path, f"{unknown[0]} is unknown")
    if ("grid" in found) == ("trials" in found):
        raise _wrong(path, "it has both grid and trials, or neither")
    stops = found.get("stop_hopeless", True)
    if not isinstance(stops, bool):
        raise _wrong(path, f"stop_hopeless is {stops}")
    if "grid" in found:
        combinations = grid_combinations(found["grid"], str(path))
    else:
        combinations = _listed(found["trials"], path)
    run = (path.absolute().parent / Path(found["run"]).expanduser()).absolute()
    return SweepFile(run, combinations, stops)


def grid_combinations(grid: Any, source: str) -> tuple[Values, ...]:
    """Every combination of a few settings' values, the last setting changing first.

    Args:
        grid: Setting to its values.
        source: Where it stands, for the error.

    Raises:
        ConfigError: When it is no such mapping, or has more than `MOST` combinations.
    """
    lists = grid if isinstance(grid, dict) else {}
    for name, values in lists.items():
        if not isinstance(values, list) or not values:
            raise _wrong(source, f"grid: {name} has no list of values")
    if not lists:
        raise _wrong(source, "grid names no setting")
    count = 1
    for values in lists.values():
        count *= len(values)
    _require_few(count, source)
    paths = _paths_of(lists, source)
    return tuple(dict(zip(paths, each, strict=True)) for each in itertools.product(*lists.values()))


def read_grid(text: str, source: str) -> tuple[Values, ...]:
    """Read a grid that is written as lines of ``setting: value, value``.

    Raises:
        ConfigError: As `grid_combinations`; about lines it says how one is written.
    """
    grid: dict[str, list[Any]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, colon, values = line.partition(":")
        values = values.strip().removeprefix("[").removesuffix("]")
        if not colon or not values or name.strip() in grid:
            again = "is a second one of its setting" if name.strip() in grid else "has no values"
            raise _wrong_line(source, f"the line {line!r} {again}")
        grid[name.strip()] = parse_yaml(f"[{values}]", source)
    if not grid:
        raise _wrong_line(source, "it is empty")
    return grid_combinations(grid, source)


def _listed(trials: Any, path: Path) -> tuple[Values, ...]:
    good = isinstance(trials, list) and trials and all(isinstance(e, dict) and e for e in trials)
    if not good:
        raise _wrong(path, "trials is not a list of settings with a value each")
    _require_few(len(trials), str(path))
    return tuple(
        dict(zip(_paths_of(each, str(path)), each.values(), strict=True)) for each in trials
    )


def make_trials(
    combinations: Sequence[Values],
    name: str,
    make: Callable[[Sequence[str]], RunConfig],
    source: str,
) -> tuple[Trial, ...]:
    """Make the run file of every trial; one that is wrong refuses all.

    Args:
        name: What the names of their runs begin with.
        make: Gives the run file for ``key=value`` texts.

    Raises:
        ConfigError: When one is wrong, or two are the same.
    """
    names = _names(combinations, name)
    trials = []
    for values, own in zip(combinations, names, strict=True):
        texts = [f"{path}={format_value(value)}" for path, value in values.items()]
        try:
            config = make([*texts, f"output.name={format_value(own)}", "resume=auto"])
        except ConfigError as error:
            found = f"{source}: the trial {in_words(values)}: {error.found}"
            raise ConfigError(found, error.expected, error.remedy) from error
        trials.append(Trial(own, values, config))
    by_config: dict[str, Values] = {}
    for trial in trials:
        same = trial.config.model_copy(
            update={"output": trial.config.output.model_copy(update={"name": name})}
        ).model_dump_json()
        if same in by_config:
            first = in_words(by_config[same])
            found = f"{source}: the trials {first} and {in_words(trial.values)} are the same"
            raise ConfigError(found, "trials that differ", "Leave one of them out.")
        by_config[same] = trial.values
    return tuple(trials)


def file_trials(
    sweep: SweepFile, path: Path, overrides: Sequence[str] = ()
) -> tuple[str, tuple[Trial, ...]]:
    """The name of a sweep file's run, and its trials.

    Args:
        path: The sweep file.
        overrides: ``key=value`` texts that change the run file of all.

    Raises:
        ConfigError: As `make_trials`, and when the run file is wrong.
    """
    name = load_config(sweep.run, overrides).output.name
    swept = {setting for each in sweep.combinations for setting in each}
    for text in overrides:
        if text.partition("=")[0].strip() in swept:
            raise _wrong(path, f"{text} and the sweep set the same setting")
    return name, make_trials(
        sweep.combinations, name, lambda own: load_config(sweep.run, [*overrides, *own]), str(path)
    )


def in_words(values: Values) -> str:
    """What makes a trial differ."""
    return ", ".join(f"{path}={format_value(value)}" for path, value in values.items())


def _paths_of(names: Mapping[Any, Any], source: str) -> list[str]:
    paths = [_path_of(name, source) for name in names]
    if twice := [path for path, count in Counter(paths).items() if count > 1]:
        raise _wrong(source, f"{twice[0]} is named twice")
    return paths


def _path_of(name: Any, source: str) -> str:
    """The setting that a name means: its YAML path, or the end of only one that may be swept."""
    name = str(name)
    known = {path: each for path, each in walk_settings() if section_of(each) is None}
    named = [path for path in known if path.endswith(f".{name}") and _TEXT not in path]
    # The others only so that the error says why one of them cannot be swept.
    mine = [path for path in named if _is_inside(path, _SECTIONS)]
    ends = [path for path in mine if not _obstacle(path, known[path])] or mine or named
    path = name if name in known or len(ends) != 1 else ends[0]
    field = find_setting(path)
    if field is None or section_of(field) is not None:
        if len(ends) > 1:
            raise _wrong(source, f"{name} is the end of {' and '.join(ends)}")
        problem = unknown_setting(path)
        raise ConfigError(f"{source}: {problem.found}", problem.expected, problem.remedy)
    if why := _obstacle(path, field):
        raise ConfigError(
            f"{source}: {path}, and {why}",
            "settings whose trials train the same base and are measured on the same held-out "
            f"images: those of {', '.join(_SECTIONS)} without {', '.join(sorted(MEASURED_BY))} "
            f"and files, and {', '.join(_OF_TRAINING)}",
            "Leave it out, and train a run for each value instead.",
        )
    return path


def _obstacle(path: str, field: FieldInfo) -> str:
    """Why a setting cannot be swept, or nothing."""
    if _is_inside(path, MEASURED_BY):
        return "the loss on held-out images is measured by it"
    traits = traits_of(field)
    fits = _is_inside(path, (*_SECTIONS, *_OF_TRAINING)) and not (traits and traits.path)
    return "" if fits else "it cannot be swept"


def _is_inside(path: str, sections: Iterable[str]) -> bool:
    return any(path == each or path.startswith(f"{each}.") for each in sections)


def _names(combinations: Sequence[Values], name: str) -> list[str]:
    """The names of the trials' runs, by what differs; by number where that makes no good name."""
    paths = list(dict.fromkeys(path for each in combinations for path in each))
    last = Counter(path.rsplit(".", 1)[-1] for path in paths)
    short = {}
    for path in paths:
        parts = path.split(".")
        short[path] = parts[-1] if last[parts[-1]] == 1 else ".".join(parts[-2:])
    names = [
        "-".join([name, *(f"{short[path]}_{format_value(value)}" for path, value in each.items())])
        for each in combinations
    ]
    usable = len({each.casefold() for each in names}) == len(names) and not any(
        name_mistake(each) or len(each.encode()) > LONGEST_NAME for each in names
    )
    return names if usable else [f"{name}-trial{index}" for index in range(len(names))]


def _require_few(count: int, source: str) -> None:
    if count > MOST:
        raise ConfigError(
            f"{source}: {count} trials",
            f"at most {MOST}",
            "Name fewer values, or list the combinations that you want under trials.",
        )


def _wrong_line(source: str, found: str) -> ConfigError:
    return ConfigError(
        f"{source}: {found}",
        "a line for each setting, with its values behind a colon: rank: 8, 16",
        "Write such lines in grid.",
    )


def _wrong(source: Path | str, found: str) -> ConfigError:
    return ConfigError(
        f"{source}: {found}",
        "run: a run file; grid: settings, each with a list of values (adapter.rank: [8, 16]), or "
        "trials: a list of combinations ({adapter.rank: 8, training.batch_size: 2}); and "
        "stop_hopeless: true or false",
        "Correct it; see adapter-trainer sweep --help.",
    )
