"""Nodes for preview pictures: what they draw, and drawing them by hand."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host import comfy_host
from ..services import sockets
from ..services.setting_inputs import SettingInput, section_values

_SETTINGS = (
    SettingInput("preview.prompts"),
    SettingInput("preview.negative_prompt"),
    SettingInput("preview.seed"),
    SettingInput("preview.width"),
    SettingInput("preview.height"),
    SettingInput("preview.steps"),
    SettingInput("preview.guidance", step=0.1),
)


class PreviewPrompts(io.ComfyNode):
    """What previews draw."""

    SETTINGS = _SETTINGS

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        return io.Schema(
            node_id="AdapterTrainerPreviewPrompts",
            display_name="Preview Prompts",
            category="Adapter Trainer",
            description="Prompts that are drawn while the adapter trains, always from the same "
            "seeds, so that the pictures show what it learns.",
            search_aliases=["sample prompts", "validation prompts"],
            inputs=[
                *(each.input() for each in _SETTINGS),
                io.Image.Input(
                    "controls",
                    optional=True,
                    tooltip="For bases that edit: a control picture for each prompt, or one for "
                    "all.",
                ),
            ],
            outputs=[sockets.Previews.Output(display_name="previews")],
        )

    @classmethod
    def execute(cls, controls: Any = None, **given: Any) -> io.NodeOutput:
        """Describe the previews; control pictures are kept as files."""
        values = section_values(_SETTINGS, given)["preview"]
        if controls is not None:
            from ..services.picture_folder import write_controls

            folder = comfy_host.output_folder() / "pictures" / "controls"
            files = write_controls(folder, controls, len(values["prompts"]))
            values["controls"] = [[str(file)] for file in files]
        return io.NodeOutput(sockets.PreviewChoice(values))


class PreviewAdapter(io.ComfyNode):
    """Draws with a base and an adapter, as the previews of a run are drawn."""

    SETTINGS = ()

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        return io.Schema(
            node_id="AdapterTrainerPreview",
            display_name="Preview Adapter",
            category="Adapter Trainer",
            description="Draws the preview prompts with the trainer's own sampler, with or "
            "without an adapter.",
            search_aliases=["test lora", "sample adapter", "compare lora"],
            inputs=[
                sockets.Base.Input("base", tooltip="The base to draw with."),
                sockets.Previews.Input("previews", tooltip="What is drawn."),
                sockets.LoraModel.Input(
                    "lora", optional=True, tooltip="The adapter. Without one the base is drawn."
                ),
                io.Clip.Input(
                    "clip", optional=True, tooltip="Reads the prompts; the embedded base has one."
                ),
                io.Vae.Input(
                    "vae", optional=True, tooltip="Decodes pictures; the embedded base has one."
                ),
                io.Float.Input(
                    "strength",
                    default=1.0,
                    min=-10.0,
                    max=10.0,
                    step=0.05,
                    tooltip="Factor on the adapter; 0 draws the base alone.",
                ),
            ],
            outputs=[io.Image.Output(display_name="images")],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        base: sockets.BaseChoice,
        previews: sockets.PreviewChoice,
        strength: float,
        lora: Any = None,
        clip: Any = None,
        vae: Any = None,
    ) -> io.NodeOutput:
        """Draw."""
        from ..services.graph_sampling import draw_previews

        comfy_host.require_libraries()
        images = draw_previews(str(cls.hidden.unique_id), base, previews, lora, clip, vae, strength)
        return io.NodeOutput(images)
