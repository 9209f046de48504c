"""How an error is shown at the graph: on its node, in the words of the nodes.

What an error says goes to ComfyUI, and beside it to our own box under the node (`js/errors.js`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from comfy_api.latest import io

from ...trainer_core.errors import InputError, RunError, TrainerError
from ..host import comfy_host, prompt_under_check
from ..services.graph_words import NodeInputs, parts_in_graph_words, register_inputs

EVENT = "adapter_trainer.error"

# Settings whose inputs are no `SettingInput`: node id to YAML path to input.
_OTHERS: Mapping[str, Mapping[str, str]] = {
    "AdapterTrainerDatasetFolder": {
        "dataset.regularization.path": "regularization_folder",
        "dataset.path": "folder",
    },
    "AdapterTrainerBase": {
        "base.path": "source",
        "family": "family",
        "base.adapters": "training_adapter",
    },
    "AdapterTrainerAdapter": {"adapter.kind": "kind", "adapter.start_from": "start_from"},
    "AdapterTrainerTrain": {"resume_from": "resume_from", "keep_in_loras": "keep_in_loras"},
    "AdapterTrainerQuick": {
        "dataset.path": "folder",
        "base.path": "base",
        "base.adapters": "training_adapter",
        "output.name": "name",
        "dataset.trigger_word": "trigger_word",
        "adapter.kind": "kind",
        "preview.prompts": "prompts",
        "training.steps": "steps",
    },
}
_NODES: list[type[io.ComfyNode]] = []
_SOURCE = re.compile(r"^the settings: ")


class ShownInputError(InputError):
    """An `InputError` as ComfyUI names it: by its class, after a module that is not builtin."""


class ShownRunError(RunError):
    """A `RunError` as ComfyUI names it."""


for _shown, _words in ((ShownInputError, "Wrong input"), (ShownRunError, "Run failed")):
    _shown.__module__, _shown.__qualname__ = "builtins", _words


def register_node(node: type[io.ComfyNode]) -> None:
    """Let messages name the inputs of a node."""
    _NODES.append(node)
    register_inputs(lambda: _node_inputs(node))


def schema_of(node_class: object) -> io.Schema | None:
    """The schema of a node; None for a node of others."""
    return next((own for own in map(_schema, _NODES) if own.node_id == node_class), None)


def shown_error(
    node: type[io.ComfyNode], error: TrainerError, makers: Collection[str] = ()
) -> TrainerError:
    """What ComfyUI is to say of an error that the node has raised; the node's box says it too.

    `makers` are titles of nodes whose inputs it speaks of where several have the same setting.
    """
    refusal = in_node_words(node, error, makers)
    from ..services.panel.matching_runs import marked_forms
    from ..services.panel.prompt_settings import TRAINING, node_of
    from ..services.panel.run_states import PANEL, Refusal

    node_id = comfy_host.current_node()
    in_panel, address = PANEL.explain(node_id, comfy_host.current_prompt(), refusal), _address(node)
    prompt = getattr(getattr(node, "hidden", None), "prompt", None)
    if not in_panel and address["class_type"] in TRAINING and isinstance(prompt, Mapping):
        inputs, settings = node_of(prompt, node_id)[1], marked_forms(prompt, node_id)[0].settings
        PANEL.refuse(node_id, Refusal(address["workflow"], inputs, settings, error=refusal))
    comfy_host.send(EVENT, {**address, "in_panel": in_panel, **refusal})
    shown = ShownInputError if isinstance(error, InputError) else ShownRunError
    return shown(refusal["found"], refusal["expected"], refusal["remedy"])


def refusal_text(node: type[io.ComfyNode], error: TrainerError) -> str:
    """What ComfyUI is to say of an error in a prompt that it therefore does not queue."""
    shown = in_node_words(node, error)
    prompt_under_check.tell_sender(EVENT, {**_address(node), **shown})
    return str(InputError(shown["found"], shown["expected"], shown["remedy"]))


def _address(node: type[io.ComfyNode]) -> dict[str, str]:
    """Whose error it is: another workflow may have a node of the same id."""
    schema = _schema(node)
    return {
        "node_id": comfy_host.current_node(),
        "workflow": prompt_under_check.workflow(),
        "class_type": schema.node_id,
        "title": schema.display_name or "",
    }


def in_node_words(
    node: type[io.ComfyNode], error: TrainerError, makers: Collection[str] = ()
) -> dict[str, str]:
    """An error in the words of the graph, as `shown_error` takes it.

    JSON values: what was ``found``, what was ``expected`` and the ``remedy``; ``input`` is the
    node's input that the remedy names, or empty.
    """
    schema, inputs = _schema(node), _inputs(node)
    parts = [_SOURCE.sub("", part) for part in (error.found, error.expected, error.remedy)]
    named = next((own for path, own in inputs.items() if _has(parts[2], path)), "")
    if not named:
        ids = sorted({each.id for each in schema.inputs}, key=len, reverse=True)
        # A sentence may write an input's name as words.
        named = next(
            (own for own in ids if _has(parts[2].replace(own.replace("_", " "), own), own)), ""
        )
    sentences = parts_in_graph_words(parts, schema.node_id, makers)
    found, expected, remedy = map(_short_paths, sentences)
    return {"found": found, "expected": expected, "remedy": remedy, "input": named}


def _schema(node: type[io.ComfyNode]) -> io.Schema:
    # ComfyUI has asked for it at its start, and a new one would list folders again.
    return getattr(node, "SCHEMA", None) or node.define_schema()


def _inputs(node: type[io.ComfyNode]) -> dict[str, str]:
    """YAML paths of a node's settings, to the ids of its inputs."""
    own = {each.path: each.id for each in getattr(node, "SETTINGS", ())}
    return {**_OTHERS.get(_schema(node).node_id, {}), **own}


def _node_inputs(node: type[io.ComfyNode]) -> NodeInputs:
    schema = _schema(node)
    return NodeInputs(schema.node_id, schema.display_name or "", _inputs(node))


def _has(text: str, name: str) -> bool:
    return re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text) is not None


def _short_paths(text: str) -> str:
    """Name ComfyUI's own folders by their last part alone."""
    roots = sorted(map(str, comfy_host.own_folders()), key=len, reverse=True)
    for root in roots:
        text = text.replace(f"{root}{os.sep}", f"{Path(root).name}{os.sep}")
    return text
