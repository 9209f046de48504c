"""Captions encoded by the graph's CLIP, as the family says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....trainer_core.errors import DatasetError, InputError
from .inputs import Clip, Tokens, encode_tokens, ordinary, require_controls, require_plain

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

    from ....trainer_core.data.captions import TextLimit
    from ....trainer_core.families.family import ClipSpec, GraphSpec, Row
    from ....trainer_core.types import Conditioning

_PROBE = "A photo of a cat, (red:1.2)"


def require_fitting_clip(clip: Clip, spec: ClipSpec) -> None:
    """Check that a CLIP belongs to the family.

    Args:
        clip: The graph's CLIP.
        spec: The family's CLIP.

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


class GraphText:
    """Captions as ComfyUI's CLIPTextEncode, or its node for editing with the family, encodes them.

    Args:
        clip: The graph's CLIP.
        spec: What the family says of it.
        variant: The base's variant.
        text_length: Most text tokens; unset, what the family's `ClipSpec` says.
    """

    def __init__(self, clip: Clip, spec: GraphSpec, variant: str, text_length: int | None) -> None:
        self.clip = clip
        self.spec = spec.clip
        self.variant = variant
        self.controls = spec.controls[variant]
        self.text_length = text_length or spec.clip.text_length

    def encode(self, caption: str, controls: Sequence[Image]) -> Conditioning:
        """Encode a caption, and what the text encoder sees of its control images.

        Weights such as ``(red:1.2)`` and ``embedding:name`` mean what they mean in ComfyUI.

        Args:
            caption: The caption or instruction; may be empty.
            controls: The control images, RGB and upright.

        Returns:
            What the family's headless encoders yield too, float32 on the CPU.

        Raises:
            DatasetError: When the number of images does not fit the variant, or the caption has
                the token that stands for an image.
        """
        require_controls(self.variant, caption, len(controls), *self.controls)
        token, see = self.spec.image_token, self.spec.see
        if controls and token and token in caption:
            raise DatasetError(
                f"the caption {caption[:60]!r} has {token}",
                "a caption without the token that stands for a picture",
                "Take it out; the control pictures are put in by the trainer.",
            )
        seen = [see(self.variant, image) for image in controls] if see else []
        text, extra = encode_tokens(self.clip, self.tokens(caption, seen))
        found = self.spec.conditioning(text[0], extra)
        return {name: ordinary(tensor) for name, tensor in found.items()}

    def tokens(self, caption: str, images: Sequence[Tensor]) -> Mapping[str, Sequence[Row]]:
        """ComfyUI's tokens of a caption, cut to length; an image is one token here."""
        tokens = self._tokenize(caption, images, self.text_length)
        return self.spec.read(tokens, self.text_length, len(images))

    def limit(self) -> TextLimit | None:
        """How long captions may be, images apart; None where nothing is cut."""
        from ....trainer_core.data.captions import TextLimit

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
        given: dict[str, Any] = {"images": list(images)} if self.spec.see else {}
        options = self.spec.options(least)
        if options:
            given["tokenizer_options"] = options
        return self.clip.tokenize(text, **given)
