"""What is wrong with a run file, found all at once and told in one error.

A setting that contradicts another is wrong, and so is one that would have no effect: whoever wrote
it expects something. Facts that need files or the base model are checked where these are opened.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from ..errors import ConfigError
from ..filesystem.file_names import EXPECTED, name_mistake
from ..printable import MOST, grouped, shortened
from .adapter import INIT_OF_EVERY_KIND, OF_KIND, UNUSED_BY, AdapterConfig
from .caption_problems import caption_contradictions
from .dataset import PreservationSection, RegularizationSection
from .dataset_rules import dataset_contradictions
from .dialect import LONGEST_VALUE, value_in_words
from .loss_rules import loss_contradictions
from .memory_rules import memory_contradictions
from .noise_rules import noise_contradictions
from .optimizer_rules import optimizer_contradictions
from .path_rules import path_contradictions
from .patterns import PATTERN_EXPECTED, PATTERN_REMEDY, pattern_mistake
from .run import CONFIG_VERSION, RunConfig, find_setting, walk_settings
from .section import choices_of, expectation, listed_section, section_of
from .slider_rules import slider_contradictions
from .text_encoder_rules import text_encoder_contradictions
from .training_rules import training_contradictions


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        found: What was found, beginning with the setting's YAML path.
        expected: What would have been right.
        remedy: What the user can do.
    """

    found: str
    expected: str
    remedy: str


def raise_problems(source: str, problems: Sequence[Problem]) -> None:
    """Raise one error for all problems; nothing happens when there are none.

    Args:
        source: What was read: the run file's path, or ``the overrides``.
        problems: What was found.

    Raises:
        ConfigError: Naming every problem.
    """
    if not problems:
        return
    if len(problems) == 1:
        only = problems[0]
        raise ConfigError(f"{source}: {only.found}", only.expected, only.remedy)
    lines = [
        f"  {number}. {problem.found}; expected {problem.expected}. {problem.remedy}"
        for number, problem in enumerate(problems[:MOST], 1)
    ]
    if len(problems) > MOST:
        lines.append(f"  and {grouped(len(problems) - MOST)} more")
    raise ConfigError(
        f"{source}: {len(problems)} problems\n" + "\n".join(lines),
        "every setting known, of its type, within its range and not against another",
        "Fix the settings named above.",
    )


def problems_of(error: ValidationError) -> list[Problem]:
    """Put pydantic's errors about a `RunConfig` into our words, one problem for each setting."""
    unknown: list[Problem] = []
    wrong: dict[str, tuple[int, Problem]] = {}
    for detail in error.errors(include_url=False, include_context=False):
        location = [str(part) for part in detail["loc"]]
        if detail["type"] == "extra_forbidden":
            name = shortened(".".join(location), LONGEST_VALUE)
            # Only those that will be told are worth the search for a near name.
            few = len(unknown) < MOST
            unknown.append(unknown_setting(name) if few else Problem(name, "a setting", ""))
            continue
        path, inside = _setting_at(location)
        # A union reports every alternative; the one that reached deepest was meant.
        if path not in wrong or len(location) > wrong[path][0]:
            problem = _wrong_value(path, inside, detail["input"])
            wrong[path] = (len(location), problem)
    return unknown + [problem for _, problem in wrong.values()]


def unknown_words(
    values: Mapping[str, Any],
    choices: Mapping[str, Sequence[str]],
    unlisted: Mapping[str, Sequence[str]],
) -> list[Problem]:
    """Settings whose value is none of the words that they choose from.

    Args:
        values: Of a run file.
        choices: YAML path to words, for settings that take any text in a `RunConfig`. What is no
            text either is one of `problems_of`.
        unlisted: YAML path to words that are known as well, and not offered.
    """
    problems = []
    for path, words in choices.items():
        value: Any = values
        for name in path.split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if isinstance(value, str) and value not in {*words, *unlisted.get(path, ())}:
            expected = "one of " + ", ".join(map(repr, words))
            problems.append(Problem(_found(path, value), expected, _nearest(path, value, words)))
    return problems


