"""The node Embedded Model: gives the embedded base to the graph."""

from __future__ import annotations

from comfy_api.latest import io


class EmbeddedModel(io.ComfyNode):
    """Loads the embedded base as ComfyUI's own MODEL and VAE."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's outputs; it has no inputs."""
        return io.Schema(
            node_id="AdapterTrainerEmbeddedModel",
            display_name="Embedded Model",
            category="Adapter Trainer",
            description="The tiny base that ships with the pack, as a model and a VAE that Load "
            "LoRA, KSampler and VAE Decode take, so that an adapter trained on it can be tried "
            "with nothing downloaded. It generates images of 64 x 64 pixels; its prompts come "
            "from Embedded Text.",
            search_aliases=["embedded base", "tiny model", "test model", "load embedded"],
            inputs=[],
            outputs=[
                io.Model.Output(display_name="model"),
                io.Vae.Output(display_name="vae"),
            ],
        )

    @classmethod
    def execute(cls) -> io.NodeOutput:
        """Build both from the weights that ship with the pack."""
        from ..host.embedded_base import embedded_model, embedded_vae

        return io.NodeOutput(embedded_model(), embedded_vae())
