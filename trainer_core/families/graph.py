"""What a family says of the CLIP and VAE on a ComfyUI graph: values, and functions on tensors.

Nothing here touches an object of ComfyUI: the nodes read these and do that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from ..types import Conditioning

Row = Sequence[tuple[Any, ...]]
"""ComfyUI's tokens of one text: (token id, or image or embedding, weight) each."""


@dataclass(frozen=True, slots=True)
class VaeSpec:
    """The VAE of a family.

    Attributes:
        marker: Name of a weight that other kinds of VAE do not have in this shape.
        dimensions: Of the marker; 5 for a VAE that also encodes videos.
        channels: Of the latents: the second size of the marker.
        mean: Of the latents, for each channel or for all.
        deviation: Standard deviation of the latents, for each channel or for all.
        title: Which VAE this is, for messages.
        remedy: Which loader and file to use.
    """

    marker: str
    dimensions: int
    channels: int
    mean: tuple[float, ...]
    deviation: tuple[float, ...]
    title: str
    remedy: str


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
            None where it sees no images.
        image_token: The token that stands for an image and may be in no caption; empty for none.
        unused_weights: Those that the encoded text does not depend on.
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
    see: Callable[[str, Image], Tensor] | None = None
    image_token: str = ""
    unused_weights: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GraphSpec:
    """One architecture, as ComfyUI's graph has it.

    Attributes:
        controls: Variant to the least and the largest number of control images.
        clip: The CLIP.
        vae: The VAE.
    """

    controls: Mapping[str, tuple[int, int]]
    clip: ClipSpec
    vae: VaeSpec
