"""A run file laid out as nodes: ours, or one of another trainer that is read as ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..host import comfy_host
from . import adapter_settings, full_graph, sockets
from .adapter_settings import AdapterSettings
from .cache_embeddings import CacheEmbeddings
from .concept_slider import ConceptSlider
from .dataset_from_folder import DatasetFolder
from .full_graph import ADAPTER, BASE, CACHE, DATASET, PROMPTS, SETTINGS, TRAIN
from .load_base import LoadBase
from .preview_prompts import PreviewPrompts
from .setting_inputs import RUN_SETTINGS
from .train_adapter import TrainAdapter
from .training_settings import TrainingSettings

if TYPE_CHECKING:
    from ..services.opened_run_file import OpenedRun

_LARGEST_REQUEST = 2**21  # bytes
_NODES = (
    DatasetFolder,
    ConceptSlider,
    LoadBase,
    PreviewPrompts,
    CacheEmbeddings,
    AdapterSettings,
    TrainingSettings,
    TrainAdapter,
)
_SAID_OTHERWISE = frozenset(
    {
        *("family", "base.path", "dataset.path", "dataset.regularization.path"),
        *("adapter.kind", "adapter.start_from", "output.dir", "resume", "config_version"),
    }
)
"""Settings that an input of another form says, or that a graph has no need of."""


def settings_with_inputs(kind: str) -> set[str]:
    """The settings that the nodes have inputs for.

    Args:
        kind: Of the adapter: some settings are of one kind alone.
    """
    own = {each.path for each in adapter_settings.settings_of(kind)}
    own |= {each.path for each in adapter_settings.SHARED}
    others = {each.path for node in _NODES if node is not AdapterSettings for each in node.SETTINGS}
    return own | others


def run_file_graph(opened: OpenedRun) -> dict[str, Any]:
    """The nodes as a prompt of the API: input ids to values, or to a node and its output."""
    values, kind = opened.values, opened.values["adapter.kind"]
    make, said = full_graph.node, full_graph.settings_values
    own = adapter_settings.settings_of(kind)
    kinds = {"kind": kind, **{f"kind.{k}": v for k, v in said(own, values).items()}}
    linked: dict[str, Any] = {"base": [BASE, 0]}
    trained = {"base": [BASE, 0], "cache": [CACHE, 0], "adapter": [ADAPTER, 0]}
    begun = {"resume": values["resume"] != "none", "resume_from": comfy_host.NEWEST}
    base = {"source": opened.base, "family": opened.family}
    base |= {"training_adapter": sockets.NO_FILE, "base_adapters": opened.base_adapters}
    nodes: dict[str, Any] = {
        DATASET: _dataset(opened),
        BASE: make(LoadBase, values, base),
    }
    if values["preview.prompts"]:
        nodes[PROMPTS] = make(PreviewPrompts, values, {"controls_from": "none"})
        linked["previews"] = [PROMPTS, 0]
    adapter = {**kinds, **said(adapter_settings.SHARED, values), "start_from": opened.start_from}
    node_id = AdapterSettings.define_schema().node_id
    return nodes | {
        CACHE: make(CacheEmbeddings, values, {"dataset": [DATASET, 0], **linked}),
        ADAPTER: {"class_type": node_id, "inputs": adapter},
        SETTINGS: make(TrainingSettings, values, {}),
        TRAIN: make(
            TrainAdapter,
            values,
            {**trained, "settings": [SETTINGS, 0], **begun, "keep_in_loras": 0},
        ),
    }


def _dataset(opened: OpenedRun) -> dict[str, Any]:
    if opened.values["dataset.slider.positive"].strip():
        return full_graph.node(ConceptSlider, opened.values, {})
    folders = {"folder": opened.dataset, "regularization_folder": opened.regularization}
    said = {**folders, "role": "train", "weight": 1.0}
    return full_graph.node(DatasetFolder, opened.values, said)


def without_input(values: Mapping[str, Any], changed: Sequence[str]) -> list[str]:
    """Settings that differ from their defaults and have no input on the nodes."""
    known = settings_with_inputs(values["adapter.kind"]) | _SAID_OTHERWISE
    return [path for path in changed if path not in known]


def left_to_the_optimizer(values: Mapping[str, Any]) -> list[str]:
    """What the widgets cannot say: AdamW's value means there what suits the optimizer."""
    from ...trainer_core.config import OptimizerSection

    name = values["training.optimizer.name"]
    own = OptimizerSection.model_validate({"name": name})
    told: list[str] = []
    for each in (*TrainingSettings.SETTINGS, *RUN_SETTINGS):
        value = values.get(each.path)
        suits = getattr(own, each.path.rpartition(".")[2], value)
        if each.leaves_it_open(value) and suits != value:
            told.append(
                f"{each.path}: {value:g} cannot be said in a graph with {name}, which takes "
                f"{suits:g} then."
            )
    return told


def shown_run_file(body: bytes) -> tuple[Any, int]:
    """What the browser is told when it opens a run file, and the HTTP status.

    Args:
        body: A JSON object: ``name`` and ``text`` of the file. It may come from anybody; nothing
            that it names is read.
    """
    from ...trainer_core import requirements
    from ...trainer_core.errors import TrainerError
    from ...trainer_core.filesystem.text_files import parse_object
    from ..services.opened_run_file import open_run_file

    try:
        given = parse_object(body, _LARGEST_REQUEST) or {}
        requirements.require_libraries()
        opened = open_run_file(str(given.get("name", "")), given.get("text"))
    except TrainerError as error:
        return {"found": error.found, "expected": error.expected, "remedy": error.remedy}, 400
    lost = without_input(opened.values, opened.changed)
    told = [f"{path}: the nodes have no input for it." for path in lost]
    nodes = run_file_graph(opened)
    columns = [[id for id in column if id in nodes] for column in full_graph.COLUMNS]
    notes = [*opened.notes, *told, *left_to_the_optimizer(opened.values)]
    return {"nodes": nodes, "columns": columns, "program": opened.program, "notes": notes}, 200
