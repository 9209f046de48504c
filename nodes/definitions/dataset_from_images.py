"""The node that takes training images and captions from other nodes."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ...trainer_core.errors import InputError
from ..host import comfy_host
from . import sockets
from .setting_inputs import KEEPING, SIZING, section_values


class DatasetImages(io.ComfyNode):
    """Images and captions that other nodes made."""

    SETTINGS = (*SIZING, *KEEPING)

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        return io.Schema(
            node_id="AdapterTrainerDatasetImages",
            display_name="Dataset From Images",
            category="Adapter Trainer",
            description="Training images and captions from other nodes, such as Load Image-Text "
            "(from Folder). They are kept as files in the output folder.",
            search_aliases=["training images", "image list", "lora dataset"],
            is_input_list=True,
            inputs=[
                io.Image.Input(
                    "images", tooltip="Connect your training images, a list or a batch."
                ),
                io.String.Input(
                    "texts",
                    force_input=True,
                    tooltip="Connect one caption for each image, or one for all.",
                ),
                io.Image.Input(
                    "controls",
                    optional=True,
                    tooltip="Connect it only for a base that edits: one control image for each "
                    "training image.",
                ),
                *(each.input() for each in (*SIZING, *KEEPING)),
            ],
            outputs=[sockets.Dataset.Output(display_name="dataset")],
        )

    @classmethod
    def execute(
        cls, images: list[Any], texts: list[str], controls: list[Any] | None = None, **given: Any
    ) -> io.NodeOutput:
        """Keep the images as files and describe them as a folder."""
        from ..services.choices import DatasetChoice
        from ..services.image_folder import write_image_folder

        _refuse_others(given)
        folder = write_image_folder(
            comfy_host.output_folder() / "pictures", images, texts, controls or []
        )
        first = {name: value[0] for name, value in given.items()}
        values = section_values((*SIZING, *KEEPING), first)["dataset"]
        layout = "paired" if controls else "flat"
        # A caption may be empty on purpose; a folder would call that a mistake.
        values |= {"path": str(folder), "layout": layout, "missing_caption": "empty"}
        return io.NodeOutput(DatasetChoice(values))


def _refuse_others(given: dict[str, Any]) -> None:
    # ComfyUI hands on every link, also one to an input that a node does not have.
    others = sorted(given.keys() - {each.id for each in (*SIZING, *KEEPING)})
    if others:
        raise InputError(
            f"{', '.join(others)} connected to Dataset From Images",
            "images, texts and controls: whole images are trained, without masks",
            "Disconnect it. To train a part of the images, crop them before this node.",
        )
