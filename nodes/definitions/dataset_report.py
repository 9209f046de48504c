"""The node Dataset Report: what is in a dataset, and what is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from comfy_api.latest import io

from . import sockets

if TYPE_CHECKING:
    from ..services.socket_values import BaseChoice, DatasetChoice


class DatasetReport(io.ComfyNode):
    """What a dataset holds, in words, as a contact sheet and as a page."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerDatasetReport",
            display_name="Dataset Report",
            category="Adapter Trainer",
            description="Looks at every image and caption of a dataset: crops as they will be "
            "seen, images that are there twice or look alike, captions that are cut off or lack "
            "the trigger word. Writes a page into output/adapter_trainer/reports.",
            search_aliases=[
                "dataset doctor",
                "duplicate images",
                "near duplicates",
                "contact sheet",
                "check captions",
                "missing trigger word",
            ],
            is_output_node=True,
            inputs=[
                sockets.Dataset.Input(
                    "dataset",
                    tooltip="Connect Dataset From Folder, Dataset From Images or Combine Datasets.",
                ),
                sockets.Base.Input(
                    "base",
                    optional=True,
                    tooltip="Connect the base to have its own sizes and tokens; without it those "
                    "of the defaults are taken, and captions are counted in words.",
                ),
            ],
            outputs=[
                io.String.Output(display_name="report"),
                io.Image.Output(display_name="contact_sheet"),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, dataset: DatasetChoice, base: BaseChoice | None = None) -> io.NodeOutput:
        from ..services.datasets.report_page import dataset_page

        text, sheet, shown = dataset_page(str(cls.hidden.unique_id), dataset, base)
        return io.NodeOutput(text, sheet, ui=shown)
