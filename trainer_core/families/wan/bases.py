"""In what one base of Wan differs from another: its clips, and the noise levels that it knows."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path, PurePath

from ...config import BaseSection, RunConfig
from ...errors import BaseModelError
from ...types import FrameGrid, StartFrames
from ...weights.diffusers_folder import read_json
from ...weights.header import open_weights
from ..experts import HIGH, named_role, names_one_of_two
from ..family_specs import LatentSpec
from .folder import REMEDY_OF_TWO
from .keys import OF_5B, settings, start_channels

_CLIPS_OF_5B = FrameGrid(every=4, rate=24.0)
_NAME_OF_5B = re.compile(r"5b(?![a-z0-9])")
_OF_ALL_LEVELS = re.compile(r"2[._]?1(?![0-9])|1[._]3b")
"""In the name of a model that knows all levels of noise."""

_OF_A_FOLDER = "diffusion_pytorch_model"
"""How files of Diffusers' folders begin, whose folder says which of two they are."""

_BORDER, _BORDER_OF_IMAGE_TO_VIDEO = 0.875, 0.9
"""Where A14B's makers go over to the other one (``boundary_ratio`` of Diffusers' pipelines)."""

_SWITCH = 0.889
"""Where ComfyUI's workflows do: after half of the steps, at shift 8."""


def channels(file: Path | None, folder: Path) -> tuple[int, int]:
    """Channels that a base reads and makes."""
    if file is not None:
        found = settings(open_weights(file))
    else:
        found = read_json(folder / "transformer" / "config.json")
    return found.get("in_channels", 16), found.get("out_channels", 16)


def _channels(base: BaseSection) -> tuple[int, int]:
    """Of one that is on the hub, or not here, by its name."""
    place, name = Path(base.path).expanduser(), base.path.lower()
    if place.is_dir() or place.is_file():
        return channels(place if place.is_file() else None, place)
    if _NAME_OF_5B.search(name):
        return OF_5B, OF_5B
    return (16 + start_channels(16), 16) if "i2v" in name and named_role(name) else (16, 16)


def of_base(spec: LatentSpec, base: BaseSection) -> LatentSpec:
    """`LatentSpec.of_base`: TI2V-5B has a rate of its own, and A14B I2V begins with a frame.

    Raises:
        BaseModelError: When the base's file cannot be read.
    """
    read, made = _channels(base)
    if read == OF_5B:
        return replace(spec, clips=_CLIPS_OF_5B)
    return replace(spec, starts=StartFrames(always=True, end=True)) if read > made else spec


def levels_of(base: BaseSection) -> tuple[float, float]:
    """`PredictionSpec.levels_of`: of one of two by its file's name, and as far as either goes.

    Raises:
        BaseModelError: When it is one of two, and its name does not say which.
    """
    name, (read, made) = _named(base), _channels(base)
    role = named_role(name)
    border = _BORDER_OF_IMAGE_TO_VIDEO if read > made else _BORDER
    if role:
        return (min(border, _SWITCH), 1.0) if role == HIGH else (0.0, max(border, _SWITCH))
    if names_one_of_two(name) or read > made:
        is_file = PurePath(base.path).suffix.lower() in (".safetensors", ".gguf")
        raise BaseModelError(
            f"base.path: {name} is one of two models, and its name does not say which",
            "the one for high noise or the one for low noise",
            "Put high_noise or low_noise into the file's name." if is_file else REMEDY_OF_TWO,
        )
    return 0.0, 1.0


def levels_note(config: RunConfig) -> str:
    """`PredictionSpec.levels_note`."""
    base, sigma = config.base, config.training.sigma
    name = _named(base)
    if role := named_role(name):
        return f"Trained as the model for {role} noise: levels {sigma.min:g} to {sigma.max:g}."
    if _channels(base)[0] == OF_5B or _OF_ALL_LEVELS.search(name.lower()):
        return ""
    return (
        "Trained at all levels of noise, as Wan 2.1 is. For one of the two models of Wan 2.2 A14B "
        "put high_noise or low_noise into the file's name."
    )


def _named(base: BaseSection) -> str:
    """The name that says what a base is."""
    path = PurePath(base.path)
    return path.parent.name if path.name.startswith(_OF_A_FOLDER) else path.name
