"""What a family knows of the CLIP and VAE on a ComfyUI graph: facts, and functions on tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..types import Conditioning

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from ..weights.base_location import BaseLocation

Row = Sequence[tuple[Any, ...]]
"""ComfyUI's tokens of one text: (token id, or image or embedding, weight) each."""


@dataclass(frozen=True, slots=True)
class VaeSpec:
    """The VAE of a family.

    Attributes:
        marker: Name of a weight that other kinds of VAE do not have in this shape.
        dimensions: Of the marker; 5 for a VAE that also encodes videos.
        channels: The second size of the marker.
        patch: Side of the patch of the marker's channels that becomes one place of the latents.
        mean: Of the latents, for each channel or for all.
        deviation: Standard deviation of the latents, for each channel or for all.
        title: Which VAE this is, for messages.
        remedy: Which loader and file to use.
        pixel_channels: As `LatentSpec.channels`.
    """

    marker: str
    dimensions: int
    channels: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    title: str
    remedy: str
    pixel_channels: int = 3
    patch: int = 1


@dataclass(frozen=True, slots=True)
class ClipSpec:
    """The CLIP of a family, and how it encodes captions.

    Attributes:
        parts: Names of the text encoders that it is made of, in order.
        title: Which CLIP this is, for messages.
        remedy: Which loader and type to use.
        read: (token rows by text encoder, text length or None, number of images) to the rows that
            are encoded.
        count: Tokens of a caption without its images, of the rows that ComfyUI makes of it.
        conditioning: (text `[L, D]`, what ComfyUI gives beside it) to what is trained on. The
            tensors are ComfyUI's still.
        prompt: (variant, caption, number of control images) to the text that is tokenized.
        text_length: Text tokens when ``base.text_length`` is unset; None where nothing is cut then.
        options: Text length to options of ComfyUI's tokenizer; None for no least length.
        foreign: Attributes that only the model of another family with these parts has.
        templates: Attributes of ComfyUI's tokenizer to the prompt templates that they hold.
        see: (variant, control image) to what the text encoder is shown, `[1, h, w, 3]` in [0, 1];
            None where it sees no images, or none of a variant.
        image_token: The token that stands for an image and may be in no caption; empty for none.
        without_images: The variant whose text a caption without its control images has, where that
            is another than its own.
        unused_weights: Those that the encoded text does not depend on.
        trainable: What ComfyUI calls the text encoder that can be trained (`TextSpec.trainable`)
            among its token rows, and among ``parts``.
    """

    parts: tuple[str, ...]
    title: str
    remedy: str
    read: Callable[[Mapping[str, Sequence[Row]], int | None, int], dict[str, list[Row]]]
    count: Callable[[Mapping[str, Sequence[Row]]], int]
    conditioning: Callable[[Tensor, Mapping[str, Any]], Conditioning]
    prompt: Callable[[str, str, int], str] = lambda variant, caption, images: caption
    text_length: int | None = None
    options: Callable[[int | None], dict[str, Any]] = lambda text_length: {}
    foreign: tuple[str, ...] = ()
    templates: Mapping[str, str] = field(default_factory=dict)
    see: Callable[[str, Image], Tensor | None] | None = None
    image_token: str = ""
    without_images: Mapping[str, str] = field(default_factory=dict)
    unused_weights: tuple[str, ...] = ()
    trainable: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class ComfyuiClasses:
    """ComfyUI's classes for a base of other sizes than the published ones.

    Attributes:
        model: Module and class of its record of the model.
        settings: Diffusers' settings of the denoiser that ComfyUI's has by the same names.
        vae: Module and class of the VAE.
        vae_settings: Diffusers' settings of the VAE to those of ComfyUI's class.
        vae_published: The same as `vae_settings`, but as ComfyUI's loader takes them for granted.
        vae_name: (name of a weight in Diffusers' VAE, its settings) to ComfyUI's.
    """

    model: str
    settings: tuple[str, ...]
    vae: str
    vae_settings: Callable[[Mapping[str, Any]], dict[str, Any]]
    vae_published: Callable[[Mapping[str, Any]], dict[str, Any]]
    vae_name: Callable[[str, Mapping[str, Any]], str]


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """One architecture, as ComfyUI's graph has it.

    Attributes:
        controls: Variant to the least and the largest number of control images of a caption; edit
            variants also encode one without any.
        clip: The CLIP; of one base, where `clip_of` chooses.
        vae: The VAE.
        shift: A base to what moves the noise levels of KSampler in its workflow; None: what the
            base's own scheduler says.
        vaes: Variants to their VAE, where it is another.
        encode_masked: Pixels with transparency `[B, 4, H, W]` and what encodes pixels without, to
            the latents of the control image of a variant that fills (`LatentSpec.filled`).
        clip_of: A base to its CLIP, where bases of the family have different ones.
        model: Denoiser and VAE of other sizes; None for a family without an embedded base.
    """

    controls: Mapping[str, tuple[int, int]]
    clip: ClipSpec
    vae: VaeSpec
    shift: Callable[[BaseLocation], float] | None = None
    encode_masked: Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor] | None = None
    clip_of: Callable[[BaseLocation], ClipSpec] | None = None
    vaes: Mapping[str, VaeSpec] = field(default_factory=dict)
    model: ComfyuiClasses | None = None

    def of(self, location: BaseLocation) -> GraphSpec:
        """What it is for one base: with that base's CLIP and VAE.

        Raises:
            BaseModelError: When the base says nothing by which its CLIP could be chosen.
        """
        clip = self.clip if self.clip_of is None else self.clip_of(location)
        return replace(self, clip=clip, vae=self.vaes.get(location.variant, self.vae))
