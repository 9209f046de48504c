"""Draws the preview prompts with a base and an adapter that the graph holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...trainer_core.config import RunConfig
from ...trainer_core.families.run_files import load_config
from ..host import comfy_host
from .adapter_files import as_source
from .choices import BaseChoice, PreviewChoice
from .graph_run import guest, source_of
from .run_values import base_values, merged

if TYPE_CHECKING:
    from torch import Tensor

    from ...trainer_core.data.cache import Encoders
    from ...trainer_core.data.captions import TextLimit
    from ...trainer_core.families.family import Family
    from ...trainer_core.inference.encoders import EncoderSource, MakeSource
    from ...trainer_core.tensors.safetensors_reader import Source
    from ...trainer_core.weights.base_location import BaseLocation


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
    adapter = None if lora is None else as_source(lora)
    with guest("draw") as device:
        return _draw(config, base, clip, vae, adapter, strength, node_id, str(device))


def _draw(
    config: RunConfig,
    base: BaseChoice,
    clip: Any,
    vae: Any,
    adapter: Source | None,
    strength: float,
    node_id: str,
    device: str,
) -> Tensor:
    import torch

    from ...trainer_core.device import borrowed_threads
    from ...trainer_core.diffusion.flow import SamplingStopped
    from ...trainer_core.inference.pipeline import sample_prompts

    bar = comfy_host.ProgressBar(node_id, len(config.preview.prompts))
    drawn: list[Tensor] = []
    make_source = _unloading(source_of(clip, vae, base))
    memory = config.memory.model_copy(update={"device": device})
    config = config.model_copy(update={"memory": memory})
    with borrowed_threads(config.memory, embedded=base.embedded):
        stop = comfy_host.interrupted
        try:
            for pixels in sample_prompts(config, adapter, strength, make_source, stop):
                drawn.append((pixels / 2 + 0.5).clamp(0, 1).permute(1, 2, 0).float().cpu())
                if bar.show(len(drawn)) or stop():
                    comfy_host.raise_interrupted()
        except SamplingStopped:
            comfy_host.raise_interrupted()
    return torch.stack(drawn)


@dataclass(frozen=True, slots=True)
class _UnloadingSource:
    """The graph's encoders, which leave the device when they are closed.

    ComfyUI would keep them beside the denoiser, of which it does not know.
    """

    inner: EncoderSource

    @property
    def identity(self) -> str:
        return self.inner.identity

    def open(self) -> Encoders:
        return self.inner.open()

    def decoder(self) -> Callable[[Tensor], Tensor]:
        return self.inner.decoder()

    def text_limit(self) -> TextLimit | None:
        return self.inner.text_limit()

    def close(self) -> None:
        self.inner.close()
        comfy_host.unload_models()


def _unloading(make_source: MakeSource | None) -> MakeSource | None:
    if make_source is None:
        return None

    def make(family: Family, location: BaseLocation) -> EncoderSource:
        return _UnloadingSource(make_source(family, location))

    return make
