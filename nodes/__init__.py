"""ComfyUI nodes around the headless library in `trainer_core`.

At its start ComfyUI waits for every pack. So the files of the nodes import at their top only what
their schemas need, and each `execute` imports what it works with.
"""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from . import comfy_host
from .adapter import AdapterSettings
from .base import LoadBase
from .cache import CacheEmbeddings
from .dataset import DatasetFolder, DatasetImages
from .given_inputs import checked
from .panel import add_routes
from .previews import PreviewAdapter, PreviewPrompts
from .proof import CheckAdapter
from .runs import LoadRun, SaveRunFile
from .save import ConvertAdapter, SaveAdapter
from .settings import TrainingSettings
from .train import TrainAdapter
from .workflow import add_workflow_route

_NODES: tuple[type[io.ComfyNode], ...] = (
    DatasetFolder,
    DatasetImages,
    LoadBase,
    PreviewPrompts,
    CacheEmbeddings,
    AdapterSettings,
    TrainingSettings,
    TrainAdapter,
    PreviewAdapter,
    SaveAdapter,
    ConvertAdapter,
    CheckAdapter,
    SaveRunFile,
    LoadRun,
)
NODES = tuple(map(checked, _NODES))


class AdapterTrainerExtension(ComfyExtension):
    """The pack as ComfyUI sees it."""

    async def on_load(self) -> None:
        """Add the panel's routes to the server, and that of a run's workflow."""
        add_routes(comfy_host.routes())
        add_workflow_route(comfy_host.routes())

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """All nodes, in the order of the data's way."""
        return list(NODES)
