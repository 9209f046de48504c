"""`GraphEncoders`: captions and images of a known family, encoded by CLIP and VAE of the graph.

What ComfyUI's CLIPTextEncode, or its node for editing with a family, gives is what is trained on,
in the names and layout of the headless encoders (`trainer_core.families`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

from ...trainer_core.errors import BaseModelError, ConfigError, DatasetError, InputError
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
from .ordinary_tensors import ordinary_copy

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image
    from torch import Tensor, nn

    from ...trainer_core.data.cache.encoder_protocols import Encoders
    from ...trainer_core.data.captions.length import TextLimit
    from ...trainer_core.families.family import Family
    from ...trainer_core.families.graph_spec import ClipSpec, GraphSpec, Row, VaeSpec
    from ...trainer_core.families.trainable_text import TrainableText
    from ...trainer_core.types import Conditioning
    from ...trainer_core.weights.base_location import BaseLocation

_PROBE = "A photo of a cat, (red:1.2)"
_GRID = 8
_OF_ONE_IMAGE = re.compile(r"image[-_ ]?edit(?![-_ ]*(?:plus|25\d\d))", re.IGNORECASE)


def require_fitting_clip(clip: Clip, spec: ClipSpec) -> None:
    """Check that a CLIP belongs to the family.

    Raises:
        InputError: When it is another model's: other parts, or another prompt template, as the
            loader's other types put the same parts together.
    """
    require_plain(clip.patcher, "CLIP")
    model = clip.cond_stage_model
    parts = sorted(name for name, _ in model.named_children())
    same = parts == sorted(spec.parts) and not any(hasattr(model, each) for each in spec.foreign)
    tokenizer = clip.tokenizer
    fits = all(getattr(tokenizer, name, None) == text for name, text in spec.templates.items())
    if not (same and fits):
        other = " with another prompt template" if same else ""
        raise InputError(
            f"a CLIP made of {', '.join(parts)}{other} ({type(model).__name__}) at the CLIP input",
            spec.title,
            spec.remedy,
        )


class GraphText(NamedTuple):
    """Captions as ComfyUI's CLIPTextEncode, or its node for editing with the family, encodes them.

    Attributes:
        clip: The graph's CLIP; ComfyUI loads it to its device.
        spec: What the family says of it.
        variant: The base's variant.
        controls: The least and the largest number of control images of a caption.
        text_length: Most text tokens; None where nothing is cut.
        trained: The text encoder that is a part of the denoiser, which reads its tokens.
    """

    clip: Clip
    spec: ClipSpec
    variant: str
    controls: tuple[int, int]
    text_length: int | None
    trained: TrainableText | None = None

    def encode(self, caption: str, controls: Sequence[Image]) -> Conditioning:
        """Encode a caption, which may be empty, and what its text encoder sees of control images.

        They are RGB and upright; none where the denoiser is given none. Weights such as
        ``(red:1.2)`` and ``embedding:name`` mean what they mean in ComfyUI. What the family's
        headless encoders yield too, float32 on the CPU.

        Raises:
            DatasetError: When the number of images does not fit the variant, or the caption has
                the token that stands for an image.
        """
        import torch

        text, images = self._seeing(caption, controls)
        tokens = text.tokens(caption, images)
        with torch.inference_mode():
            ((rows, extra),) = self.clip.encode_from_tokens_scheduled(tokens)
        found = {k: ordinary_copy(v) for k, v in self.spec.conditioning(rows[0], extra).items()}
        if self.trained is not None:
            del found[self.trained.pooled]
            found[self.trained.tokens] = self._numbers(caption, tokens)
        return found

    def tokens_seeing(self, caption: str, controls: Sequence[Image]) -> Tokens:
        """ComfyUI's tokens as its node for editing makes them, with the images in their places.

        Raises:
            DatasetError: As `encode`.
        """
        text, images = self._seeing(caption, controls)
        return text._tokenize(caption, images, None)

    def _seeing(self, caption: str, controls: Sequence[Image]) -> tuple[GraphText, list[Tensor]]:
        """How a caption is read, and what is seen of its control images."""
        from ...trainer_core.families.chat_text import refuse_image_token, require_controls

        require_controls(caption, len(controls), self.controls, self.variant)
        token, see = self.spec.image_token, self.spec.see
        if controls and token:
            refuse_image_token(caption, token)
        images = [see(self.variant, image) for image in controls] if see else []
        alone = self.spec.without_images.get(self.variant, self.variant)
        text = self if controls else self._replace(variant=alone)
        return text, [image for image in images if image is not None]

    def _numbers(self, caption: str, tokens: Mapping[str, Sequence[Row]]) -> Tensor:
        """The tokens of the text encoder that is trained: of a long caption the first 77.

        What a weight such as ``(red:1.2)`` changes is not in the pooled text.
        """
        import torch

        numbers = [each[0] for each in tokens[self.spec.trainable[0]][0]]
        if not all(isinstance(each, int) for each in numbers):
            raise DatasetError(
                f"the caption {caption[:60]!r} has an embedding, and the text encoder is trained",
                "words alone: an embedding is of a text encoder that stays as it is",
                "Take embedding:name out of the caption, or leave training.text_encoder.train out.",
            )
        return torch.tensor(numbers)

    def tokens(self, caption: str, images: Sequence[Tensor]) -> Mapping[str, Sequence[Row]]:
        """ComfyUI's tokens of a caption, cut to length; an image is one token here."""
        tokens = self._tokenize(caption, images, self.text_length)
        return self.spec.read(tokens, self.text_length, len(images))

    def limit(self) -> TextLimit | None:
        """How long captions may be, images apart; None where nothing is cut."""
        from ...trainer_core.data.captions.length import TextLimit

        if self.text_length is None:
            return None
        return TextLimit(
            lambda caption, images: self.spec.count(self._tokenize(caption, (), None)),
            self.text_length,
        )

    def signature(self) -> str:
        """What the result depends on besides the weights: length, settings, tokens of a probe."""
        settings = (getattr(self.clip, "layer_idx", None), self.clip.cond_stage_model.dtypes)
        return f"{self.text_length} {settings} {self.tokens(_PROBE, ())}"

    def _tokenize(self, caption: str, images: Sequence[Tensor], least: int | None) -> Tokens:
        text = self.spec.prompt(self.variant, caption, len(images))
        pictures: dict[str, Any] = {"images": list(images)} if self.spec.see else {}
        options = self.spec.options(least)
        if options:
            pictures["tokenizer_options"] = options
        return self.clip.tokenize(text, **pictures)


