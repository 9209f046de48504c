"""The node Base From Model: takes a MODEL of the graph as the base."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..services.expert_models import AUTO, SWITCH_AT, ExpertInputs
from . import sockets
from .setting_inputs import SettingInput, section_values


class BaseFromModel(io.ComfyNode):
    """Makes the frozen base of whatever MODEL the graph has loaded."""

    SETTINGS = (
        SettingInput("training.precision"),
        SettingInput("base.distilled", optional=True),
    )

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerBaseFromModel",
            display_name="Base From Model",
            category="Adapter Trainer",
            description="Takes the model that is on the graph as the base: whatever loader made "
            "it, with the LoRAs and noise levels that it has. It is trained where it lies, without "
            "a second copy, and left as it was.",
            search_aliases=[
                "train model",
                "base model",
                "train checkpoint",
                "sdxl",
                "stable diffusion",
                "any model",
            ],
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="Connect the model that you generate with: Load Checkpoint, Load "
                    "Diffusion Model, or a node behind them. A LoRA on it becomes part of the "
                    "base.",
                ),
                *(each.input() for each in cls.SETTINGS),
                *sockets.model_inputs(),
            ],
            outputs=[sockets.Base.Output(display_name="base")],
        )

    @classmethod
    def execute(
        cls,
        model: Any,
        expert: str = AUTO,
        other_expert: Any = None,
        switch_at: float = SWITCH_AT,
        clip_vision: Any = None,
        audio_vae: Any = None,
        **inputs: Any,
    ) -> io.NodeOutput:
        """Read what the model tells; nothing is loaded."""
        from ..services.graph_base import base_of_model

        values = section_values(cls.SETTINGS, inputs)
        own = values.get("base", {})
        precision = values["training"]["precision"]
        role = ExpertInputs(expert, switch_at, other_expert)
        base = base_of_model(
            model, precision, **own, expert=role, vision=clip_vision, audio=audio_vae
        )
        return io.NodeOutput(base)
