"""Draws the preview prompts with a base and an adapter that the graph holds."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..trainer_core.config import RunConfig
from ..trainer_core.config.reading import load_config
from . import comfy_host
from .graph_run import guest, source_of
from .run_values import base_values, merged
from .sockets import BaseChoice, PreviewChoice

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor


def draw_previews(
    node_id: str,
    base: BaseChoice,
    previews: PreviewChoice,
    lora: Mapping[str, Tensor] | None,
    clip: Any,
    vae: Any,
    strength: float,
) -> Tensor:
    """Draw each prompt once.

    Args:
        node_id: The node that shows the progress.
        base: What to draw with.
        previews: What to draw.
        lora: An adapter in any layout that is read, or None for the base alone.
        clip: Text encoder, or None for a base with its own.
        vae: Picture decoder, or None for a base with its own.
        strength: Factor on the adapter.

    Returns:
        `[B, H, W, 3]`, float32, in [0, 1].

    Raises:
        TrainerError: When base, prompts or adapter cannot be used.
    """
    values = merged(
        base_values(base),
        {"preview": previews.values, "output": {"dir": str(comfy_host.output_folder())}},
    )
    config = load_config(values)
    file = None if lora is None else _kept(lora)
    try:
        with guest() as device:
            return _draw(config, base, clip, vae, file, strength, node_id, str(device))
    finally:
        if file is not None:
            file.unlink(missing_ok=True)


def _draw(
    config: RunConfig,
    base: BaseChoice,
    clip: Any,
    vae: Any,
    adapter: Path | None,
    strength: float,
    node_id: str,
    device: str,
) -> Tensor:
    import torch

    from ..trainer_core.training.memory import borrowed_threads
    from ..trainer_core.training.studio import draw_prompts

    bar = comfy_host.ProgressBar(node_id, len(config.preview.prompts))
    drawn: list[Tensor] = []
    make_source = source_of(clip, vae, base)
    memory = config.memory.model_copy(update={"device": device})
    config = config.model_copy(update={"memory": memory})
    with borrowed_threads(config.memory, embedded=base.embedded):
        for pixels in draw_prompts(config, adapter, strength, make_source):
            drawn.append((pixels / 2 + 0.5).clamp(0, 1).permute(1, 2, 0).float().cpu())
            if bar.show(len(drawn)) or comfy_host.interrupted():
                comfy_host.raise_interrupted()
    return torch.stack(drawn)


def _kept(lora: Mapping[str, Tensor]) -> Path:
    from ..trainer_core.storage import save_tensors

    path = comfy_host.output_folder() / f".adapter-{uuid.uuid4().hex}.safetensors"
    save_tensors(path, lora)
    return path
