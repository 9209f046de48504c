"""A commented run file for a family and a purpose, made from the settings' own help texts."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from ..errors import ConfigError
from .describe import bounds_in_words, choices_of, is_advanced, section_of
from .dialect import format_value
from .reading import load_config
from .run import RunConfig

_WIDTH = 96

_FULL_SIZE = {
    "dataset.path": "pictures",
    "adapter.rank": 16,
    "training.schedule.warmup_steps": 100,
    "training.sigma.density": "shifted",
}
# A person or a thing is to appear when it is named, and nothing else is to change. A style is to
# change everything, so the other purposes leave preservation off.
_SUBJECT = {"dataset.preservation.share": 0.2}
_TINY = {
    "base.path": "embedded",
    "dataset.path": "pictures",
    "dataset.resolution": 64,
    "dataset.preservation.share": 0.5,
    "adapter.rank": 16,
    "adapter.targets": "all_linear",
    "adapter.factor": 4,
    "training.batch_size": 16,
    "training.checkpoint_every": 100,
    "training.optimizer.learning_rate": 0.01,
    "training.schedule.name": "cosine",
    "training.schedule.warmup_steps": 20,
    "memory.gradient_checkpointing": False,
    "preview.width": 64,
    "preview.height": 64,
    "preview.guidance": 3.0,
}

PRESETS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("qwen_image", "generate"): {
        **_FULL_SIZE,
        "base.path": "Qwen/Qwen-Image",
        "base.variant": "generate",
        "preview.guidance": 4.0,
    },
    ("qwen_image", "edit"): {
        **_FULL_SIZE,
        "base.path": "Qwen/Qwen-Image-Edit",
        "base.variant": "edit",
        "dataset.path": "pairs",
        "preview.guidance": 4.0,
    },
    ("qwen_image", "edit_plus"): {
        **_FULL_SIZE,
        "base.path": "Qwen/Qwen-Image-Edit-2509",
        "base.variant": "edit_plus",
        "dataset.path": "pairs",
        "preview.guidance": 4.0,
    },
    ("qwen_image", "tiny"): {
        **_TINY,
        "base.variant": "generate",
        "training.sigma.density": "shifted",
        "training.sigma.shift": 2.5,
    },
    ("qwen_image", "tiny_edit"): {
        **_TINY,
        "base.variant": "edit",
        "dataset.path": "pairs",
        "training.sigma.density": "uniform",
    },
    ("qwen_image", "subject"): {
        **_FULL_SIZE,
        **_SUBJECT,
        "base.path": "Qwen/Qwen-Image",
        "base.variant": "generate",
        "preview.guidance": 4.0,
    },
    ("flux", "subject"): {
        **_FULL_SIZE,
        **_SUBJECT,
        "family": "flux",
        "base.path": "black-forest-labs/FLUX.1-dev",
        "base.variant": "generate",
        "preview.guidance": 3.5,
    },
    ("flux", "generate"): {
        **_FULL_SIZE,
        "family": "flux",
        "base.path": "black-forest-labs/FLUX.1-dev",
        "base.variant": "generate",
        "preview.guidance": 3.5,
    },
    ("flux", "edit"): {
        **_FULL_SIZE,
        "family": "flux",
        "base.path": "black-forest-labs/FLUX.1-Kontext-dev",
        "base.variant": "edit",
        "dataset.path": "pairs",
        "preview.guidance": 2.5,
    },
}
"""What a family's run file says for a purpose, by YAML path; everything else is the default."""


def preset_config(family: str, purpose: str) -> RunConfig:
    """The settings of a preset.

    Args:
        family: Name of a family.
        purpose: What is trained, such as ``generate`` or ``edit``.

    Raises:
        ConfigError: When there is no such preset.
    """
    values = [f"{path}={format_value(value)}" for path, value in _preset(family, purpose).items()]
    return load_config({}, values)


def run_file_template(family: str, purpose: str = "generate") -> str:
    """Write a commented run file.

    Args:
        family: Name of a family.
        purpose: What is trained, such as ``generate`` or ``edit``.

    Returns:
        YAML that `load_config` reads as the preset. Settings for experts are commented out and
        show their default.

    Raises:
        ConfigError: When there is no such preset.
    """
    preset = _preset(family, purpose)
    lines = [
        f"# A run file for the family {family}, purpose {purpose}.",
        "#",
        "# Set dataset.path and output.name, then:",
        "#   adapter-trainer doctor run.yaml                     what will be trained",
        "#   adapter-trainer train run.yaml                      train",
        "#   adapter-trainer train run.yaml training.steps=500   with another value for this time",
        "# Relative paths are relative to this file's folder. Lines that begin with '#' and a name",
        "# show the default of a setting that is seldom changed.",
        *_section_lines(RunConfig, "", preset),
    ]
    return "\n".join(lines) + "\n"


def _preset(family: str, purpose: str) -> Mapping[str, Any]:
    preset = PRESETS.get((family, purpose))
    if preset is not None:
        return preset
    families = sorted({name for name, _ in PRESETS})
    if family not in families:
        near = difflib.get_close_matches(family, families, n=1, cutoff=0.4)
        raise ConfigError(
            f"the family {family!r}",
            "one of " + ", ".join(families),
            f"Did you mean {near[0]}?" if near else "Name one of these families.",
        )
    purposes = [word for name, word in PRESETS if name == family]
    near = difflib.get_close_matches(purpose, purposes, n=1, cutoff=0.4)
    raise ConfigError(
        f"the purpose {purpose!r} for {family}",
        "one of " + ", ".join(purposes),
        f"Did you mean {near[0]}?" if near else "Name one of these purposes.",
    )


def _section_lines(
    section: type[BaseModel], prefix: str, preset: Mapping[str, Any]
) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for name, field in section.model_fields.items():
        inner = section_of(field)
        if inner is not None or not prefix:
            yield ""
        yield from _comment(_help_text(field), indent)
        if inner is not None:
            yield f"{indent}{name}:"
            yield from _section_lines(inner, f"{prefix}{name}.", preset)
            continue
        path = prefix + name
        value = preset.get(path, field.get_default(call_default_factory=True))
        hidden = is_advanced(field) and path not in preset
        yield f"{indent}{'# ' if hidden else ''}{name}: {format_value(value)}"


def _help_text(field: FieldInfo) -> str:
    text = field.description or ""
    choices = [word for word in choices_of(field) if word not in text]
    if len(choices) > 1:
        text += " One of " + ", ".join(choices_of(field)) + "."
    bounds = "" if _bounded_by_pattern(field) else bounds_in_words(field)
    return f"{text} ({bounds})" if bounds else text


def _bounded_by_pattern(field: FieldInfo) -> bool:
    return any(getattr(part, "pattern", None) for part in field.metadata)


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent + "# ", subsequent_indent=indent + "# "
    )
