"""A denoiser that a host has in memory already, in the place of the files of a base."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BaseModelError
from ..types import FrameGrid, Sound, StartFrames

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from .family_specs import Predict

GRAPH_MODEL = "graph_model"
"""What a run file calls the family of such a base, which only the host can make."""

OF_FILES = ("blocks_to_swap", "base_format", "compute", "compile", "master", "checkpoint_inputs")
"""Memory settings that say how the weights of a base's files are kept, and how it computes."""


@dataclass(frozen=True, slots=True)
class OtherExpert:
    """A second denoiser that samples the noise levels of which a base knows nothing.

    Wan 2.2 has two: one for high noise, with which sampling begins, and one for low noise.

    Attributes:
        predict: As of `PredictionSpec`, with the same parameterization as the base.
        open: Gives the frozen denoiser, and takes it back at the end of a stack.
        begins: Whether it is the one for high noise.
        border: Noise levels of a sampling, down to 0, to the first one of the one for low noise.
    """

    predict: Predict
    open: Callable[[contextlib.ExitStack], nn.Module]
    begins: bool
    border: Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class LentSound:
    """A host's VAE of the sound of clips, where both are trained.

    Attributes:
        shape: Frames of a clip to the shape of its sound's latents `(c, t, b)`.
        decode: Latents `[c, t, b]` to sound.
        always: Whether the model makes sound with an image too.
    """

    shape: Callable[[int], tuple[int, ...]]
    decode: Callable[[Tensor], Sound]
    always: bool = False


@dataclass(frozen=True, slots=True)
class LentDenoiser:
    """What a host has in memory, and lends to a run.

    Attributes:
        title: What people call the model.
        fingerprint: Names its weights, so that a run goes on with the model that it began with.
        channels: Of its latents.
        pixels: Of an image's side for each latent.
        open: Gives the frozen denoiser, which computes in a dtype on a device, and takes it back at
            the end of a stack; none of it is copied.
        clips: Lengths of the clips that it generates; None of a model of images.
        starts: What it may be given of a clip; None where it takes no frame.
        steered: Whether a control clip steers what it generates.
        sigmas: Steps of a generation to the noise levels `[steps + 1]`, float32, falling to 0, that
            the host's own sampler would use.
        sound: Of a model that makes sound, where that is trained.
        other: Samples at the other levels of noise; None where this one samples at all of them.
    """

    title: str
    fingerprint: str
    channels: int
    pixels: int
    open: Callable[[torch.dtype, torch.device, contextlib.ExitStack], nn.Module]
    sigmas: Callable[[int], Tensor]
    clips: FrameGrid | None = None
    other: OtherExpert | None = None
    starts: StartFrames | None = None
    steered: bool = False
    sound: LentSound | None = None


def only_the_host(what: str) -> BaseModelError:
    """The error of who asks the core alone for something that the host has."""
    return BaseModelError(
        f"{what} of a model that was on a ComfyUI graph (family: {GRAPH_MODEL})",
        "the graph, which has the model, its CLIP and its VAE",
        "Run the workflow again in ComfyUI, with Base From Model.",
    )
