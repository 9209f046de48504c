"""Qwen-Image: Qwen2.5-VL of the graph's CLIP, and what its VAE is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....trainer_core.errors import DatasetError, InputError
from .family import GraphFamily
from .inputs import Clip, Tokens, encode_tokens, ordinary, require_controls, require_plain
from .pictures import VaeFacts

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from ....trainer_core.data.captions import TextLimit
    from ....trainer_core.types import Conditioning

_CLIP_REMEDY = "Use Load CLIP, type qwen_image, with qwen_2.5_vl_7b."
_VAE = VaeFacts(
    marker="decoder.conv1.weight",
    dimensions=5,
    channels=16,
    # Source: ComfyUI, comfy.latent_formats.Wan21; the same in the base's vae/config.json.
    mean=(
        *(-0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508),
        *(0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921),
    ),
    deviation=(
        *(2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743),
        *(3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160),
    ),
    title="the VAE of Qwen-Image",
    remedy="Use Load VAE with qwen_image_vae.safetensors.",
)
_CONTROLS = {"generate": (0, 0), "edit": (1, 1), "edit_plus": (1, 64)}

# ComfyUI's edit nodes show the text encoder its pictures at these areas.
_SEEN_AREA = {"edit": 1024 * 1024, "edit_plus": 384 * 384}
_IMAGE = "<|image_pad|>"
_MESSAGE_START = 151644
_MESSAGE_HEAD = 3  # "<|im_start|>user\n"
_PROBE = "A photo of a cat, (red:1.2)"


def require_fitting_clip(clip: Clip) -> None:
    """Check that a CLIP is Qwen-Image's.

    Args:
        clip: The graph's CLIP.

    Raises:
        InputError: When it is another model's: other parts, or Qwen2.5-VL with another template, as
            the loader's other types put it together.
    """
    from ....trainer_core.families.qwen_image.encode import prompt_text

    require_plain(clip.patcher, "CLIP")
    model = clip.cond_stage_model
    parts = sorted(name for name, _ in model.named_children())
    template = getattr(clip.tokenizer, "llama_template", None)
    edit_template = getattr(clip.tokenizer, "llama_template_images", None)
    fits = template == prompt_text("generate", "{}", ())
    fits = fits and edit_template == prompt_text("edit", "{}", (1,))
    if parts != ["qwen25_7b"] or not fits:
        other = " with another prompt template" if parts == ["qwen25_7b"] else ""
        raise InputError(
            f"a CLIP made of {', '.join(parts)}{other} ({type(model).__name__}) at the CLIP input",
            "the CLIP of Qwen-Image: qwen_2.5_vl_7b, loaded as type qwen_image",
            _CLIP_REMEDY,
        )


class QwenText:
    """Captions as CLIPTextEncode and TextEncodeQwenImageEdit(Plus) encode them.

    Args:
        clip: The graph's CLIP.
        variant: ``generate``, ``edit`` or ``edit_plus``.
        text_length: Most text tokens behind the template's prefix, with the template's end; tokens
            of pictures come on top. Unset, nothing is cut, as in ComfyUI.
    """

    def __init__(self, clip: Clip, variant: str, text_length: int | None) -> None:
        self.clip = clip
        self.variant = variant
        self.text_length = text_length

    def encode(self, caption: str, controls: Sequence[Image]) -> Conditioning:
        """Encode a caption, for edit variants together with its control pictures.

        Args:
            caption: The caption or instruction; may be empty.
            controls: The control pictures, RGB and upright.

        Returns:
            ``text_embeddings`` `[L, D]`, float32 on the CPU, without the template's prefix.

        Raises:
            DatasetError: When the number of pictures does not fit the variant, or the caption has
                the token that stands for a picture.
        """
        require_controls(self.variant, caption, len(controls), *_CONTROLS[self.variant])
        if controls and _IMAGE in caption:
            raise DatasetError(
                f"the caption {caption[:60]!r} has {_IMAGE}",
                "a caption without the token that stands for a picture",
                "Take it out; the control pictures are put in by the trainer.",
            )
        pictures = [_as_seen(picture, _SEEN_AREA[self.variant]) for picture in controls]
        text, extra = encode_tokens(self.clip, self.tokens(caption, pictures))
        text = ordinary(text[0])
        mask = extra.get("attention_mask")
        # Only there when the caption itself has the end token, behind which nothing counts.
        return {"text_embeddings": text if mask is None else text[ordinary(mask[0]).bool()]}

    def tokens(self, caption: str, pictures: Sequence[Tensor]) -> Tokens:
        """ComfyUI's tokens of a caption in its template; a picture is one token here."""
        from ....trainer_core.families.qwen_image.encode import prompt_text

        text = prompt_text(self.variant, caption, [1] * len(pictures))
        # A text that begins like the template is not put into the tokenizer's own again.
        tokens = self.clip.tokenize(text, images=list(pictures))
        if self.text_length is None:
            return tokens
        return {
            name: [row[: _longest(row, self.text_length, len(pictures))] for row in rows]
            for name, rows in tokens.items()
        }

    def limit(self) -> TextLimit | None:
        """How long captions may be, pictures apart; None where nothing is cut."""
        from ....trainer_core.data.captions import TextLimit

        if self.text_length is None:
            return None
        return TextLimit(lambda caption, pictures: self._count(caption), self.text_length)

    def _count(self, caption: str) -> int:
        from ....trainer_core.families.qwen_image.encode import prompt_text

        tokens = self.clip.tokenize(prompt_text(self.variant, caption, ()))
        return max(len(row) - _message_start(row) for rows in tokens.values() for row in rows)

    def signature(self) -> str:
        """Length and the tokens of a probe; layer and tokenizer settings that were set on it."""
        settings = (getattr(self.clip, "layer_idx", None), self.clip.cond_stage_model.dtypes)
        return f"{self.text_length} {settings} {self.tokens(_PROBE, ())}"


def _longest(row: Sequence[tuple[Any, ...]], text_length: int, pictures: int) -> int:
    wanted = _message_start(row) + text_length + pictures
    # A picture is never cut off, nor the token that closes it.
    places = [place for place, entry in enumerate(row) if isinstance(entry[0], dict)]
    return max(wanted, places[-1] + 2) if places else wanted


def _message_start(row: Sequence[tuple[Any, ...]]) -> int:
    starts = [place for place, entry in enumerate(row) if entry[0] == _MESSAGE_START]
    return starts[1] + _MESSAGE_HEAD


def _as_seen(picture: Image, area: int) -> Tensor:
    """A picture `[1, h, w, 3]` in [0, 1] at the area that ComfyUI's edit node gives it."""
    import numpy
    import torch
    from torch.nn.functional import interpolate

    values = torch.from_numpy(numpy.array(picture.convert("RGB")).astype(numpy.float32) / 255.0)
    scale = math.sqrt(area / (picture.width * picture.height))
    size = (round(picture.height * scale), round(picture.width * scale))
    return interpolate(values.movedim(-1, 0)[None], size=size, mode="area").movedim(1, -1)


QWEN_IMAGE = GraphFamily(
    name="qwen_image",
    controls=_CONTROLS,
    clip_remedy=_CLIP_REMEDY,
    require_fitting_clip=require_fitting_clip,
    make_text=QwenText,
    vae=_VAE,
)
