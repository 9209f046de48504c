"""Preview pictures of a run: the same prompts and seeds at every landmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ..config import PreviewSection
from ..diffusion.sampler import SamplingStopped
from .encoded_prompts import EncodedPrompt
from .sampler import DrawSettings, Painter


def draw_previews(
    painter: Painter,
    settings: PreviewSection,
    prompts: Sequence[EncodedPrompt],
    deliver: Callable[[int, Tensor], None],
    stop: Callable[[], bool],
) -> None:
    """Draw one picture for each prompt and hand each over as soon as it is drawn.

    Whoever says stop gets no further pictures, and learns of it by asking the same question.

    Args:
        painter: Draws on the run's base with its adapter.
        settings: Size, steps, guidance and seed.
        prompts: The encoded prompts.
        deliver: Takes a prompt's index and its pixels `[3, H, W]` in [-1, 1].
        stop: Asked before each prompt and after each sampling step whether to give up.
    """
    size = DrawSettings(settings.width, settings.height, settings.steps, settings.guidance)
    for index, prompt in enumerate(prompts):
        if stop():
            return
        try:
            # One at a time: a preview must not need more memory than a training step.
            pixels = painter.draw([prompt.request(settings.seed + index)], size, stop)[0]
        except SamplingStopped:
            return
        deliver(index, pixels)
