"""What a cache asks of encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

from PIL import Image
from torch import Tensor

from ...types import ENDS, START, Conditioning, Sound


class Encoders(Protocol):
    """What turns images and captions into what the denoiser reads.

    Encoders that can encode several captions at a time have `encode_texts` as well, see there.
    """

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Encode pixels `[B, 3, H, W]` in [-1, 1] to normalised latents `[B, C, h, w]`.

        Of a family whose VAE reads transparency they are `[B, 4, H, W]`. What comes out of an image
        does not depend on the others.
        """
        ...

    def encode_text(self, caption: str, controls: Sequence[Image.Image]) -> Conditioning:
        """Encode a caption, and what the text encoder sees of the control images, which are RGB.

        What the denoiser masks out, such as padding, is not in it.
        """
        ...


class ClipEncoders(Encoders, Protocol):
    """Encoders of a base of videos."""

    def encode_clip(self, frames: Tensor) -> Tensor:
        """Encode a clip: normalised latents `[C, f, h, w]`.

        Args:
            frames: `[T, 3, H, W]`, uint8, a number of frames that the base trains.
        """
        ...

    def encode_endpoints(self, first: Tensor, last: Tensor | None, count: int) -> Conditioning:
        """Encode what a base is given of a clip of so many frames (`StartFrames`).

        Args:
            first: Its first frame, `[3, H, W]`, uint8.
            last: As well; None where the first one alone is given.

        Returns:
            Tensors by name. One that is called ``clean`` `[f]` is 1 for the frames of latents that
            the base does not predict.
        """
        ...

    def encode_control(self, frames: Tensor) -> Tensor:
        """Encode a clip that steers another one, of a base that is steered (`Family.steered`).

        Args:
            frames: `[T, 3, H, W]`, uint8.

        Returns:
            `[C, f, h, w]`, as the base reads it.
        """
        ...

    def encode_sound(self, sound: Sound, seconds: float) -> Tensor:
        """Encode the sound of a clip that is trained so long (`EncoderSource.sounds`).

        Returns:
            Normalised latents `[c, t, b]`, as many as the base generates for a clip of that length.
        """
        ...


def of_clips(encoders: Encoders) -> ClipEncoders:
    """The same, of a base of videos."""
    return cast("ClipEncoders", encoders)


def encode_endpoints(
    encoders: Encoders, first: Tensor, last: Tensor | None, count: int
) -> Conditioning:
    """As `ClipEncoders.encode_endpoints`, named under `START`, or `ENDS` with the last frame."""
    found = of_clips(encoders).encode_endpoints(first, last, count)
    kind = START if last is None else ENDS
    return {f"{kind}.{name}": each for name, each in found.items()}


def encode_texts(
    encoders: Encoders, captions: Sequence[str], controls: Sequence[Sequence[Image.Image]]
) -> list[Conditioning]:
    """Encode several captions at once where the encoders can, and one by one where not.

    Args:
        encoders: Those that can have a method ``encode_texts(captions, controls)`` that gives what
            `Encoders.encode_text` gives of each.
    """
    together = getattr(encoders, "encode_texts", None)
    if together is not None and len(captions) > 1:
        return list(together(captions, controls))
    return [
        encoders.encode_text(caption, images)
        for caption, images in zip(captions, controls, strict=True)
    ]
