"""A run file laid out as nodes: ours, or one of another trainer that is read as ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ...trainer_core.families.graph_model_denoiser import GRAPH_MODEL
from ..host import comfy_host
from . import adapter_settings, full_graph, sockets
from .adapter_settings import AdapterSettings
from .base_from_model import BaseFromModel
from .cache_embeddings import CacheEmbeddings
from .concept_slider import ConceptSlider
from .dataset_combine import DatasetCombine
from .dataset_from_folder import DatasetFolder
from .full_graph import ADAPTER, BASE, CACHE, DATASET, PROMPTS, SETTINGS, TRAIN
from .load_base import LoadBase
from .preview_prompts import PreviewPrompts
from .save_adapter import SaveAdapter
from .setting_inputs import RUN_SETTINGS
from .train_adapter import TrainAdapter
from .training_settings import TrainingSettings

if TYPE_CHECKING:
    from ..services.open_run_file import OpenedRun

_LARGEST_REQUEST = 2**23  # bytes
_MOST_JOINED = 32
_MOST_IN_A_COLUMN = 3
_LOAD_IMAGE, _WITH_ALPHA, _BATCH = "LoadImage", "JoinImageWithAlpha", "BatchImagesNode"
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
        *("family", "base.path", "dataset.path", "dataset.regularization.path", "dataset.folders"),
        *("adapter.kind", "adapter.start_from", "output.dir", "resume", "config_version"),
        *("preview.controls", "output.layouts"),
    }
)
"""Settings that an input of another form or a node says, or that a graph has no need of."""
_OWN_LAYOUT = "comfyui"


def settings_with_inputs(kind: str) -> set[str]:
    """The settings that the nodes have inputs for, where an adapter is of this kind."""
    own = {each.path for each in adapter_settings.settings_of(kind)}
    own |= {each.path for each in adapter_settings.SHARED}
    others = {each.path for node in _NODES if node is not AdapterSettings for each in node.SETTINGS}
    return own | others


def run_file_graph(opened: OpenedRun) -> dict[str, Any]:
    """The nodes as a prompt of the API: input ids to values, or to a node and its output."""
    values, kind = opened.values, opened.values["adapter.kind"]
    make, section = full_graph.node, full_graph.settings_values
    own = adapter_settings.settings_of(kind)
    kinds = {"kind": kind, **{f"kind.{k}": v for k, v in section(own, values).items()}}
    linked: dict[str, Any] = {"base": [BASE, 0]}
    trained = {"base": [BASE, 0], "cache": [CACHE, 0], "adapter": [ADAPTER, 0]}
    resumed = sockets.BEST if values["resume"] == "best" else comfy_host.NEWEST
    resumption = {"resume": values["resume"] != "none", "resume_from": resumed}
    nodes, dataset = _datasets(opened)
    nodes[BASE] = _base(opened)
    if values["preview.prompts"]:
        loaded, controls = _controls(opened)
        nodes |= loaded
        nodes[PROMPTS] = make(PreviewPrompts, values, {"controls_from": "none", **controls})
        linked["previews"] = [PROMPTS, 0]
    adapter = {**kinds, **section(adapter_settings.SHARED, values), "start_from": opened.start_from}
    train = {**trained, "settings": [SETTINGS, 0], **resumption, "keep_in_loras": 0}
    return nodes | {
        CACHE: make(CacheEmbeddings, values, {"dataset": dataset, **linked}),
        ADAPTER: _node(AdapterSettings, adapter),
        SETTINGS: make(TrainingSettings, values, {}),
        TRAIN: make(TrainAdapter, values, train),
        **_saved(values),
    }


def _base(opened: OpenedRun) -> dict[str, Any]:
    """The node of the base; what loads a model of the graph stands in no run file."""
    if opened.family == GRAPH_MODEL:
        return full_graph.node(BaseFromModel, opened.values, {})
    base = {"source": opened.base, "family": opened.family}
    base |= {"training_adapter": sockets.NO_FILE, "base_adapters": opened.base_adapters}
    return full_graph.node(LoadBase, opened.values, base)


def _node(kind: type[io.ComfyNode], inputs: Mapping[str, Any]) -> dict[str, Any]:
    return {"class_type": kind.define_schema().node_id, "inputs": inputs}


def _datasets(opened: OpenedRun) -> tuple[dict[str, Any], list[Any]]:
    """The nodes of all folders, and the output that has what is trained."""
    values = opened.values
    if values["dataset.slider.positive"].strip():
        return {DATASET: full_graph.node(ConceptSlider, values, {})}, [DATASET, 0]
    first = {"folder": opened.dataset, "regularization_folder": opened.regularization}
    first |= {"role": "train", "weight": 1.0}
    nodes = {DATASET: full_graph.node(DatasetFolder, values, first)}
    for number, each in enumerate(opened.folders):
        inputs = {"folder": each.name, "regularization_folder": "none"}
        inputs |= {"role": each.role, "weight": each.weight}
        nodes[f"folder{number}"] = full_graph.node(DatasetFolder, each.values, inputs)
    waiting = list(nodes)
    while len(waiting) > 1:
        some, name = waiting[:_MOST_JOINED], f"joined{len(nodes)}"
        joined = {f"datasets.dataset{at}": [each, 0] for at, each in enumerate(some)}
        nodes[name] = _node(DatasetCombine, joined)
        waiting = [name, *waiting[_MOST_JOINED:]]
    return nodes, [waiting[0], 0]


def _controls(opened: OpenedRun) -> tuple[dict[str, Any], dict[str, Any]]:
    """The nodes that load the control images of previews, and the input that they are for."""
    nodes: dict[str, Any] = {}
    sources: dict[str, list[Any]] = {}
    for number, name in enumerate(dict.fromkeys(opened.controls)):
        loaded = f"control{number}"
        nodes[loaded] = {"class_type": _LOAD_IMAGE, "inputs": {"image": name}}
        sources[name] = [loaded, 0]
        if opened.values["base.variant"] == "fill":
            # Load Image takes the transparency off.
            inputs = {"image": [loaded, 0], "alpha": [loaded, 1]}
            nodes[f"alpha{number}"] = {"class_type": _WITH_ALPHA, "inputs": inputs}
            sources[name] = [f"alpha{number}", 0]
    if len(sources) > 1:
        images = {f"images.image{at}": sources[each] for at, each in enumerate(opened.controls)}
        nodes["controls"] = {"class_type": _BATCH, "inputs": images}
        return nodes, {"controls": ["controls", 0]}
    first = next(iter(sources.values()), None)
    return nodes, {} if first is None else {"controls": first}


def _saved(values: Mapping[str, Any]) -> dict[str, Any]:
    """A node for each layout that the run's own folder does not get from the graph."""
    layouts = [each for each in values["output.layouts"] if each != _OWN_LAYOUT]
    return {
        f"saved{number}": _node(SaveAdapter, {"run": [TRAIN, 3], "name": "", "layout": each})
        for number, each in enumerate(layouts)
    }