def seeing_text(clip: Clip | None, title: str) -> GraphText | None:
    """How a CLIP that sees control images is given them; None for one that sees none.

    As ComfyUI's nodes for editing do it. Nothing but the file's name, which is the MODEL's title,
    tells a model of one image, which is shown in another way, from one of several.
    """
    from ...trainer_core.families.registry import FAMILIES

    variant = "edit" if _OF_ONE_IMAGE.search(title) else "edit_plus"
    if clip is None:
        return None
    for graph in (family.graph for family in FAMILIES.values() if family.graph):
        if graph.clip.see is not None and variant in graph.controls:
            with contextlib.suppress(InputError):
                require_fitting_clip(clip, graph.clip)
                return GraphText(
                    clip, graph.clip, variant, controls=graph.controls[variant], text_length=None
                )
    return None


def require_fitting_vae(vae: Vae, spec: VaeSpec) -> None:
    """Check that a VAE belongs to the family.

    Raises:
        InputError: When it is another kind, or a fast approximation for previews.
    """
    require_plain(getattr(vae, "patcher", None), "VAE")
    model, kind = vae.first_stage_model, "without weights"
    weights = {} if model is None else model.state_dict()
    marker = weights.get(spec.marker)
    wanted, read = (spec.dimensions, spec.channels), getattr(vae, "output_channels", None)
    fits = marker is not None and (marker.ndim, *marker.shape[1:2]) == wanted
    if not fits or read not in {spec.pixel_channels, None}:
        if fits:
            kind = f"that reads {read} channels of a pixel ({type(model).__name__})"
        elif model is not None:
            channels = getattr(vae, "latent_channels", "unknown")
            kind = f"of another kind ({type(model).__name__}, {channels} latent channels)"
        raise InputError(
            f"a VAE {kind} at the VAE input",
            f"{spec.title}, of {spec.channels * spec.patch**2} latent channels"
            + f" and {spec.pixel_channels} of a pixel" * fits,
            spec.remedy,
        )


