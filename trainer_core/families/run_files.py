"""`load_config` with what only the families know: their names and variants; and templates."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..config import RunConfig, read_run_file
from ..config.optimizer import OWN_DEFAULTS
from ..config.read_run_file import commented_run_file
from ..config.yaml_dialect import format_value
from ..errors import ConfigError
from ..printable import nearest
from .graph_model_denoiser import GRAPH_MODEL
from .registry import PACKAGES

Template = Mapping[str, Any]
"""What a run file says for a purpose, by YAML path; everything else is the default."""

FULL_SIZE: Template = {
    "dataset.path": "images",
    "adapter.rank": 16,
    "training.schedule.warmup_steps": 100,
    "training.sigma.density": "shifted",
}
"""What most templates for a published base share."""

SUBJECT: Template = {**FULL_SIZE, "dataset.preservation.share": 0.2}
"""For a person or a thing, which is to appear when it is named, and nothing else is to change.

A style is to change everything, so the other purposes leave preservation off.
"""


def load_config(
    source: str | Path | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    tell: Callable[[str], None] | None = None,
) -> RunConfig:
    """`config.read_run_file.load_config`, which also refuses a family that there is not."""
    # A run in a graph may have a base that only its host knows; its run file is read all the same.
    known, unlisted = _choices(), {"family": (GRAPH_MODEL,)}
    return read_run_file.load_config(source, overrides, tell, choices=known, unlisted=unlisted)


def templates() -> Mapping[str, Mapping[str, Template]]:
    """Each family's name to its templates by purpose; no family itself is imported."""
    modules = {
        name: importlib.import_module(f"{package}.templates", __package__)
        for name, package in PACKAGES.items()
    }
    return {name: module.TEMPLATES for name, module in modules.items()}


def words_elsewhere(program: str) -> Mapping[str, Template]:
    """What another trainer, as a family's ``ELSEWHERE`` names it, calls the bases trained here.

    Its word to what a run file says for such a base, with the family.
    """
    found: dict[str, Template] = {}
    for name, package in PACKAGES.items():
        module = importlib.import_module(f"{package}.templates", __package__)
        words = getattr(module, "ELSEWHERE", {}).get(program, {})
        found |= {word: {"family": name, **values} for word, values in words.items()}
    return found


def template_config(family: str, purpose: str) -> RunConfig:
    """The settings of a family's template for a purpose, such as ``generate`` or ``edit``.

    Raises:
        ConfigError: When there is no such template.
    """
    return config_of(_values(family, purpose))


def config_of(values: Template) -> RunConfig:
    """The settings of these values, else of the defaults; `ConfigError` for wrong ones."""
    return load_config({}, [f"{path}={format_value(value)}" for path, value in values.items()])


def run_file_template(family: str, purpose: str = "generate") -> str:
    """Write a commented run file: YAML that `load_config` reads as `template_config`.

    Settings for experts are commented out and show their default.

    Raises:
        ConfigError: As `template_config`.
    """
    title = f"A run file for the family {family}, purpose {purpose}."
    return run_file_of(title, _values(family, purpose))


def run_file_of(
    title: str,
    values: Template,
    notes: Sequence[str] = (),
    remarks: Mapping[str, str] | None = None,
    missing: Sequence[str] = ("dataset.path", "output.name"),
) -> str:
    """Write a commented run file that says these values; `load_config` reads it as `config_of`.

    Beyond the defaults, by YAML path. Notes stand below the title, remarks above their setting, and
    a person has to set first what is `missing`.
    """
    # What another optimizer takes where nothing is said is not the default that is declared.
    name = values.get("training.optimizer.name", "")
    own = {
        f"training.optimizer.{each}": value for each, value in OWN_DEFAULTS.get(name, {}).items()
    }
    return commented_run_file(
        title, {**own, **values}, _choices(), notes=notes, remarks=remarks or {}, missing=missing
    )


def _choices() -> Mapping[str, Sequence[str]]:
    return {"family": tuple(PACKAGES)}


def _values(family: str, purpose: str) -> Template:
    known = templates()
    if family not in known:
        raise _unknown(f"the family {family!r}", "families", family, known)
    if purpose not in known[family]:
        raise _unknown(f"the purpose {purpose!r} for {family}", "purposes", purpose, known[family])
    return {"family": family, **known[family][purpose]}


def _unknown(found: str, kind: str, word: str, known: Mapping[str, Any]) -> ConfigError:
    near = nearest(word, known, cutoff=0.4)
    remedy = f"Did you mean {near}?" if near else f"Name one of these {kind}."
    return ConfigError(found, "one of " + ", ".join(known), remedy)
