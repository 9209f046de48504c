"""The node Compare Checkpoints: puts the checkpoints of a run side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..host import comfy_host
from . import sockets

if TYPE_CHECKING:
    from ..services.socket_values import BaseChoice, PreviewChoice, RunHandle


class CompareCheckpoints(io.ComfyNode):
    """The same prompts with the base and with each checkpoint of a run, as one labelled grid."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerCompare",
            display_name="Compare Checkpoints",
            category="Adapter Trainer",
            description="Generates the preview prompts with the base and with each checkpoint of "
            "a run, from the same noise, as one labelled grid. Writes it and every image into the "
            "run's folder, and names checkpoints that change nothing.",
            search_aliases=[
                "compare lora",
                "xy plot",
                "best checkpoint",
                "lora epochs",
                "side by side",
            ],
            is_output_node=True,
            inputs=[
                sockets.Base.Input(
                    "base", tooltip="Connect Load Training Base: the model to generate with."
                ),
                sockets.Previews.Input(
                    "previews", tooltip="Connect Preview Prompts: what is generated."
                ),
                sockets.Run.Input("run", tooltip="Connect Train Adapter or Load Run."),
                io.Clip.Input(
                    "clip",
                    optional=True,
                    tooltip="Connect the CLIP that you generate with; leave it open for the "
                    "embedded base, which has its own. It reads the prompts.",
                ),
                io.Vae.Input(
                    "vae",
                    optional=True,
                    tooltip="Connect the VAE that you generate with; leave it open for the "
                    "embedded base, which has its own. It decodes images.",
                ),
                io.String.Input(
                    "checkpoints",
                    default="all",
                    tooltip="Leave it on all, or name steps with commas between, such as 250, 500. "
                    "keep_every of Training Settings keeps more of them on disk.",
                ),
                io.String.Input(
                    "strengths",
                    default="1",
                    tooltip="Leave it at 1, or name several with commas between, such as 1, 0.6. "
                    "Factor on the adapter; each checkpoint is shown at each.",
                ),
                io.ClipVision.Input(
                    "clip_vision",
                    optional=True,
                    tooltip="Connect Load CLIP Vision (CLIP, SigLIP or DINOv2) to read under each "
                    "image how much it is like the run's held-out images, or its trained ones "
                    "where none are held out, and which checkpoint is most like them.",
                ),
            ],
            outputs=[
                io.Image.Output(display_name="grid"),
                io.Image.Output(display_name="images"),
                io.String.Output(display_name="report"),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        base: BaseChoice,
        previews: PreviewChoice,
        run: RunHandle,
        checkpoints: str = "all",
        strengths: str = "1",
        clip: Any = None,
        vae: Any = None,
        clip_vision: Any = None,
    ) -> io.NodeOutput:
        from ..services.checkpoint_comparison import compare_run

        comfy_host.require_libraries()
        node_id, chosen = str(cls.hidden.unique_id), (checkpoints, strengths)
        *outputs, shown = compare_run(
            node_id, base, previews, run=run, chosen=chosen, clip=clip, vae=vae, vision=clip_vision
        )
        return io.NodeOutput(*outputs, ui=shown)
