"""The node Dataset From Images: training images and captions of other nodes."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host import comfy_host
from . import sockets
from .setting_inputs import (
    CAPTIONING,
    FRAMING,
    KEEPING,
    LAST,
    SIZING,
    refuse_others,
    role_inputs,
    section_values,
)

_TITLE = "Dataset From Images"
_ROLE, _WEIGHT = role_inputs()


class DatasetImages(io.ComfyNode):
    """Images and captions that other nodes made."""

    SETTINGS = (*SIZING, *KEEPING, *CAPTIONING, *FRAMING, *LAST)

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerDatasetImages",
            display_name=_TITLE,
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
                *(each.input() for each in cls.SETTINGS if each not in LAST),
                io.Mask.Input(
                    "masks",
                    optional=True,
                    tooltip="Connect it when a part of each image should count more than the rest: "
                    "one mask for each image, or one for all, of its image's shape. White is "
                    "trained. A loader's mask of a transparent image is white where the image is "
                    "not: set mask_invert then.",
                ),
                _ROLE,
                _WEIGHT,
                *(each.input() for each in LAST),
            ],
            outputs=[sockets.Dataset.Output(display_name="dataset")],
        )

    @classmethod
    def execute(
        cls,
        images: list[Any],
        texts: list[str],
        controls: list[Any] | None = None,
        masks: list[Any] | None = None,
        **inputs: Any,
    ) -> io.NodeOutput:
        """Keep the images as files and describe them as a folder."""
        from ..services.datasets.image_folder import GivenImages, image_dataset
        from ..services.node_checks import check_dataset
        from ..services.socket_values import DatasetChoice

        first = {name: value[0] for name, value in inputs.items()}
        role, weight = first.pop("role", "train"), first.pop("weight", 1.0)
        refuse_others(cls, first)
        values = section_values(cls.SETTINGS, first)["dataset"]
        whole = GivenImages(images, texts, controls or (), masks or ())
        values = image_dataset(comfy_host.output_folder() / "pictures", whole, values)
        check_dataset(values)
        return io.NodeOutput(DatasetChoice(values, role, weight, made_by=_TITLE))
