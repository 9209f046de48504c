"""The node Embedded Text: encodes a prompt for the embedded base."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host import comfy_host


class EmbeddedText(io.ComfyNode):
    """Encodes a prompt with the text encoder of the embedded base."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerEmbeddedText",
            display_name="Embedded Text",
            category="Adapter Trainer",
            description="Turns a prompt into conditioning for Embedded Model, as it is done in "
            "training. Connect conditioning to positive of KSampler, and negative to negative.",
            search_aliases=["embedded prompt", "clip text encode", "tiny text encoder"],
            inputs=[
                io.String.Input(
                    "text",
                    multiline=True,
                    default="a red circle on a blue background",
                    tooltip="Write what to generate: a coloured circle, square, triangle or "
                    "cross on a plain background, or what your adapter has learned. "
                    "With control images: how to change them, such as: make the shape "
                    "green.",
                ),
                io.Image.Input(
                    "controls",
                    optional=True,
                    tooltip="Connect it only to edit: the image to change. A batch is several "
                    "control images of one prompt. They are brought to 64 x 64 pixels, "
                    "the size that the embedded base knows.",
                ),
            ],
            outputs=[
                io.Conditioning.Output(display_name="conditioning"),
                io.Conditioning.Output(
                    display_name="negative",
                    tooltip="The same without words. To keep something away, encode it with "
                    "another Embedded Text instead.",
                ),
            ],
        )

    @classmethod
    def execute(cls, text: str, controls: Any = None) -> io.NodeOutput:
        """Encode the prompt, and the empty one with the same control images."""
        from ..host.embedded_base import conditioning
        from ..services.embedded_text import encode_prompts

        comfy_host.require_libraries()
        prompts, latents = encode_prompts([text, ""], controls)
        return io.NodeOutput(*(conditioning(prompt, latents) for prompt in prompts))
