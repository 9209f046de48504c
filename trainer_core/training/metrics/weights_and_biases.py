"""`WeightsAndBiases`: a tracker, where the user names it; what is sent to it, and what is not.

It is used directly and not through accelerate's tracker: that one writes to accelerate's log, which
refuses unless accelerate's state has been made, and that state is the whole process's: in ComfyUI
other nodes' runs would find it (docs/decisions/0050-metrics.md).
"""

from __future__ import annotations

import contextlib
import importlib.util
import netrc
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor

from ...config import RunConfig
from ...config.run import flattened
from ...data.image import from_pixels
from ...errors import InputError
from ...filesystem.storage import write_text
from ...filesystem.text_files import read_lines
from .tracker import Tracker

ABSENT = (
    "Weights & Biases is not installed, so it is told nothing (pip install "
    "'adapter-trainer[wandb]')."
)
PROJECT = "adapter-trainer"
"""Where runs go when the environment (WANDB_PROJECT) names no other project."""

_ID = "wandb_run_id"
_WORDS = frozenset(
    {
        "family",
        "adapter.kind",
        "adapter.init",
        "training.optimizer.name",
        "training.schedule.name",
        "training.precision",
        "memory.base_format",
        "memory.compute",
    }
)
"""Settings whose value is a word of ours; the others' words may be paths, names or captions."""

_PRIVATE: Mapping[str, Any] = {
    # What the library collects by itself: code, command, user, host, packages, what is printed.
    "console": "off",
    "disable_code": True,
    "disable_git": True,
    "disable_job_creation": True,
    "save_code": False,
    "x_disable_meta": True,
    "x_disable_machine_info": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
    "host": "",
    "username": "",
    "program": "",
    "silent": True,
    "init_timeout": 30.0,
}


class WeightsAndBiases(Tracker):
    """Tells Weights & Biases of a run: numbers, and preview images without their prompts.

    ``WANDB_MODE=offline`` keeps all of it on this machine. With ``output.metadata: full`` the whole
    run file, the run's name and the prompts are told, too.

    Args:
        warn: Told in one line why nothing is told, or no more.
    """

    title = "Weights & Biases"

    def __init__(self, folder: Path, config: RunConfig, warn: Callable[[str], None]) -> None:
        super().__init__(warn)
        self._run: Any = None
        self._library: Any = None
        full = config.output.metadata == "full"
        self._prompts: Sequence[str] = config.preview.prompts if full else ()
        if importlib.util.find_spec("wandb") is None:
            warn(ABSENT)
            return
        self._begin(lambda: self._start(folder, config, full=full))

    def _start(self, folder: Path, config: RunConfig, *, full: bool) -> None:
        import wandb

        self._library = wandb
        # What the environment and the library's own files say.
        _require_key(wandb.setup().settings)
        known, number = wandb.Settings.model_fields, _run_id(folder)
        settings = {name: value for name, value in _PRIVATE.items() if name in known}
        self._run = wandb.init(
            project=None if os.environ.get("WANDB_PROJECT") else PROJECT,
            name=f"{config.output.name} {folder.name}" if full else f"{config.family} {number[:4]}",
            id=number,
            resume="allow",
            dir=str(folder),
            config=told_settings(config, full=full),
            reinit="create_new",
            settings=wandb.Settings(**settings),
        )
        # Steps that a resumed run makes again are told again; the library's own counter refuses.
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def _add_values(self, values: Mapping[str, float], step: int) -> None:
        self._run.log({**values, "step": step})

    def _add_image(self, index: int, image: Tensor, step: int) -> None:
        caption = self._prompts[index] if index < len(self._prompts) else None
        shown = self._library.Image(from_pixels(image * 2 - 1), caption=caption)
        self._run.log({f"preview/{index}": shown, "step": step})

    def _add_clip(self, index: int, frames: Tensor, step: int, *, rate: float, movie: Path) -> None:
        if not movie.is_file():
            self._add_image(index, frames[len(frames) // 2], step)
            return
        caption = self._prompts[index] if index < len(self._prompts) else None
        video = self._library.Video(str(movie), caption=caption, format="mp4")
        self._run.log({f"preview/{index}": video, "step": step})

    def _finish(self) -> None:
        self._run.finish()


def told_settings(config: RunConfig, *, full: bool) -> dict[str, Any]:
    """The settings that leave this machine, by their YAML paths.

    Args:
        full: All of them; else numbers, switches and a few words of ours, so that no path, name or
            caption is among them.
    """
    found: dict[str, Any] = {}
    for path, value in flattened(config.model_dump(mode="json")).items():
        plain = value is None or isinstance(value, bool | int | float)
        if full or path in _WORDS or (plain and not path.startswith("dataset.folders")):
            found[path] = value
    return found


def _run_id(folder: Path) -> str:
    """By which a run that goes on is the same one there."""
    path = folder / _ID
    if not path.is_file():
        write_text(path, os.urandom(8).hex())
    return "".join(read_lines(path)).strip()


def _require_key(settings: Any) -> None:
    """Refuse to start where the library would ask for a key at the terminal, and wait for it."""
    if settings.mode not in {"online", "shared"}:
        return
    if any(os.environ.get(name) for name in ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")):
        return
    host = urlsplit(settings.base_url).hostname or ""
    for place in (os.environ.get("NETRC"), "~/.netrc", "~/_netrc"):
        with contextlib.suppress(OSError, netrc.NetrcParseError):
            if place and netrc.netrc(str(Path(place).expanduser())).authenticators(host):
                return
    raise InputError(
        "no key for it is known here",
        "one that `wandb login` has stored, or WANDB_API_KEY",
        "Run `wandb login`, or set WANDB_MODE=offline.",
    )