class GraphVae(NamedTuple):
    """The graph's VAE, but in the normalised space of the denoiser."""

    vae: Vae
    spec: VaeSpec

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode images `[B, 3 or 4, H, W]`, in [-1, 1], without sampling.

        Sides are multiples of 8, or of 16 where a patch of the VAE's own latents is one place. `[B,
        C, h, w]`, float32 on the CPU: ``(latents - mean) / deviation``.

        Raises:
            InputError: When a side is no such multiple: ComfyUI would cut the image.
        """
        import torch

        grid = _GRID * self.spec.patch
        height, width = pixels.shape[-2:]
        if height % grid or width % grid:
            raise InputError(
                f"an image of {width} x {height} pixels for the VAE",
                f"sides that are multiples of {grid}",
                "Choose sizes that are multiples of the family's own step (16 or 32 pixels).",
            )
        with torch.inference_mode():
            frames = ((pixels.float() + 1) / 2).movedim(1, -1)
            raw = self._raw(frames)
            mean, deviation = self._statistics()
            latents = (raw.float().cpu() - mean) / deviation
        channels = self.spec.channels * self.spec.patch**2
        wanted = (len(pixels), channels, height // grid, width // grid)
        if tuple(latents.shape) != wanted:
            raise InputError(
                f"latents of shape {list(latents.shape)} from the VAE input",
                f"{list(wanted)} for an image of {width} x {height} pixels",
                self.spec.remedy,
            )
        return ordinary_copy(latents)

    def _raw(self, frames: Tensor) -> Tensor:
        import torch

        if self.spec.dimensions == 4:
            return self.vae.encode(frames)
        # One by one: a batch would be the frames of a video to a VAE that knows videos.
        return torch.cat([_still(self.vae.encode(frame[None])) for frame in frames])

    def decode(self, latents: Tensor) -> Tensor:
        """Undo `encode`: `[B, C, h, w]` to `[B, 3 or 4, H, W]`, float32 on the CPU, in [-1, 1]."""
        import torch

        with torch.inference_mode():
            mean, deviation = self._statistics()
            raw = latents.float().cpu() * deviation + mean
            video = self.spec.dimensions == 5
            pixels = self.vae.decode(raw.unsqueeze(2) if video else raw)
            still = pixels[:, 0] if pixels.ndim == 5 else pixels
            result = still[..., : self.spec.pixel_channels].movedim(-1, 1).float() * 2 - 1
        return ordinary_copy(result)

    def _statistics(self) -> tuple[Tensor, Tensor]:
        import torch

        mean = torch.tensor(self.spec.mean).view(1, -1, 1, 1)
        return mean, torch.tensor(self.spec.deviation).view(1, -1, 1, 1)


def _still(latents: Tensor) -> Tensor:
    """The first frame of a video, as a VAE that knows videos gives it."""
    return latents[:, :, 0] if latents.ndim == 5 else latents


@dataclass(eq=False)
class GraphEncoders:
    """The encoders of one family and variant, in the trainer's convention (`EncoderSource`).

    CLIP and VAE stay ComfyUI's: it loads them when they are used and keeps or unloads them. What
    needs an input that is not connected raises InputError.

    Attributes:
        name: The family's name.
        spec: What the family says of CLIP and VAE.
        variant: One of the family's variants.
        clip: The CLIP input's value.
        vae: The VAE input's value.
        text_length: As `graph_encoders` takes it.
        on_close: Called by `close`.
        trained: The text encoder that is trained as a part of the denoiser; None for none.
    """

    name: str
    spec: GraphSpec
    variant: str
    clip: Clip | None
    vae: Vae | None
    text_length: int | None
    on_close: Callable[[], None] | None = None
    trained: TrainableText | None = None

    @cached_property
    def identity(self) -> str:
        """Names everything that the encoded tensors depend on, for the cache's keys.

        That is family, variant, text length, template and tokenizer, and the weights of CLIP and
        VAE with their precision and patches.
        """
        parts = ["comfyui", self.name, self.variant, *(["tokens"] if self.trained else [])]
        if self.clip is not None:
            unused = self.spec.clip.unused_weights
            parts.append(clip_identity(self.clip, self._text().signature(), unused))
        if self.vae is not None:
            parts.append(vae_identity(self.vae))
        return " ".join(parts)

    @property
    def sounds(self) -> str:
        """None: no family by name generates sound."""
        return ""

    @property
    def weighs(self) -> bool:
        """Whether the CLIP reads round brackets as weights."""
        return reads_weights(self.clip)

    def open(self) -> Encoders:
        """Encoders; nothing is loaded before they are used."""
        return self

    def encode_image(self, pixels: Tensor) -> Tensor:
        """`GraphVae.encode`; of what is to be filled as the family does it."""
        encode = self._image("to encode images").encode
        masked = self.spec.encode_masked if pixels.shape[1] == 4 else None
        return masked(pixels, encode) if masked else encode(pixels)

    def encode_text(self, caption: str, controls: Sequence[Image] = ()) -> Conditioning:
        """`GraphText.encode`; captions are encoded one by one, as ComfyUI's CLIP takes one."""
        return self._text().encode(caption, controls)

    def decoder(self) -> Callable[[Tensor], Tensor]:
        """What turns normalised latents `[B, C, h, w]` into pixels `[B, 3 or 4, H, W]`."""
        return self._image("to decode previews").decode

    def text_limit(self) -> TextLimit | None:
        """How long captions may be; None without a CLIP, and where they are read whole."""
        return self._text().limit() if self.clip is not None else None

    def join_text(
        self,
        transformer: nn.Module,
        dtype: torch.dtype,
        device: torch.device,
        at_end: contextlib.ExitStack,
    ) -> None:
        """Join the CLIP's own text encoder as transformers' model, with a copy of its weights.

        Patches of the graph, such as a LoRA's, are not in it.
        """
        from ...trainer_core.families.trainable_text import filled_text, join_text

        del at_end

        spec, text = self.spec.clip, self.trained
        assert text is not None
        clip = require(self.clip, "CLIP", "to train its text encoder", spec.remedy)
        model = getattr(clip.cond_stage_model, spec.trainable[1]).transformer
        heads = model.text_model.encoder.layers[0].self_attn.heads
        own = filled_text(text, model.state_dict(), heads, dtype)
        join_text(transformer, own.to(device))

    def close(self) -> None:
        """The weights are ComfyUI's to unload; `decoder` goes on working, for more previews."""
        if self.on_close is not None:
            self.on_close()

    def _text(self) -> GraphText:
        spec = self.spec.clip
        clip = require(self.clip, "CLIP", "to encode captions", spec.remedy)
        length = self.text_length or spec.text_length
        controls = self.spec.controls[self.variant]
        return GraphText(
            clip, spec, self.variant, controls=controls, text_length=length, trained=self.trained
        )

    def _image(self, purpose: str) -> GraphVae:
        spec = self.spec.vae
        return GraphVae(require(self.vae, "VAE", purpose, spec.remedy), spec)


def graph_encoders(
    family: Family,
    location: BaseLocation,
    clip: Clip | None,
    vae: Vae | None,
    text_length: int | None,
    on_close: Callable[[], None] | None = None,
) -> GraphEncoders:
    """Wrap what is connected to a node's CLIP and VAE inputs, or None, as encoders and decoder.

    With their identity. What is missing is an error only once it is used. The base's variant and
    size say what fits. A `text_length` that is unset is what ComfyUI does with the family, which
    may be as many as the caption has. `on_close` is called when the encoders are not needed for
    now.

    Raises:
        InputError: When a CLIP or VAE belongs to another model, or to the family's base of another
            size.
        BaseModelError: When the family has no encoders in ComfyUI's graph.
        ConfigError: When the family does not have the variant.
    """
    spec = family.graph
    if spec is None:
        raise BaseModelError(
            f"the family {family.name!r} with CLIP and VAE of the graph",
            "a family whose CLIP and VAE the nodes know",
            "Leave CLIP and VAE unconnected, or choose another base.",
        )
    variant = location.variant
    if variant not in spec.controls:
        raise ConfigError(
            f"base.variant: {variant!r} with the family {family.name}",
            f"one of {', '.join(spec.controls)}",
            "Choose one of these.",
        )
    spec = spec.of(location)
    if clip is not None:
        require_fitting_clip(clip, spec.clip)
    if vae is not None:
        require_fitting_vae(vae, spec.vae)
    trained = family.text.trainable if location.reads_tokens else None
    return GraphEncoders(
        family.name,
        spec,
        variant,
        clip=clip,
        vae=vae,
        text_length=text_length,
        on_close=on_close,
        trained=trained,
    )
