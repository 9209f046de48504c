"""The node Combine Datasets: joins several datasets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from comfy_api.latest import io

from . import sockets

if TYPE_CHECKING:
    from ..services.socket_values import DatasetChoice

_MOST = 32


class DatasetCombine(io.ComfyNode):
    """Several datasets that are trained together."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        one = sockets.Dataset.Input(
            "dataset",
            tooltip="Connect Dataset From Folder or Dataset From Images. Its role says what its "
            "images are for, its weight how much they count; each keeps its own resolution, "
            "repeats, trigger word and caption rules.",
        )
        return io.Schema(
            node_id="AdapterTrainerDatasetCombine",
            display_name="Combine Datasets",
            category="Adapter Trainer",
            description="Trains several datasets together: your own images from several folders, "
            "ordinary images that keep the base from forgetting (role regularization), and images "
            "that are never trained on, to measure the loss on (role validation).",
            search_aliases=[
                "join datasets",
                "merge datasets",
                "several folders",
                "multiple datasets",
                "validation images",
                "regularization images",
            ],
            inputs=[
                io.Autogrow.Input(
                    "datasets",
                    template=io.Autogrow.TemplatePrefix(one, prefix="dataset", min=2, max=_MOST),
                    tooltip="Connect two datasets or more; there is always a free input.",
                ),
            ],
            outputs=[sockets.Dataset.Output(display_name="dataset")],
        )

    @classmethod
    def execute(cls, datasets: Mapping[str, DatasetChoice]) -> io.NodeOutput:
        """Join what is connected, in the inputs' order."""
        from ..services.datasets.combined import combined
        from ..services.node_checks import check_dataset

        whole = combined([each for each in datasets.values() if each is not None])
        check_dataset(whole.values)
        return io.NodeOutput(whole)
