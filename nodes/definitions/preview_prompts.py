"""The node Preview Prompts: what previews show."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host import comfy_host
from ..host.folders import folder_stamp
from . import input_checks, sockets
from .setting_inputs import SettingInput, section_values

_NO_FOLDER = "none"


class PreviewPrompts(io.ComfyNode):
    """What previews generate."""

    SETTINGS = (
        SettingInput("preview.prompts"),
        SettingInput("preview.negative_prompt"),
        SettingInput("preview.seed"),
        SettingInput("preview.width"),
        SettingInput("preview.height"),
        SettingInput("preview.steps"),
        SettingInput("preview.guidance", step=0.1),
        SettingInput("preview.frames", optional=True),
    )

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerPreviewPrompts",
            display_name="Preview Prompts",
            category="Adapter Trainer",
            description="Prompts whose images are generated while the adapter trains, always from "
            "the same seeds, so that the images show what it learns.",
            search_aliases=["sample prompts", "validation prompts", "samples while training"],
            inputs=[
                *(each.input() for each in cls.SETTINGS[:-1]),
                io.Image.Input(
                    "controls",
                    optional=True,
                    tooltip="Connect it only for a base that edits: a control image for each "
                    "prompt, or one for all. Of a model of videos it is the first frame.",
                ),
                io.Combo.Input(
                    "controls_from",
                    options=[_NO_FOLDER, *comfy_host.dataset_names()],
                    default=_NO_FOLDER,
                    optional=True,
                    advanced=True,
                    tooltip="Choose it only for a base that edits, where no image is "
                    "connected: a dataset folder whose first control images are used.",
                ),
                cls.SETTINGS[-1].input(),
            ],
            outputs=[sockets.Previews.Output(display_name="previews")],
        )

    @classmethod
    def validate_inputs(cls, prompts: str = "") -> bool | str:
        """Refuse settings that cannot be when the graph is queued."""
        return input_checks.refusal(cls, input_checks.settings_check(cls.SETTINGS))

    @classmethod
    def fingerprint_inputs(cls, controls_from: str = _NO_FOLDER, **inputs: Any) -> str:
        """Changes with any file of the folder that controls come from."""
        chosen = controls_from not in {None, _NO_FOLDER}
        return folder_stamp(comfy_host.dataset_path(controls_from)) if chosen else _NO_FOLDER

    @classmethod
    def execute(
        cls, controls: Any = None, controls_from: str = _NO_FOLDER, **inputs: Any
    ) -> io.NodeOutput:
        """Describe the previews; control images are kept as files."""
        from ..services.socket_values import PreviewChoice

        input_checks.settings_check(cls.SETTINGS)(inputs)
        values = section_values(cls.SETTINGS, inputs)["preview"]
        if controls is not None:
            from ..services.datasets.image_folder import write_controls

            folder = comfy_host.output_folder() / "pictures" / "controls"
            files = write_controls(folder, controls, len(values["prompts"]))
            values["controls"] = [[str(file)] for file in files]
        elif controls_from != _NO_FOLDER:
            from ..services.quick.plan import control_files

            values["controls"] = control_files(controls_from, len(values["prompts"]))
        return io.NodeOutput(PreviewChoice(values))
