"""What of Wan's Diffusers folders is refused, and what they say of two denoisers."""

from __future__ import annotations

from pathlib import Path

from ...config.base_path import DENOISERS
from ...errors import BaseModelError
from ...weights.diffusers_folder import read_json
from .keys import start_channels

REMEDY_OF_TWO = (
    "Add /transformer, the one for high noise, or /transformer_2, the one for low noise, to "
    "base.path."
)
"""Where a base is two models."""

_REMEDY = "Train it in ComfyUI, through Base From Model, or name a folder of Wan 2.1 T2V."


def boundary(folder: Path) -> float | None:
    """The noise level at which a folder's pipeline goes over from one denoiser to the other.

    None where it has one denoiser.

    Raises:
        BaseModelError: When it has two, and says no level between 0 and 1, or nothing that can be
            read of the second.
    """
    index = read_json(folder / "model_index.json")
    second, level = index.get(DENOISERS[1]), index.get("boundary_ratio")
    if second is None:
        return None
    if not isinstance(second, list) or not second:
        raise BaseModelError(
            f"{folder / 'model_index.json'} says {second!r} of {DENOISERS[1]}",
            "a library and a class, or null for both",
            "Download the file again.",
        )
    if second[0] is None:
        return None
    if not isinstance(level, int | float) or not 0.0 < level < 1.0:
        raise BaseModelError(
            f"{folder / 'model_index.json'} has two denoisers, and boundary_ratio is {level!r}",
            "the noise level at which one goes over to the other, between 0 and 1",
            "Download the file again.",
        )
    return float(level)


def check_folder(folder: Path, part: str) -> None:
    """Of two denoisers one, which is given a text and maybe a start frame.

    TI2V-5B takes a time for each token, which is the same for all where no frame is given.

    Raises:
        BaseModelError: When nothing says which of two is meant, or the model is given more.
    """
    if boundary(folder) is not None and not part:
        raise BaseModelError(
            f"base.path: {folder} has two denoisers, one for high noise and one for low noise",
            "one of the two",
            REMEDY_OF_TWO,
        )
    transformer = read_json(folder / (part or DENOISERS[0]) / "config.json")
    read, made = (transformer.get(name, 16) for name in ("in_channels", "out_channels"))
    ends = transformer.get("pos_embed_seq_len")
    if ends or read not in (made, made + start_channels(made)):
        raise BaseModelError(
            f"base.path: {folder} is a Wan model that is given more than a text and a start frame",
            "a text-to-video model of Wan, or an image-to-video one",
            _REMEDY,
        )
