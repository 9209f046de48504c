"""Settings of training a text encoder beside the denoiser."""

from __future__ import annotations

from .section import Section, setting


class TextEncoderSection(Section):
    """Training of CLIP-L, of bases that have it (of SDXL CLIP-G, too); it computes in each step."""

    train: bool = setting(
        False,
        "Leave it off; it seldom helps. Trains an adapter of CLIP-L as well, of bases that read "
        "it, and of SDXL's CLIP-G. In ComfyUI use Apply Adapter, or Load LoRA with the file, which "
        "have a CLIP input: a loader for the model alone leaves this part out.",
        advanced=True,
    )
    learning_rate: float | None = setting(
        None,
        "Leave it unset, a tenth of the optimizer's learning rate. Highest learning rate of the "
        "text encoder's adapter.",
        advanced=True,
        gt=0.0,
        le=10.0,
    )
    rank: int = setting(
        8,
        "Leave it; the text encoder is small. Rank of its adapter.",
        advanced=True,
        ge=1,
        le=4096,
    )
