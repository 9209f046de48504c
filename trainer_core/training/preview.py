"""Preview pictures of a run: the same prompts and seeds at every landmark."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ..config import PreviewSection
from .prompts import EncodedPrompt
from .sampling import DrawSettings, Painter


def draw_previews(
    painter: Painter,
    settings: PreviewSection,
    prompts: Sequence[EncodedPrompt],
    deliver: Callable[[int, Tensor], None],
) -> None:
    """Draw one picture for each prompt and hand each over as soon as it is drawn.

    Args:
        painter: Draws on the run's base with its adapter.
        settings: Size, steps, guidance and seed.
        prompts: The encoded prompts.
        deliver: Takes a prompt's index and its pixels `[3, H, W]` in [-1, 1].
    """
    size = DrawSettings(settings.width, settings.height, settings.steps, settings.guidance)
    for index, prompt in enumerate(prompts):
        # One at a time: a preview must not need more memory than a training step.
        deliver(index, painter.draw([prompt.request(settings.seed + index)], size)[0])
