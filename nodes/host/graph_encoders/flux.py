"""FLUX.1: CLIP-L and T5 of the graph's CLIP, and what its VAE is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ....trainer_core.errors import InputError
from .family import GraphFamily
from .inputs import Clip, Tokens, encode_tokens, ordinary, require_controls, require_plain
from .pictures import VaeFacts

if TYPE_CHECKING:
    from ....trainer_core.data.captions import TextLimit
    from ....trainer_core.types import Conditioning

_CLIP_REMEDY = (
    "Use DualCLIPLoader, type flux, with clip_l and t5xxl, or the CLIP of a FLUX.1 checkpoint."
)
_VAE = VaeFacts(
    marker="decoder.conv_in.weight",
    dimensions=4,
    channels=16,
    # Source: ComfyUI, comfy.latent_formats.Flux; the same in the base's vae/config.json.
    mean=(0.1159,),
    deviation=(1 / 0.3611,),
    title="the VAE of FLUX.1",
    remedy="Use Load VAE with ae.safetensors, or the VAE of a FLUX.1 checkpoint.",
)
_CONTROLS = {"generate": (0, 0), "edit": (1, 1)}

# ComfyUI pads T5's tokens to this number.
_LENGTH = 256
_PROBE = "A photo of a cat, (red:1.2)"


def require_fitting_clip(clip: Clip) -> None:
    """Check that a CLIP is FLUX.1's.

    Args:
        clip: The graph's CLIP.

    Raises:
        InputError: When it is another model's, such as SDXL's, SD3's or a single CLIP-L.
    """
    require_plain(clip.patcher, "CLIP")
    model = clip.cond_stage_model
    parts = sorted(name for name, _ in model.named_children())
    # SD3's may be made of the same two, but it has a place for a third and joins them otherwise.
    if parts != ["clip_l", "t5xxl"] or hasattr(model, "clip_g"):
        raise InputError(
            f"a CLIP made of {', '.join(parts)} ({type(model).__name__}) at the CLIP input",
            "the CLIP of FLUX.1: clip_l and t5xxl, loaded as type flux",
            _CLIP_REMEDY,
        )


class FluxText:
    """Captions as CLIPTextEncode encodes them, at one length.

    Args:
        clip: The graph's CLIP.
        variant: ``generate`` or ``edit``.
        text_length: Number of T5 tokens; unset, ComfyUI's 256. Shorter captions are padded up to
            it. Longer ones, which ComfyUI would encode at their own length, are cut there and end
            with T5's end token, as Diffusers cuts them, because the captions of a batch have to be
            equally long. CLIP-L sees the first 75 tokens on both sides.
    """

    def __init__(self, clip: Clip, variant: str, text_length: int | None) -> None:
        self.clip = clip
        self.variant = variant
        self.text_length = text_length or _LENGTH

    def encode(self, caption: str, controls: Sequence[Any]) -> Conditioning:
        """Encode a caption.

        Weights such as ``(red:1.2)`` and ``embedding:name`` mean what they mean in ComfyUI.

        Args:
            caption: The caption or instruction; may be empty.
            controls: The control picture of the edit variant; the text encoders do not see it.

        Returns:
            ``text_embeddings`` `[text_length, D]` of T5 and ``pooled_text`` `[P]` of CLIP-L,
            float32 on the CPU.

        Raises:
            DatasetError: When the number of control pictures does not fit the variant.
        """
        require_controls(self.variant, caption, len(controls), *_CONTROLS[self.variant])
        text, extra = encode_tokens(self.clip, self.tokens(caption))
        return {
            "text_embeddings": ordinary(text[0]),
            "pooled_text": ordinary(extra["pooled_output"][0]),
        }

    def tokens(self, caption: str) -> Tokens:
        """ComfyUI's tokens of a caption, T5's exactly ``text_length`` of them."""
        tokens, row = self._split(caption, self.text_length)
        if len(row) > self.text_length:
            row = [*row[: self.text_length - 1], row[-1]]
        return {**tokens, "t5xxl": [row]}

    def limit(self) -> TextLimit:
        """How long captions may be: in T5's tokens, with its end token."""
        from ....trainer_core.data.captions import TextLimit

        return TextLimit(
            lambda caption, pictures: len(self._split(caption, 1)[1]), self.text_length
        )

    def _split(self, caption: str, least: int) -> tuple[Tokens, list[tuple[Any, ...]]]:
        """ComfyUI's tokens of a caption, T5's padded to a length, and T5's alone."""
        options = {"t5xxl_min_length": least, "t5xxl_min_padding": None}
        tokens = self.clip.tokenize(caption, tokenizer_options=options)
        (row,) = tokens["t5xxl"]
        return tokens, row

    def signature(self) -> str:
        """Length and the tokens of a probe; layer and tokenizer settings that were set on it."""
        settings = (getattr(self.clip, "layer_idx", None), self.clip.cond_stage_model.dtypes)
        return f"{self.text_length} {settings} {self.tokens(_PROBE)}"


FLUX = GraphFamily(
    name="flux",
    controls=_CONTROLS,
    clip_remedy=_CLIP_REMEDY,
    require_fitting_clip=require_fitting_clip,
    make_text=FluxText,
    vae=_VAE,
    # The pooled text is taken from before it, and the files that people have lack it.
    unused_weights=("clip_l.transformer.text_projection.weight",),
)
