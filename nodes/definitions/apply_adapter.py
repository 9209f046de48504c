"""The node Apply Adapter: puts an adapter of the graph on a model and on its CLIP."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import sockets


class ApplyAdapter(io.ComfyNode):
    """Does for an adapter of the graph what ComfyUI's Load LoRA does for a file."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerApply",
            display_name="Apply Adapter",
            category="Adapter Trainer",
            description="Puts an adapter that was just trained on a model and on its CLIP, as Load "
            "LoRA does with its file. Load LoRA Model leaves a trained CLIP-L out.",
            search_aliases=["apply lora", "load lora", "lora clip", "lora stack"],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="Connect the model that you generate with: the base that the adapter "
                    "was trained on.",
                ),
                io.Clip.Input(
                    "clip",
                    tooltip="Connect the CLIP that reads your prompts. An adapter without a part "
                    "for it leaves it as it is.",
                ),
                sockets.LoraModel.Input(
                    "lora", tooltip="Connect the adapter: the output lora of Train Adapter."
                ),
                _strength("strength_model", "the model"),
                _strength("strength_clip", "the CLIP"),
            ],
            outputs=[io.Model.Output(display_name="model"), io.Clip.Output(display_name="clip")],
        )

    @classmethod
    def execute(
        cls, model: Any, clip: Any, lora: Any, strength_model: float, strength_clip: float
    ) -> io.NodeOutput:
        from ..host.adapter_patches import with_adapter

        return io.NodeOutput(
            *with_adapter(
                model, clip, lora, strength_model=strength_model, strength_clip=strength_clip
            )
        )


def _strength(name: str, of: str) -> io.Input:
    return io.Float.Input(
        name,
        default=1.0,
        min=-100.0,
        max=100.0,
        step=0.01,
        tooltip="Leave it at 1; lower it when the adapter is too strong, raise it when it is too "
        f"weak. Factor on the adapter's part for {of}; 0 leaves {of} as it is.",
    )
