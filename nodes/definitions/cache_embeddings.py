"""The node Cache Embeddings: encodes images, captions and preview prompts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..host import comfy_host
from . import sockets
from .setting_inputs import SettingInput, section_values

if TYPE_CHECKING:
    from ..services.socket_values import BaseChoice, DatasetChoice, PreviewChoice


class CacheEmbeddings(io.ComfyNode):
    """Encodes a dataset once."""

    SETTINGS = (
        SettingInput("cache.verify"),
        SettingInput("cache.dtype", optional=True),
        SettingInput("cache.batch_size", optional=True),
        SettingInput("cache.max_gb", optional=True),
        SettingInput("training.text_encoder.train", "train_text_encoder", optional=True),
    )

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerCache",
            display_name="Cache Embeddings",
            category="Adapter Trainer",
            description="Encodes images, captions and preview prompts with the graph's CLIP and "
            "VAE and keeps them on disk. Only what has changed is encoded again.",
            search_aliases=["encode dataset", "latents", "text embeddings", "precompute"],
            inputs=[
                sockets.Dataset.Input(
                    "dataset",
                    tooltip="Connect Dataset From Folder, Dataset From Images or Combine "
                    "Datasets: what is trained.",
                ),
                sockets.Base.Input(
                    "base",
                    tooltip="Connect Load Training Base: the model that "
                    "the images are encoded for.",
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="Connect the CLIP that you generate with; "
                    "leave it open for the embedded base, which "
                    "has its own. It reads captions.",
                ),
                io.Vae.Input(
                    "vae",
                    optional=True,
                    tooltip="Connect the VAE that you generate with; "
                    "leave it open for the embedded base, which "
                    "has its own. It encodes images.",
                ),
                sockets.Previews.Input(
                    "previews",
                    optional=True,
                    tooltip="Connect Preview Prompts to see images "
                    "while it trains; leave it open for "
                    "none.",
                ),
                *(each.input() for each in cls.SETTINGS),
            ],
            outputs=[sockets.Cache.Output(display_name="cache")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> int:
        """Changes when encoded files were deleted."""
        from ..services.rerun_stamps import WATCH

        return WATCH.missing_count(comfy_host.cache_folder())

    @classmethod
    def execute(
        cls,
        dataset: DatasetChoice,
        base: BaseChoice,
        clip: Any = None,
        vae: Any = None,
        previews: PreviewChoice | None = None,
        **inputs: Any,
    ) -> io.NodeOutput:
        from ..services.graph_run import encode
        from ..services.rerun_stamps import WATCH

        comfy_host.require_libraries()
        options = section_values(cls.SETTINGS, inputs)
        node_id = str(cls.hidden.unique_id)
        cache = encode(
            node_id, dataset, base, clip=clip, vae=vae, previews=previews, options=options
        )
        WATCH.missing_count(comfy_host.cache_folder())
        return io.NodeOutput(cache)
