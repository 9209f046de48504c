"""Settings of the pictures that a run draws while it trains."""

from __future__ import annotations

from .section import Section, setting


class PreviewSection(Section):
    """What is drawn, how often, and with which seed."""

    every: int = setting(0, "Steps between previews, the first before step 1; 0 draws none.", ge=0)
    prompts: list[str] = setting([], "One picture is drawn for each prompt.")
    controls: list[list[str]] = setting(
        [], "Control pictures (paths) for each prompt, in order; empty for text-to-image."
    )
    width: int = setting(1024, "Width of a preview in pixels.", ge=16, le=8192)
    height: int = setting(1024, "Height of a preview in pixels.", ge=16, le=8192)
    steps: int = setting(20, "Sampling steps of a preview.", ge=1, le=1000)
    guidance: float = setting(
        1.0,
        "Guidance scale. 1 draws without a second pass; guidance-distilled bases are "
        "conditioned on the value instead.",
        ge=0.0,
        le=100.0,
    )
    negative_prompt: str = setting("", "What the second pass is told.", advanced=True)
    seed: int = setting(0, "Seed of the first prompt's noise; the next prompts count up.", ge=0)
