"""The node Dataset From Videos: training clips and captions of other nodes."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host import comfy_host
from . import sockets
from .setting_inputs import (
    CAPTIONING,
    CLIPS,
    FRAMING,
    KEEPING,
    LAST,
    SIZING,
    refuse_others,
    role_inputs,
    section_values,
)

_TITLE = "Dataset From Videos"
_ROLE, _WEIGHT = role_inputs()
_OF_IMAGES = ("mask_", "control_area", "control_dropout")


class DatasetVideos(io.ComfyNode):
    """Clips and captions that other nodes made."""

    SETTINGS = tuple(
        each._replace(optional=True)
        for each in (*SIZING, *CLIPS, *KEEPING, *CAPTIONING, *FRAMING, *LAST)
        if not each.id.startswith(_OF_IMAGES)
    )

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerDatasetVideos",
            display_name=_TITLE,
            category="Adapter Trainer",
            description="Training clips and captions from other nodes, such as Load Video-Text "
            "(from Folder), Load Video with a trim, or Create Video of a batch of images. They "
            "are kept as files in the output folder.",
            search_aliases=["training clips", "video list", "video lora dataset"],
            is_input_list=True,
            inputs=[
                io.Video.Input("videos", tooltip="Connect your training clips, one or a list."),
                io.String.Input(
                    "texts",
                    force_input=True,
                    tooltip="Connect one caption for each clip, or one for all.",
                ),
                *(each.input() for each in cls.SETTINGS),
                _ROLE,
                _WEIGHT,
            ],
            outputs=[sockets.Dataset.Output(display_name="dataset")],
        )

    @classmethod
    def execute(cls, videos: list[Any], texts: list[str], **inputs: Any) -> io.NodeOutput:
        """Keep the clips as files and describe them as a folder."""
        from ..services.datasets.video_folder import write_video_folder
        from ..services.node_checks import check_dataset
        from ..services.socket_values import DatasetChoice

        first = {name: value[0] for name, value in inputs.items()}
        role, weight = first.pop("role", "train"), first.pop("weight", 1.0)
        refuse_others(cls, first)
        folder = write_video_folder(comfy_host.output_folder() / "pictures", videos, texts)
        values = section_values(cls.SETTINGS, first)["dataset"]
        # A caption may be empty on purpose; a folder would call that a mistake.
        values |= {"path": str(folder), "layout": "flat", "missing_caption": "empty"}
        check_dataset(values)
        return io.NodeOutput(DatasetChoice(values, role, weight, made_by=_TITLE))
