"""What families share whose models are Diffusers': a family takes of it what fits."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

from ..diffusion import ShiftSettings, flow_sigmas, sigma_shift
from ..errors import BaseModelError
from ..weights.base_location import BaseLocation
from ..weights.diffusers_folder import read_json

_UNSUPPORTED = (
    "use_karras_sigmas",
    "use_exponential_sigmas",
    "use_beta_sigmas",
    "invert_sigmas",
    "stochastic_sampling",
)


def read_shift(location: BaseLocation) -> ShiftSettings:
    """Read ``scheduler/scheduler_config.json``.

    Args:
        location: The base; its own scheduler comes before that of the encoders' folder.

    Returns:
        The settings, with Diffusers' defaults for what the file leaves out.

    Raises:
        BaseModelError: When the file is damaged or asks for a schedule that is not drawn here.
    """
    path = location.folder / "scheduler" / "scheduler_config.json"
    if not path.is_file():
        path = location.encoders / "scheduler" / "scheduler_config.json"
    config = read_json(path)
    for name in _UNSUPPORTED:
        if config.get(name):
            raise BaseModelError(
                f"{path} sets {name}",
                "the plain Euler schedule of flow matching",
                f"Set {name} to false in a copy of the base; no published base needs it.",
            )
    terminal = config.get("shift_terminal")
    try:
        return ShiftSettings(
            dynamic=bool(config.get("use_dynamic_shifting", False)),
            shift=float(config.get("shift", 1.0)),
            base_shift=float(config.get("base_shift", 0.5)),
            max_shift=float(config.get("max_shift", 1.15)),
            base_tokens=int(config.get("base_image_seq_len", 256)),
            max_tokens=int(config.get("max_image_seq_len", 4096)),
            exponential=config.get("time_shift_type", "exponential") == "exponential",
            terminal=None if terminal is None else float(terminal),
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise BaseModelError(
            f"{path} holds what is no number where one belongs ({error})",
            "the settings of a flow-matching scheduler",
            "Copy or download the base again; the file is damaged.",
        ) from error


LatentShape = Callable[[BaseLocation, int, int], tuple[int, int, int]]
"""`Family.latent_shape`."""


def scheduled_sigmas(
    latent_shape: LatentShape, location: BaseLocation, steps: int, width: int, height: int
) -> Tensor:
    """The noise levels that the base's own scheduler would sample with.

    Args:
        latent_shape: The family's. Its images are read as patches of 2x2 latents.
        location: The base.
        steps: Number of steps, at least 1.
        width: Width of the image in pixels.
        height: Height of the image in pixels.

    Returns:
        `[steps + 1]`, float32, from 1 down to 0.
    """
    return flow_sigmas(steps, read_shift(location), _tokens(latent_shape(location, width, height)))


def scheduled_shift(
    latent_shape: LatentShape, location: BaseLocation, width: int, height: int
) -> float:
    """The shift that the base's own scheduler would use for an image.

    Args:
        latent_shape: As `scheduled_sigmas` takes it.
        location: The base.
        width: Width of the image in pixels.
        height: Height of the image in pixels.
    """
    return sigma_shift(read_shift(location), _tokens(latent_shape(location, width, height)))


def _tokens(shape: tuple[int, int, int]) -> int:
    return (shape[1] // 2) * (shape[2] // 2)


def pack(latents: Tensor) -> Tensor:
    """Turn every 2x2 patch into one token.

    Args:
        latents: `[B, C, h, w]`, with even h and w.

    Returns:
        `[B, (h/2) (w/2), 4C]`; within a token the order is channel, row, column.
    """
    batch, channels, height, width = latents.shape
    patches = latents.reshape(batch, channels, height // 2, 2, width // 2, 2)
    return patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


def unpack(tokens: Tensor, height: int, width: int) -> Tensor:
    """Undo `pack`.

    Args:
        tokens: `[B, (h/2) (w/2), 4C]`.
        height: h, even.
        width: w, even.

    Returns:
        `[B, C, h, w]`.
    """
    patches = tokens.unflatten(2, (-1, 2, 2)).unflatten(1, (height // 2, width // 2))
    return patches.permute(0, 3, 1, 4, 2, 5).flatten(4).flatten(2, 3)


_SIDE = 32


def area_size(width: int, height: int, area: int) -> tuple[int, int]:
    """The size of about so many pixels that has an image's own shape.

    Args:
        width: Width of the image in pixels.
        height: Height of the image in pixels.
        area: Number of pixels wanted.

    Returns:
        Width and height, each a multiple of 32 and at least 32.

    Source: Diffusers, ``calculate_dimensions`` of the Qwen-Image edit pipelines.
    """
    ratio = width / height
    wide = math.sqrt(area * ratio)
    high = wide / ratio
    return max(round(wide / _SIDE), 1) * _SIDE, max(round(high / _SIDE), 1) * _SIDE