def unknown_setting(path: str) -> Problem:
    """A setting that does not exist, with the nearest one that does."""
    item = listed_section(RunConfig, path.split("."))
    if item is not None:
        parent, names = item
        near = difflib.get_close_matches(path.removeprefix(f"{parent}."), names, n=1, cutoff=0.6)
        remedy = f"Did you mean {parent}.{near[0]}?" if near else "Leave it out."
        expected = f"one of these in {parent}: {', '.join(names)}"
        return Problem(f"{path} is not a setting", expected, remedy)
    known = [name for name, _ in walk_settings()]
    leaf = path.rsplit(".", 1)[-1]
    # Other trainers write lr for learning_rate.
    elsewhere = [name for name in known if leaf in _spellings(name.rsplit(".", 1)[-1])]
    near = elsewhere[:3] or difflib.get_close_matches(path, known, n=1, cutoff=0.6)
    if not near:
        leaves = {name.rsplit(".", 1)[-1]: name for name in reversed(known)}
        near = [leaves[name] for name in difflib.get_close_matches(leaf, leaves, n=1, cutoff=0.6)]
    parent = path.rpartition(".")[0]
    while parent and parent not in _sections():
        parent = parent.rpartition(".")[0]
    names = ", ".join(_names_in(parent))
    where = f"in {parent}" if parent else "at the top of a run file"
    remedy = f"Did you mean {' or '.join(near)}?" if near else "Leave it out."
    return Problem(f"{path} is not a setting", f"one of these {where}: {names}", remedy)


def _setting_at(location: Sequence[str]) -> tuple[str, str]:
    """Split pydantic's location into the setting's YAML path and the place inside its value."""
    section: type[BaseModel] | None = RunConfig
    depth = 0
    for part in location:
        if section is None or part not in section.model_fields:
            break
        section = section_of(section.model_fields[part])
        depth += 1
    # What is left holds indices, keys and the names of a union's alternatives, such as list[str].
    inside = [part for part in location[depth:] if "[" not in part and part != "str"]
    return ".".join(location[:depth]), ".".join(inside)


def _wrong_value(path: str, inside: str, value: Any) -> Problem:
    field = find_setting(path)
    if field is None:
        return Problem(
            f"{value_in_words(value)} at the top", "a run file of sections and settings", "Fix it."
        )
    where = f"{path} (at {shortened(inside, LONGEST_VALUE)})" if inside else path
    remedy = _nearest(path, value, choices_of(field))
    text_expected = "text" in expectation(field) or "'" in expectation(field)
    plain = not isinstance(value, str | list | Mapping)
    if "?" not in remedy and section_of(field) is None and text_expected and plain:
        remedy = f"Put the value of {path} in quotes if text is meant, or leave the setting out."
        if expectation(field).startswith("a list"):
            remedy = f"Write {path} as a list in square brackets, or leave the setting out."
    return Problem(_found(where, value), expectation(field), remedy)


def _found(where: str, value: Any) -> str:
    return f"{where} is {value_in_words(value)}"


def _spellings(name: str) -> tuple[str, str]:
    """A setting's name, and its initials."""
    return name, "".join(word[:1] for word in name.split("_"))


def _nearest(path: str, value: Any, words: Sequence[str]) -> str:
    near = difflib.get_close_matches(str(value)[:LONGEST_VALUE], words, n=1, cutoff=0.41)
    if near:
        return f"Did you mean {near[0]}?"
    return f"Change {path}, or leave it out for its default."


def _sections() -> set[str]:
    return {name for name, field in walk_settings() if section_of(field) is not None}


def _names_in(path: str) -> Iterable[str]:
    prefix = f"{path}." if path else ""
    names = [name.removeprefix(prefix) for name, _ in walk_settings() if name.startswith(prefix)]
    return [name for name in names if "." not in name]


_BALANCED = -1
"""The factor of run files that asked for none, when -1 was the default."""


def check_config(config: RunConfig, source: str = "the settings") -> None:
    """Refuse settings that contradict each other.

    Args:
        config: Settings that are valid each for itself.
        source: What the error calls them, such as the run file's path.

    Raises:
        ConfigError: Naming every contradiction.
    """
    raise_problems(source, contradictions(config))


def contradictions(config: RunConfig) -> list[Problem]:
    """Everything in the settings that contradicts something else, in the run file's order."""
    return [
        *(Problem(*each) for each in path_contradictions(config.model_dump())),
        *_dataset_problems(config),
        *_adapter_problems(config.adapter),
        *(Problem(*each) for each in noise_contradictions(config.training)),
        *(Problem(*each) for each in loss_contradictions(config)),
        *(Problem(*each) for each in optimizer_contradictions(config)),
        *(Problem(*each) for each in training_contradictions(config)),
        *(Problem(*each) for each in text_encoder_contradictions(config)),
        *_preview_problems(config),
        *(Problem(*each) for each in memory_contradictions(config)),
        *(Problem(*each) for each in dataset_contradictions(config.dataset, config.cache)),
        *(Problem(*each) for each in caption_contradictions(config.dataset)),
        *(Problem(*each) for each in slider_contradictions(config)),
        *_output_problems(config),
    ]


