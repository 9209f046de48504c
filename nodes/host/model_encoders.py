"""`PlainEncoders`: the graph's CLIP and VAE for a MODEL of no known family, by ComfyUI's facts.

Captions are encoded as CLIPTextEncode does it, images as VAE Encode does it, and brought into the
space of the denoiser by the model's own latent format.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ...trainer_core.errors import InputError
from .clip_and_vae_inputs import (
    Clip,
    Tokens,
    Vae,
    clip_identity,
    reads_weights,
    require,
    require_plain,
    vae_identity,
)
from .conditioning import stored_conditioning
from .control_clips import ControlRule, encoded_control
from .ordinary_tensors import ordinary_copy

if TYPE_CHECKING:
    import contextlib

    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from ...trainer_core.data.captions.length import TextLimit
    from ...trainer_core.types import Conditioning, FrameGrid, Sound
    from .audio_vae import AudioVae
    from .family_encoders import GraphText
    from .start_frames import EndpointEncoder
    from .trained_text import TrainedGraphText

_PROBE = "A photo of a cat, (red:1.2)"
_REMEDY = "Connect the CLIP that the model is sampled with."
_VAE_REMEDY = "Connect the VAE that the model is sampled with."
_VIDEO = 3


@dataclass(frozen=True, slots=True)
class LatentSpace:
    """Where a MODEL's latents live.

    Attributes:
        format: ComfyUI's latent format, which scales them, as a node has set it.
        channels: Of the latents.
        dimensions: Axes of a latent besides its channels: 3 of a model of videos.
        pixels: Of an image's side for each latent.
    """

    format: Any
    channels: int
    dimensions: int
    pixels: int

    def normalized(self, raw: Tensor) -> Tensor:
        """Latents of the VAE as the denoiser sees them: `[1, C, h, w]` or `[1, C, f, h, w]`."""
        return self.format.process_in(self._shaped(raw))

    def raw(self, latents: Tensor) -> Tensor:
        """Undo `normalized`."""
        return self.format.process_out(self._shaped(latents))

    def _shaped(self, latents: Tensor) -> Tensor:
        if self.dimensions == _VIDEO:
            return latents.unsqueeze(2) if latents.ndim == _VIDEO + 1 else latents
        return latents[:, :, 0] if latents.ndim == _VIDEO + 2 else latents


@dataclass(eq=False)
class PlainEncoders:
    """Encoders of a graph's MODEL, in the trainer's convention (`EncoderSource`).

    Attributes:
        name: What the model is called.
        space: Its latents.
        clip: The CLIP input's value; None where nothing is connected.
        vae: The VAE input's value; None where nothing is connected.
        on_close: Called by `close`.
        trained: The CLIP whose text encoders are trained, which reads a text's tokens in each step;
            None where texts are encoded once.
        sight: How the CLIP is shown control images; None where the denoiser alone is given them.
        clips: Lengths of the clips that the model generates; None of a model of images.
        probe: Called with a short text before anything else is encoded; raises an error where the
            model cannot read it.
        endpoints: Encodes the first and last frame of a clip, where the model takes them.
        control: How a control clip steers the model; None where none does.
        text_rate: Frames per second of clips that the model is told beside each text; None where it
            is not, or takes its own.
        audio: The VAE of sound; None where sound is not trained.
    """

    name: str
    space: LatentSpace
    clip: Clip | None
    vae: Vae | None
    on_close: Callable[[], None] | None = None
    trained: TrainedGraphText | None = None
    sight: GraphText | None = None
    probe: Callable[[Conditioning], None] | None = None
    clips: FrameGrid | None = None
    endpoints: EndpointEncoder | None = None
    control: ControlRule | None = None
    text_rate: float | None = None
    audio: AudioVae | None = None

    def __post_init__(self) -> None:
        """Refuse CLIP and VAE whose changes nobody could notice, and another model's VAE.

        Raises:
            InputError: When one carries hooks or injections, or the VAE is one of videos and the
                model's latents are those of images, or the other way round.
        """
        if self.clip is not None:
            require_plain(self.clip.patcher, "CLIP")
        if self.vae is not None:
            require_plain(getattr(self.vae, "patcher", None), "VAE")
            own = getattr(self.vae, "latent_dim", self.space.dimensions)
            if own != self.space.dimensions:
                kinds = {2: "images", 3: "frames of a video, also where it is one image"}
                raise InputError(
                    f"a VAE whose latents are those of {kinds.get(own, own)} at the VAE input, and "
                    f"{self.name}",
                    f"a VAE of {kinds.get(self.space.dimensions, self.space.dimensions)}",
                    _VAE_REMEDY,
                )

    @cached_property
    def identity(self) -> str:
        """Names everything that the encoded tensors depend on, for the cache's keys."""
        scaling = type(self.space.format).__name__
        parts = ["comfyui model", self.name, scaling, *(["tokens"] if self.trained else [])]
        parts += [f"sees {self.sight.variant}"] if self.sight else []
        if self.clip is not None:
            layer = getattr(self.clip, "layer_idx", None)
            parts.append(clip_identity(self.clip, f"{layer} {self.clip.tokenize(_PROBE)}"))
        if self.vae is not None:
            parts.append(vae_identity(self.vae))
        if self.endpoints is not None and self.endpoints.vision is not None:
            parts.append(self.endpoints.identity)
        if self.text_rate is not None:
            parts.append(f"told {self.text_rate:g} frames a second")
        return " ".join(parts)

    @property
    def sounds(self) -> str:
        """Names the VAE of sound, for the cache's keys; empty where there is none."""
        return "" if self.audio is None else self.audio.identity

    @property
    def weighs(self) -> bool:
        """Whether the CLIP reads round brackets as weights."""
        return reads_weights(self.clip)

    def open(self) -> PlainEncoders:
        """Encoders; nothing is loaded before they are used."""
        return self

    def encode_text(self, caption: str, controls: Sequence[Image] = ()) -> Conditioning:
        """Encode a caption as CLIPTextEncode does, or give its tokens where a CLIP is trained.

        Control images change it where the CLIP sees them, as ComfyUI's nodes for editing show them.
        Of any other the denoiser alone is given them, as by Set Reference Latent. What rate clips
        have stands beside it as LTXVConditioning writes it.
        """
        self._try()
        if self.trained is not None:
            return self.trained.tokens(caption)
        clip = require(self.clip, "CLIP", "to encode captions", _REMEDY)
        sight = self.sight
        tokens = sight.tokens_seeing(caption, controls) if sight else clip.tokenize(caption)
        rate = {} if self.text_rate is None else {"frame_rate": self.text_rate}
        return _encoded(clip, tokens, caption, rate)

    def encode_image(self, pixels: Tensor) -> Tensor:
        """Encode images `[B, 3, H, W]` in [-1, 1] to `[B, C, h, w]`, float32 on the CPU.

        Raises:
            InputError: When the VAE is another model's.
        """
        import torch

        self._try()
        vae = require(self.vae, "VAE", "to encode images", _VAE_REMEDY)
        with torch.inference_mode():
            frames = ((pixels.float() + 1) / 2).movedim(1, -1)
            # One by one: a batch would be the frames of a video to a VAE that knows videos.
            raw = [vae.encode(frame[None]) for frame in frames]
            self._require_fitting(raw[0], pixels.shape)
            latents = torch.cat([self.space.normalized(each.float().cpu()) for each in raw])
        return ordinary_copy(latents[:, :, 0] if latents.ndim == _VIDEO + 2 else latents)

    def encode_clip(self, frames: Tensor) -> Tensor:
        """Encode a clip `[T, 3, H, W]`, uint8, to `[C, f, h, w]`, float32 on the CPU.

        Raises:
            InputError: When the VAE is another model's, or makes another number of frames.
        """
        import torch

        self._try()
        vae = require(self.vae, "VAE", "to encode clips", _VAE_REMEDY)
        assert self.clips is not None
        with torch.inference_mode():
            raw = vae.encode(frames.movedim(1, -1).float() / 255)
            self._require_fitting(raw, frames.shape, self.clips.latent_frames(len(frames)))
            latents = self.space.normalized(raw.float().cpu())
        return ordinary_copy(latents[0])

    def encode_endpoints(self, first: Tensor, last: Tensor | None, count: int) -> Conditioning:
        """Encode a clip's first frame `[3, H, W]`, uint8, and maybe the last; of so many frames.

        Raises:
            InputError: When the model reads them as a vision model sees them, and there is none.
        """
        import torch

        vae = require(self.vae, "VAE", "to encode start frames", _VAE_REMEDY)
        assert self.endpoints is not None
        with torch.inference_mode():
            return self.endpoints(vae, first, last, count)

    def encode_control(self, frames: Tensor) -> Tensor:
        """Encode a control clip `[T, 3, H, W]`, uint8, to latents of the VAE `[C, f, h, w]`."""
        import torch

        vae = require(self.vae, "VAE", "to encode control clips", _VAE_REMEDY)
        assert self.control is not None
        with torch.inference_mode():
            return encoded_control(self.control, vae, frames)

    def encode_sound(self, sound: Sound, seconds: float) -> Tensor:
        """Encode a clip's sound to `[c, t, b]`, float32 on the CPU."""
        import torch

        assert self.audio is not None
        with torch.inference_mode():
            raw = self.audio.encode(sound.waveform, sound.rate, seconds)
            return ordinary_copy(self.space.format.process_in(raw.float().cpu())[0])

    def _try(self) -> None:
        if self.probe is not None and self.clip is not None:
            probe, self.probe = self.probe, None
            probe(_encoded(self.clip, self.clip.tokenize(_PROBE), _PROBE))

    def _require_fitting(self, raw: Tensor, shape: Sequence[int], frames: int = 1) -> None:
        channels, side = self.space.channels, self.space.pixels
        if raw.ndim == _VIDEO + 2 and raw.shape[2] != frames:
            raise InputError(
                f"latents of {raw.shape[2]} frames from the VAE input for {shape[0]} frames",
                f"{frames}, as {self.name} has them",
                _VAE_REMEDY,
            )
        wanted = (channels, shape[-2] // side, shape[-1] // side)
        found = (raw.shape[1], *raw.shape[-2:])
        if found != wanted or not self.space.dimensions <= raw.ndim - 1 <= _VIDEO + 1:
            raise InputError(
                f"latents of shape {list(raw.shape)} from the VAE input",
                f"{wanted[0]} channels of {wanted[2]} x {wanted[1]} for an image of {shape[-1]} x "
                f"{shape[-2]} pixels, as {self.name} has them",
                _VAE_REMEDY,
            )

    def decoder(self) -> Callable[[Tensor], Tensor]:
        """What turns normalised latents into pixels in [-1, 1].

        `[B, C, h, w]` becomes `[B, 3, H, W]`, and of clips `[B, C, f, h, w]` `[B, T, 3, H, W]`.
        """
        vae = require(self.vae, "VAE", "to decode previews", _VAE_REMEDY)

        def decode(latents: Tensor) -> Tensor:
            import torch

            with torch.inference_mode():
                pixels = vae.decode(self.space.raw(latents.float().cpu()))
                if pixels.ndim == _VIDEO + 2 and latents.ndim == _VIDEO + 1:
                    pixels = pixels[:, 0]
                found = pixels[..., :3].movedim(-1, -3).float() * 2 - 1
            return ordinary_copy(found)

        return decode

    def text_limit(self) -> TextLimit | None:
        """None: how much of a caption is read is the CLIP's matter."""
        return None

    def join_text(
        self,
        transformer: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
        at_end: contextlib.ExitStack,
    ) -> None:
        """Make the CLIP's text encoders parts of the denoiser, where they are.

        They compute in float32 on the device that ComfyUI has for them, as they do otherwise.
        """
        del dtype, device
        assert self.trained is not None
        self.trained.join(transformer, at_end)

    def close(self) -> None:
        """The weights are ComfyUI's to unload; `decoder` goes on working, for more previews."""
        if self.on_close is not None:
            self.on_close()


def _encoded(
    clip: Clip, tokens: Tokens, caption: str, beside: Mapping[str, float] | None = None
) -> Conditioning:
    import torch

    with torch.inference_mode():
        entries = clip.encode_from_tokens_scheduled(tokens)
        entries = [[attended, {**more, **(beside or {})}] for attended, more in entries]
        return stored_conditioning(entries, caption)