def frames(nodes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """How the nodes lie: frames from left to right, each with a title and columns of node ids."""

    def those(*starts: str) -> list[str]:
        return [id for id in nodes if id.rstrip("0123456789") in starts]

    def stacked(ids: Sequence[str]) -> list[Sequence[str]]:
        return [ids[at : at + _MOST_IN_A_COLUMN] for at in range(0, len(ids), _MOST_IN_A_COLUMN)]

    loaded = stacked([*those("control"), *those("alpha"), *those("controls")])
    parts = {
        "Images and base": [*stacked([BASE, DATASET, *those("folder")]), those("joined")],
        "Control images of previews": loaded,
        "Encode and choose the adapter": [(PROMPTS, CACHE), (ADAPTER, SETTINGS)],
        "Train": [(TRAIN,)],
        "Save": [those("saved")],
    }
    known = {
        title: [ids for column in columns if (ids := [id for id in column if id in nodes])]
        for title, columns in parts.items()
    }
    laid = [(title, columns) for title, columns in known.items() if columns]
    return [
        {"title": f"{number}. {title}", "columns": columns}
        for number, (title, columns) in enumerate(laid, 1)
    ]


def without_input(values: Mapping[str, Any], changed: Sequence[str]) -> list[str]:
    """Settings that differ from their defaults and have no input on the nodes."""
    known = settings_with_inputs(values["adapter.kind"]) | _SAID_OTHERWISE
    if values["dataset.path"]:
        # Cache Embeddings finds again what is encoded already.
        known |= {"cache.manifest"}
    return [path for path in changed if path not in known]


def left_to_the_optimizer(values: Mapping[str, Any]) -> list[str]:
    """What the widgets cannot say: AdamW's value means there what suits the optimizer."""
    from ...trainer_core.config import OptimizerSection

    name = values["training.optimizer.name"]
    own = OptimizerSection.model_validate({"name": name})
    notes: list[str] = []
    for each in (*TrainingSettings.SETTINGS, *RUN_SETTINGS):
        value = values.get(each.path)
        suits = getattr(own, each.path.rpartition(".")[2], value)
        if each.leaves_it_open(value) and suits != value:
            notes.append(
                f"{each.path}: {value:g} cannot be said in a graph with {name}, which takes "
                f"{suits:g} then."
            )
    return notes


def shown_run_file(body: bytes) -> tuple[Any, int]:
    """What the browser is told when it opens a run file, and the HTTP status.

    Args:
        body: A JSON object: ``files``, each with ``name`` and ``text``; or ``run``, as Load Run
            names it. With ``recognize`` true, files that are not run files are answered with an
            empty ``program``. It may come from anybody; nothing that it names is read but a run's
            own file.
    """
    from ...trainer_core import requirements
    from ...trainer_core.errors import TrainerError
    from ...trainer_core.filesystem.text_files import parse_object
    from ..services.open_run_file import open_run_file, read_documents, read_run

    try:
        request = parse_object(body, _LARGEST_REQUEST) or {}
        requirements.require_libraries()
        run, recognize = request.get("run"), request.get("recognize") is True
        if isinstance(run, str):
            documents = read_run(run)
        else:
            documents = read_documents(request.get("files"), recognize=recognize)
        if not documents:
            return {"program": ""}, 200
        opened = open_run_file(documents)
    except TrainerError as error:
        return {"found": error.found, "expected": error.expected, "remedy": error.remedy}, 400
    lost = without_input(opened.values, opened.changed)
    notes = [f"{path}: the nodes have no input for it." for path in lost]
    nodes = run_file_graph(opened)
    return {
        "program": opened.program,
        "files": [each.name for each in documents],
        "nodes": nodes,
        "frames": frames(nodes),
        "connect": opened.base != comfy_host.EMBEDDED,
        "notes": [*opened.notes, *notes, *left_to_the_optimizer(opened.values), *_left(opened)],
    }, 200


def _left(opened: OpenedRun) -> list[str]:
    """What a person still has to do by hand."""
    resume = opened.values["resume"]
    if resume in {"none", "auto", "latest", "best"}:
        return []
    return [f"resume: {resume}: choose that checkpoint as resume_from of Train Adapter."]
