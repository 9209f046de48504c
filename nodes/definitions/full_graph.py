"""The full graph of what Train LoRA (Quick) has chosen, as nodes with every setting open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..host import comfy_host, prompt_under_check
from ..host.folders import folder_stamp
from ..services.panel import prompt_settings
from . import adapter_settings, sockets
from .adapter_settings import AdapterSettings
from .base_from_model import BaseFromModel
from .cache_embeddings import CacheEmbeddings
from .dataset_from_folder import DatasetFolder
from .load_base import LoadBase
from .preview_prompts import PreviewPrompts
from .setting_inputs import SettingInput
from .shown_errors import in_node_words
from .train_adapter import TrainAdapter
from .train_quick import TrainQuick
from .training_settings import TrainingSettings

if TYPE_CHECKING:
    from ..services.quick.plan import Answers, QuickPlan

_LARGEST_REQUEST = 2**16  # bytes
DATASET, BASE, PROMPTS, CACHE, ADAPTER, SETTINGS, TRAIN = map(str, range(1, 8))
COLUMNS = ((BASE, DATASET), (PROMPTS, ADAPTER), (CACHE, SETTINGS), (TRAIN,))
"""How they lie on the canvas, from left to right."""
INPUTS = {
    "clip": [(CACHE, "clip")],
    "vae": [(CACHE, "vae"), (TRAIN, "vae")],
    "name": [(TRAIN, "name")],
    "trigger_word": [(DATASET, "trigger_word")],
    "prompts": [(PROMPTS, "prompts")],
    "seed": [(TRAIN, "seed")],
    "resume": [(TRAIN, "resume")],
}
"""Which inputs get what is linked to one of the node's own."""


def full_graph(plan: QuickPlan) -> dict[str, Any]:
    """The nodes as a prompt of the API: input ids to values, or to a node and its output."""
    values, answers = plan.values, plan.answers
    kind = values["adapter.kind"]
    own = adapter_settings.settings_of(kind)
    resumption = {"resume": answers.resume, "resume_from": comfy_host.NEWEST, "keep_in_loras": 0}
    controls = answers.folder if values["preview.controls"] else "none"
    dataset = {"folder": answers.folder, "regularization_folder": "none"}
    dataset |= {"role": "train", "weight": 1.0}
    linked = {"base": [BASE, 0], "previews": [PROMPTS, 0]}
    trained = {"base": [BASE, 0], "cache": [CACHE, 0], "adapter": [ADAPTER, 0]}
    kinds = {"kind": kind, **{f"kind.{k}": v for k, v in settings_values(own, values).items()}}
    adapter = {**kinds, **settings_values(adapter_settings.SHARED, values)}
    base = {"source": answers.base, "family": "auto"}
    base |= {"training_adapter": answers.training_adapter, "base_adapters": ""}
    expert = {"expert": answers.expert, "switch_at": answers.switch_at}
    model = node(BaseFromModel, values, expert) if plan.borrows else node(LoadBase, values, base)
    return {
        DATASET: node(DatasetFolder, values, dataset),
        BASE: model,
        PROMPTS: node(PreviewPrompts, values, {"controls_from": controls}),
        CACHE: node(CacheEmbeddings, values, {"dataset": [DATASET, 0], **linked}),
        ADAPTER: {
            "class_type": _type(AdapterSettings),
            "inputs": {**adapter, "start_from": sockets.NO_FILE},
        },
        SETTINGS: node(TrainingSettings, values, {}),
        TRAIN: node(TrainAdapter, values, {**trained, "settings": [SETTINGS, 0], **resumption}),
    }


def shown_graph(body: bytes) -> tuple[Any, int]:
    """What the browser is told when it asks for the full graph, and the HTTP status.

    The body, which may come from anybody, has values of the node's inputs by their ids.
    """
    from ...trainer_core import requirements
    from ...trainer_core.errors import TrainerError
    from ...trainer_core.filesystem.text_files import parse_object
    from ..services.quick.plan import answers_of, plan_run

    try:
        answers = answers_of(parse_object(body, _LARGEST_REQUEST))
        requirements.require_libraries()
        plan = plan_run(answers)
        nodes = full_graph(plan)
    except TrainerError as error:
        return in_node_words(TrainQuick, error), 400
    return {"nodes": nodes, "columns": COLUMNS, "train": TRAIN, "inputs": _inputs(plan)}, 200


def opened(prompt: Mapping[str, Any], node_id: str) -> tuple[Mapping[str, Any], str] | None:
    """A prompt with the full graph beside a quick node, and the node of it that trains.

    None for another node, and where the answers choose nothing.
    """
    from ...trainer_core.errors import TrainerError
    from ..services.quick.plan import answers_of

    kind, inputs = prompt_settings.node_of(prompt, node_id)
    if kind != "AdapterTrainerQuick":
        return None
    loader = prompt_under_check.loader_of(prompt, node_id, "model")
    links = {name: value for name, value in inputs.items() if isinstance(value, list)}
    constants = {name: value for name, value in inputs.items() if name not in links}
    try:
        answers = answers_of({**constants, "loader": loader})
        plan = _plan(answers, folder_stamp(comfy_host.dataset_path(answers.folder)))
    except TrainerError:
        return None
    nodes = {f"{node_id}.{each}": value for each, value in full_graph(plan).items()}
    for each in nodes.values():
        for name, value in each["inputs"].items():
            if isinstance(value, list):
                each["inputs"][name] = [f"{node_id}.{value[0]}", value[1]]
    for name, value in links.items():
        for target, own in _inputs(plan).get(name, []):
            nodes[f"{node_id}.{target}"]["inputs"][own] = value
    return {**prompt, **nodes}, f"{node_id}.{TRAIN}"


prompt_settings.register_opened(opened)


@lru_cache(maxsize=64)
def _plan(answers: Answers, stamp: str) -> QuickPlan:
    from ..services.quick.plan import plan_run

    del stamp
    return plan_run(answers)


def _inputs(plan: QuickPlan) -> Mapping[str, list[tuple[str, str]]]:
    lent = ("model", *(each.id for each in sockets.model_inputs()))
    return {**INPUTS, **{each: [(BASE, each)] for each in lent}} if plan.borrows else INPUTS


def node(
    kind: type[io.ComfyNode], values: Mapping[str, Any], others: Mapping[str, Any]
) -> dict[str, Any]:
    """A node of a prompt of the API: its settings, and other inputs."""
    settings: Sequence[SettingInput] = kind.SETTINGS  # type: ignore[attr-defined]
    return {"class_type": _type(kind), "inputs": {**settings_values(settings, values), **others}}


def settings_values(settings: Sequence[SettingInput], values: Mapping[str, Any]) -> dict[str, Any]:
    """What inputs say for settings by YAML path; what is absent has its default."""
    found: dict[str, Any] = {}
    for each in settings:
        default = each.field.get_default(call_default_factory=True)
        found[each.id] = each.written(values.get(each.path, default))
    return found


def _type(node: type[io.ComfyNode]) -> str:
    return node.define_schema().node_id
