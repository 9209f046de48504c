"""ComfyUI nodes around the headless library in `trainer_core`.

At its start ComfyUI waits for every pack. So the files of the nodes import at their top only what
their schemas need, and each `execute` imports what it works with.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from comfy_api.latest import ComfyExtension, io

from ..trainer_core.training.checkpoints.run_names import TRASH
from .definitions.adapter_settings import AdapterSettings
from .definitions.apply_adapter import ApplyAdapter
from .definitions.base_from_model import BaseFromModel
from .definitions.cache_embeddings import CacheEmbeddings
from .definitions.check_adapter import CheckAdapter
from .definitions.compare_checkpoints import CompareCheckpoints
from .definitions.concept_slider import ConceptSlider
from .definitions.convert_adapter import ConvertAdapter
from .definitions.dataset_combine import DatasetCombine
from .definitions.dataset_from_folder import DatasetFolder
from .definitions.dataset_from_images import DatasetImages
from .definitions.dataset_from_videos import DatasetVideos
from .definitions.dataset_report import DatasetReport
from .definitions.embedded_model import EmbeddedModel
from .definitions.embedded_text import EmbeddedText
from .definitions.full_graph import shown_graph
from .definitions.input_checks import checked, read_booleans
from .definitions.load_base import LoadBase
from .definitions.load_run import LoadRun
from .definitions.preview_adapter import PreviewAdapter
from .definitions.preview_prompts import PreviewPrompts
from .definitions.propose_captions import ProposeCaptions
from .definitions.save_adapter import SaveAdapter
from .definitions.save_run_file import SaveRunFile
from .definitions.train_adapter import TrainAdapter
from .definitions.train_quick import TrainQuick
from .definitions.train_sweep import TrainSweep
from .definitions.training_settings import TrainingSettings
from .host import comfy_host, prompt_under_check

_NODES: tuple[type[io.ComfyNode], ...] = (
    DatasetFolder,
    DatasetImages,
    DatasetVideos,
    DatasetCombine,
    ConceptSlider,
    DatasetReport,
    ProposeCaptions,
    LoadBase,
    BaseFromModel,
    PreviewPrompts,
    CacheEmbeddings,
    AdapterSettings,
    TrainingSettings,
    TrainAdapter,
    ApplyAdapter,
    PreviewAdapter,
    CompareCheckpoints,
    SaveAdapter,
    ConvertAdapter,
    CheckAdapter,
    SaveRunFile,
    LoadRun,
    EmbeddedModel,
    EmbeddedText,
    TrainQuick,
    TrainSweep,
)
NODES = tuple(map(checked, _NODES))


def _state(query: Mapping[str, str], body: bytes) -> tuple[Any, int]:
    from .services.panel.routes import shown_state

    return shown_state(query, body)


def _request(query: Mapping[str, str], body: bytes) -> tuple[Any, int]:
    from .services.panel.routes import taken_request

    return taken_request(body)


def _workflow(query: Mapping[str, str], body: bytes) -> tuple[Any, int]:
    from .services.load_run import kept_workflow

    return kept_workflow(query.get("run", ""))


def _page(query: Mapping[str, str], body: bytes) -> tuple[Any, int]:
    from .services.datasets.report_page import kept_page

    return kept_page(query.get("name", ""))


def _dataset(name: str) -> Callable[[Mapping[str, str], bytes], tuple[Any, int]]:
    def answer(query: Mapping[str, str], body: bytes) -> tuple[Any, int]:
        from .services.dataset_dialog import routes

        return routes.ROUTES[name](query, body)

    return answer


def _runs(method: str, name: str) -> Callable[[Mapping[str, str], bytes], tuple[Any, int]]:
    def answer(query: Mapping[str, str], body: bytes) -> tuple[Any, int]:
        from .services.runs_tab import routes

        return routes.answer(method, name, query, body)

    return answer


_OF_RUNS = {
    "GET": ("list", "one", "page", "curve", "sizes", "queue", "trash"),
    "POST": ("note", "use", "clean", "restore", "empty", "open"),
}
_OF_DATASETS = {
    "GET": ("report", "image", "caption", "tags", "alike"),
    "POST": (
        *("begin", "file", "look", "finish", "cancel"),
        *("save", "write", "choose", "undo", "dismiss"),
    ),
}


def _bind(request: Any) -> None:
    """Tie what Continue has promised to the prompt that it queues."""
    # Nothing is promised before a node or a panel has imported this.
    known = sys.modules.get(f"{__name__}.services.rerun_stamps")
    if known is not None:
        known.CONTINUED.bind(request)


def _sweep_trash() -> None:
    from .services.runs_tab.routes import sweep_trash

    sweep_trash()


def _run_file(query: Mapping[str, str], body: bytes) -> tuple[Any, int]:
    from .definitions.run_file_graph import shown_run_file

    return shown_run_file(body)


class AdapterTrainerExtension(ComfyExtension):
    """The pack as ComfyUI sees it."""

    async def on_load(self) -> None:
        """Add the routes to the server, and hear what is queued."""
        for method in ("GET", "POST"):
            comfy_host.add_route(method, "/adapter_trainer/state", _state)
        comfy_host.add_route("POST", "/adapter_trainer/wish", _request)
        comfy_host.add_route("GET", "/adapter_trainer/workflow", _workflow)
        comfy_host.add_route("GET", "/adapter_trainer/report", _page)
        comfy_host.add_route(
            "POST", "/adapter_trainer/full_graph", lambda _, body: shown_graph(body)
        )
        comfy_host.add_route("POST", "/adapter_trainer/run_file_graph", _run_file)
        for method, names in _OF_DATASETS.items():
            for name in names:
                comfy_host.add_route(method, f"/adapter_trainer/dataset/{name}", _dataset(name))
        for method, names in _OF_RUNS.items():
            for name in names:
                comfy_host.add_route(method, f"/adapter_trainer/runs/{name}", _runs(method, name))
        if (comfy_host.output_folder() / TRASH).is_dir():
            # It may hold much, and ComfyUI is not to wait for it.
            threading.Thread(target=_sweep_trash, daemon=True).start()
        comfy_host.add_prompt_listener(read_booleans)
        prompt_under_check.listen()
        comfy_host.add_prompt_listener(_bind)

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        """All nodes, in the order of the data's way."""
        return list(NODES)
