"""The node Preview Adapter: samples the preview prompts by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..host import comfy_host
from . import sockets

if TYPE_CHECKING:
    from ..services.socket_values import BaseChoice, PreviewChoice


class PreviewAdapter(io.ComfyNode):
    """Generates with a base and an adapter, as a run makes its previews."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerPreview",
            display_name="Preview Adapter",
            category="Adapter Trainer",
            description="Generates the preview prompts with the trainer's own sampler, with or "
            "without an adapter.",
            search_aliases=["test lora", "preview lora", "sample adapter", "compare lora"],
            inputs=[
                sockets.Base.Input(
                    "base", tooltip="Connect Load Training Base: the model to generate with."
                ),
                sockets.Previews.Input(
                    "previews", tooltip="Connect Preview Prompts: what is generated."
                ),
                sockets.LoraModel.Input(
                    "lora",
                    optional=True,
                    tooltip="Connect the adapter; leave it open to see what the base makes "
                    "without one.",
                ),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="Connect the CLIP that you generate with; "
                    "leave it open for the embedded base, which "
                    "has its own. It reads the prompts.",
                ),
                io.Vae.Input(
                    "vae",
                    optional=True,
                    tooltip="Connect the VAE that you generate with; "
                    "leave it open for the embedded base, which "
                    "has its own. It decodes images.",
                ),
                io.Float.Input(
                    "strength",
                    default=1.0,
                    min=-10.0,
                    max=10.0,
                    step=0.05,
                    tooltip="Leave it at 1; lower it when the adapter is too strong, raise it "
                    "when it is too weak. Factor on the adapter; 0 generates the base "
                    "alone.",
                ),
            ],
            outputs=[io.Image.Output(display_name="images")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        base: BaseChoice,
        previews: PreviewChoice,
        strength: float,
        lora: Any = None,
        clip: Any = None,
        vae: Any = None,
    ) -> io.NodeOutput:
        from ..services.graph_run import preview_by_hand

        comfy_host.require_libraries()
        images = preview_by_hand(
            str(cls.hidden.unique_id),
            base,
            previews,
            lora=lora,
            clip=clip,
            vae=vae,
            strength=strength,
        )
        return io.NodeOutput(images)