def refuse_newer_version(version: object, source: str) -> None:
    """Refuse a run file that a newer trainer wrote, before its new settings look like typos.

    Raises:
        ConfigError: When the version is a number above ours.
    """
    if isinstance(version, int) and version > CONFIG_VERSION:
        raise ConfigError(
            f"{source}: config_version is {version}",
            f"at most {CONFIG_VERSION}",
            "Update the trainer, or write the file again with `adapter-trainer template`.",
        )


def _dataset_problems(config: RunConfig) -> Iterator[Problem]:
    if config.base.variant == "generate":
        if config.dataset.layout == "paired":
            yield Problem(
                "base.variant is generate and dataset.layout is paired",
                "control images only for a base that edits",
                "Set base.variant to edit or edit_plus, or use a flat dataset.",
            )
        if config.dataset.control_area is not None:
            yield Problem(
                "dataset.control_area is set and base.variant is generate",
                "control settings only for a base that edits",
                "Leave dataset.control_area out, or set base.variant to edit or edit_plus.",
            )

    ordinary, ours = config.dataset.regularization, RegularizationSection()
    if not ordinary.path and ordinary != ours:
        yield Problem(
            "dataset.regularization has settings and no path",
            "weight and num_repeats only with a folder of regularization images",
            "Set dataset.regularization.path, or leave the section out.",
        )
    kept, defaults = config.dataset.preservation, PreservationSection()
    if not kept.share and kept != defaults:
        yield Problem(
            "dataset.preservation has settings and its share is 0, which is off",
            "prompts, count and steps only with a share above 0",
            "Set dataset.preservation.share, such as 0.25, or leave the section out.",
        )


def _adapter_problems(adapter: AdapterConfig) -> Iterator[Problem]:
    lokr = {
        path.removeprefix("adapter."): (adapter.kind == kind, "kind", kind)
        for path, kind in OF_KIND.items()
        if kind == "lokr"
    }
    needed = {
        **lokr,
        "dora_axis": (adapter.dora, "dora", "true"),
        "rank_dropout_scale": (adapter.rank_dropout > 0, "rank_dropout", "more than 0"),
    }
    defaults = AdapterConfig()
    for name, (met, setting, value) in needed.items():
        neutral = {getattr(defaults, name), *([_BALANCED] if name == "factor" else [])}
        if not met and getattr(adapter, name) not in neutral:
            found = str(getattr(adapter, setting)).lower()
            yield Problem(
                f"adapter.{name} is set and adapter.{setting} is {found}",
                f"adapter.{name} only with {setting} {value}",
                f"Leave adapter.{name} out, or set adapter.{setting} to {value}.",
            )
    for name, reason in UNUSED_BY.get(adapter.kind, {}).items():
        if getattr(adapter, name) != getattr(defaults, name):
            yield Problem(
                f"adapter.{name} is set and adapter.kind is {adapter.kind}",
                f"adapter.{name} with another kind: {reason}",
                f"Leave adapter.{name} out, or set adapter.kind to lora.",
            )
    yield from _lokr_problems(adapter)
    yield from _init_problems(adapter)
    for name in ("targets", "include", "exclude", "rank_pattern", "alpha_pattern"):
        given = getattr(adapter, name)
        yield from _pattern_problems(f"adapter.{name}", [] if isinstance(given, str) else given)
    for pattern, rank in adapter.rank_pattern.items():
        if rank < 1:
            yield Problem(
                f"adapter.rank_pattern gives {pattern!r} the rank {rank}",
                "ranks of at least 1",
                "Raise the rank, or name the layer in adapter.exclude.",
            )
    for pattern, alpha in adapter.alpha_pattern.items():
        if alpha <= 0:
            yield Problem(
                f"adapter.alpha_pattern gives {pattern!r} the alpha {alpha}",
                "alphas above 0",
                "Leave the layer out of adapter.alpha_pattern for alpha = rank.",
            )


