"""Prompts of a graph, encoded by the embedded base's own encoders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .datasets.image_folder import single_images

if TYPE_CHECKING:
    from torch import Tensor

    from ...trainer_core.types import Conditioning


def encode_prompts(
    texts: Sequence[str], controls: Any = None
) -> tuple[list[Conditioning], list[Tensor]]:
    """Encode prompts as training encodes captions; the encoders are let go of afterwards.

    An empty prompt is the negative prompt of training's previews. All control images, a batch `[B,
    H, W, C]`, are for every prompt. Gives one conditioning for each prompt, and the normalised
    latents `[C, h, w]` of each image.

    Raises:
        DatasetError: When the images are none or too many, or a prompt has the token that stands
            for an image.
    """
    import torch
    from PIL import Image

    from ...trainer_core.bases.locate import locate_base
    from ...trainer_core.config import BaseSection
    from ...trainer_core.data.crop import fit_to_bucket
    from ...trainer_core.data.image import to_pixels
    from ...trainer_core.demo.vocabulary import IMAGE_SIZE
    from ...trainer_core.errors import DatasetError
    from ...trainer_core.families.registry import embedded_family
    from ...trainer_core.types import Bucket

    family, size = embedded_family(), Bucket(IMAGE_SIZE, IMAGE_SIZE)
    images = [] if controls is None else single_images([controls])
    shown = [fit_to_bucket(Image.fromarray(each), size) for each in images]
    # Of the variants that take so many images the first is meant: one image is an edit.
    takes = family.graph.controls if family.graph else {}
    fitting = (name for name, (least, most) in takes.items() if least <= len(shown) <= most)
    variant = next(fitting, None)
    if variant is None:
        raise DatasetError(
            f"controls: {len(shown)} images",
            f"at most {max(most for _, most in takes.values())} control images of one prompt",
            "Connect fewer images to controls.",
        )
    section = BaseSection.model_validate({"path": "embedded", "variant": variant})
    location = locate_base(section, family, has_controls=bool(shown))
    encoders = family.load_encoders(location, torch.float32, "cpu")
    return (
        [encoders.encode_text(text, shown) for text in texts],
        [encoders.encode_image(to_pixels(image)[None])[0] for image in shown],
    )
