"""Settings of the frozen base model."""

from __future__ import annotations

from typing import Literal

from .section import Section, setting

Variant = Literal["auto", "generate", "edit", "edit_plus"]


class BaseSection(Section):
    """Where the frozen weights come from and how text is read."""

    path: str = setting(
        "embedded",
        "The base model: 'embedded' (the tiny one that ships with the trainer), a Diffusers "
        "folder, a single .safetensors file of the denoiser (bf16, fp16, fp32, fp8_e4m3fn or "
        "fp8_scaled) as ComfyUI has them, or a hub id 'owner/name'. Only a hub id contacts the "
        "network.",
    )
    encoders: str | None = setting(
        None,
        "A Diffusers folder with text encoder and VAE, when the base has none; a single file has "
        "none.",
        advanced=True,
    )
    variant: Variant = setting(
        "auto",
        "How conditions are built: 'generate' (text only), 'edit' (one control picture) or "
        "'edit_plus' (several). 'auto' takes 'generate' without control pictures, else what the "
        "base folder or the file's name says.",
    )
    text_length: int | None = setting(
        None,
        "Most text tokens that the encoder yields. Unset: what ComfyUI uses for the family.",
        advanced=True,
        ge=1,
        le=4096,
    )
