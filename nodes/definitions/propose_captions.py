"""The node Propose Captions: captions of any captioner for the images of a folder."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host import comfy_host


class ProposeCaptions(io.ComfyNode):
    """Shows what a captioner says of images beside the captions that they have."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerProposeCaptions",
            display_name="Propose Captions",
            category="Adapter Trainer",
            description="Shows the texts of any captioner beside the captions of a folder's "
            "images: click an image of the dataset, and take them one by one or all. No file "
            "changes before.",
            search_aliases=["auto caption", "captioner", "tagger", "caption images", "florence"],
            is_input_list=True,
            is_output_node=True,
            inputs=[
                io.Combo.Input(
                    "folder",
                    options=comfy_host.dataset_names(),
                    tooltip="Choose the folder that the images are loaded from.",
                ),
                io.Image.Input(
                    "images",
                    tooltip="Connect the images that the captioner gets, such as those of Load "
                    "Image Dataset from Folder. Each is found in the folder by its look, so the "
                    "order does not matter.",
                ),
                io.String.Input(
                    "texts",
                    force_input=True,
                    tooltip="Connect the captioner's output: one text for each image.",
                ),
                io.String.Input(
                    "caption_extension",
                    default=".txt",
                    advanced=True,
                    optional=True,
                    tooltip="Leave it at .txt, unless Dataset From Folder reads others.",
                ),
            ],
            outputs=[io.String.Output(display_name="report")],
        )

    @classmethod
    def execute(
        cls,
        folder: list[str],
        images: list[Any],
        texts: list[str],
        caption_extension: list[str] | None = None,
    ) -> io.NodeOutput:
        from ..services.dataset_dialog.caption_proposals import single_value
        from ..services.dataset_dialog.routes import proposed

        extension = single_value("caption_extension", caption_extension or [".txt"])
        report = proposed(single_value("folder", folder), images, texts, extension)
        return io.NodeOutput(report, ui={"text": [report]})
