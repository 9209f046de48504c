"""The node Concept Slider: trains from prompts, where other dataset nodes have images."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import input_checks, sockets
from .setting_inputs import KEEPING, SettingInput, section_values


class ConceptSlider(io.ComfyNode):
    """Prompts between which the base is moved."""

    SETTINGS = (
        SettingInput("dataset.slider.positive", advanced=False),
        SettingInput("dataset.slider.negative", advanced=False),
        SettingInput("dataset.slider.neutral", advanced=False),
        SettingInput("dataset.resolution"),
        SettingInput("dataset.slider.strength", "slider_strength"),
        SettingInput("dataset.slider.images", "slider_images"),
        SettingInput("dataset.slider.steps", "slider_steps"),
        *KEEPING,
        SettingInput("dataset.batch_size", optional=True),
    )

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerConceptSlider",
            display_name="Concept Slider",
            category="Adapter Trainer",
            description="Trains an adapter whose strength turns a concept up and down, such as "
            "age, light or size. It needs prompts and no images: the base makes its own.",
            search_aliases=["slider lora", "concept slider", "leco", "train without images"],
            inputs=[each.input() for each in cls.SETTINGS],
            outputs=[sockets.Dataset.Output(display_name="dataset")],
        )

    @classmethod
    def validate_inputs(cls, positive: str = "") -> bool | str:
        """Refuse prompts without a direction when the graph is queued."""
        return input_checks.refusal(cls, input_checks.settings_check(cls.SETTINGS))

    @classmethod
    def execute(cls, **inputs: Any) -> io.NodeOutput:
        """Describe the slider; its prompts are read by Cache Embeddings."""
        from ..services.node_checks import require_slider
        from ..services.socket_values import DatasetChoice

        values = section_values(cls.SETTINGS, inputs)
        require_slider(values)
        return io.NodeOutput(DatasetChoice(values["dataset"]))