def _lokr_problems(adapter: AdapterConfig) -> Iterator[Problem]:
    if adapter.kind != "lokr":
        return
    if adapter.factor == 0:
        yield Problem(
            "adapter.factor is 0",
            "-1 for the most balanced split, or the size of a factor, at least 1",
            "Leave adapter.factor out, or set it to 1 or more.",
        )
    if not adapter.full_matrix:
        return
    if adapter.decompose_both:
        yield Problem(
            "adapter.decompose_both is set and adapter.full_matrix is true",
            "one of them: full_matrix keeps both factors whole",
            "Leave adapter.decompose_both or adapter.full_matrix out.",
        )
    if adapter.rslora:
        yield Problem(
            "adapter.rslora is set and adapter.full_matrix is true",
            "rslora only where a factor has a rank: with both whole the scale is 1",
            "Leave adapter.rslora or adapter.full_matrix out.",
        )


def _init_problems(adapter: AdapterConfig) -> Iterator[Problem]:
    if adapter.init not in INIT_OF_EVERY_KIND and adapter.kind != "lora":
        yield Problem(
            f"adapter.init is {adapter.init} and adapter.kind is {adapter.kind}",
            f"{adapter.init} only with kind lora: it speaks of the two factors of one product, and "
            "the other kinds have other factors",
            "Leave adapter.init out, or set adapter.kind to lora.",
        )
    if adapter.init in {"pissa", "olora", "eva"} and adapter.start_from is not None:
        yield Problem(
            f"adapter.start_from is set and adapter.init is {adapter.init}",
            "one of them: both say where the factors start",
            "Leave adapter.init or adapter.start_from out. A file of a run with pissa or olora "
            "has twice that run's rank: go on from it with that rank and without adapter.init.",
        )


def _pattern_problems(path: str, patterns: Iterable[str]) -> Iterator[Problem]:
    for pattern in patterns:
        mistake = pattern_mistake(pattern)
        if mistake:
            yield Problem(
                f"{path} has {value_in_words(pattern)}, which {mistake}",
                PATTERN_EXPECTED,
                PATTERN_REMEDY,
            )


def _preview_problems(config: RunConfig) -> Iterator[Problem]:
    preview, variant = config.preview, config.base.variant
    if preview.every > 0 and not preview.prompts:
        yield Problem(
            f"preview.every is {preview.every} and preview.prompts is empty",
            "at least one prompt to generate",
            "Add texts to preview.prompts, or set preview.every to 0.",
        )
    if preview.controls and len(preview.controls) != len(preview.prompts):
        yield Problem(
            f"preview.controls has {len(preview.controls)} entries and preview.prompts has "
            f"{len(preview.prompts)}",
            "one list of control images for each prompt",
            "Give preview.controls as many lists as preview.prompts has texts.",
        )
    for index, line in enumerate(preview.prompts):
        try:
            preview.of_prompt(line, index)
        except ConfigError as error:
            yield Problem(error.found, error.expected, error.remedy)
    counts = [len(images) for images in preview.controls] or [0] * len(preview.prompts)
    allowed = {
        "generate": (lambda count: count == 0, "no control images"),
        "edit": (lambda count: count == 1, "one control image for each prompt"),
        "layered": (lambda count: count == 1, "for each prompt the image to take apart"),
        "edit_plus": (lambda count: count >= 1, "control images for each prompt"),
        "fill": (lambda count: count == 1, "one image to be filled for each prompt"),
        "auto": (lambda count: True, ""),
    }
    fits, expected = allowed[variant]
    if preview.prompts and not all(fits(count) for count in counts):
        yield Problem(
            f"base.variant is {variant} and preview.controls has {counts} images for the prompts",
            expected,
            "Change preview.controls, a list for each prompt (for sample: control=FILE), or "
            "base.variant.",
        )


def _output_problems(config: RunConfig) -> Iterator[Problem]:
    name, layouts = config.output.name, config.output.layouts
    mistake = name_mistake(name)
    if mistake:
        yield Problem(
            f"output.name is {value_in_words(name)} ({mistake})",
            EXPECTED,
            "Choose another output.name.",
        )
    if not layouts or len(set(layouts)) != len(layouts):
        yield Problem(
            f"output.layouts is {layouts}",
            "at least one layout, each once",
            "Set output.layouts to [comfyui], or to several, such as [comfyui, diffusers].",
        )
