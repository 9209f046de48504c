"""Settings of training the text encoder beside the denoiser."""

from __future__ import annotations

from .section import Section, setting


class TextEncoderSection(Section):
    """Training of CLIP-L, of bases that have it; texts are then encoded in each step."""

    train: bool = setting(
        False,
        "Leave it off. Also trains an adapter of CLIP-L, of bases that have one. Texts are "
        "then encoded in each step: more memory, slower. Load it with Load LoRA, which has a "
        "CLIP input.",
        advanced=True,
    )
    learning_rate: float = setting(
        1e-5,
        "Leave it, well below that of the denoiser. Highest learning rate of the text encoder's "
        "adapter.",
        advanced=True,
        gt=0.0,
        le=10.0,
    )
    rank: int = setting(
        8,
        "Leave it. Rank of the text encoder's adapter.",
        advanced=True,
        ge=1,
        le=768,
    )
