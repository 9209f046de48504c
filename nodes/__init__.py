"""ComfyUI nodes around the headless library in `trainer_core`.

At its start ComfyUI waits for every pack. So the files of the nodes import at their top only what
their schemas need, and each `execute` imports what it works with.
"""

from __future__ import annotations

from comfy_api.latest import ComfyExtension, io

from .definitions.adapter_settings import AdapterSettings
from .definitions.cache_embeddings import CacheEmbeddings
from .definitions.check_adapter import CheckAdapter
from .definitions.convert_adapter import ConvertAdapter
from .definitions.dataset_from_folder import DatasetFolder
from .definitions.dataset_from_images import DatasetImages
from .definitions.given_inputs import checked
from .definitions.load_base import LoadBase
from .definitions.load_run import LoadRun
from .definitions.preview_adapter import PreviewAdapter
from .definitions.preview_prompts import PreviewPrompts
from .definitions.save_adapter import SaveAdapter
from .definitions.save_run_file import SaveRunFile
from .definitions.train_adapter import TrainAdapter
from .definitions.training_settings import TrainingSettings
from .host import comfy_host
from .services.panel import add_routes
from .services.workflow import add_workflow_route

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
