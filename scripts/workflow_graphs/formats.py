"""ComfyUI's two formats of a workflow: the image (UI) and what is queued (API)."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from .graph import Node, Note, Output, Workflow
from .layout import Frame, Place, arrange
from .schemas import Input, inputs_of

Schemas = Mapping[str, Mapping[str, Any]]
_NOTE_COLORS = {"color": "#432", "bgcolor": "#653"}
_FRAME_COLOR = "#3f789e"


def to_api(workflow: Workflow, schemas: Schemas) -> dict[str, Any]:
    """The workflow as it is queued.

    Args:
        workflow: The workflow.
        schemas: ``/object_info`` of a server.

    Raises:
        ValueError: When a node, an input or an output is not known there.
    """
    prompt: dict[str, Any] = {}
    for node in workflow.nodes:
        given = _checked(workflow, node, schemas)
        inputs: dict[str, Any] = {}
        for each in given:
            if each.name in node.values:
                value = node.values[each.name]
                linked = isinstance(value, Output)
                inputs[each.name] = _source(workflow, value, schemas) if linked else value
            elif each.is_widget:
                inputs[each.name] = each.default
        prompt[str(node.id)] = {"class_type": node.type, "inputs": inputs}
    return prompt


def to_ui(workflow: Workflow, schemas: Schemas) -> dict[str, Any]:
    """The workflow as the browser opens it, version 0.4 of the format.

    Args:
        workflow: The workflow.
        schemas: ``/object_info`` of a server.
    """
    places, frames = arrange(workflow)
    links = _links(workflow, schemas)
    order = {node.id: index for index, node in enumerate(workflow.ordered())}
    nodes = [_note(note, places[note.id]) for note in workflow.notes]
    nodes += [
        _node(workflow, node, schemas, places[node.id], links, order[node.id])
        for node in workflow.nodes
    ]
    for index, entry in enumerate(sorted(nodes, key=lambda entry: entry["order"])):
        entry["order"] = index
    return {
        "id": str(uuid.uuid5(uuid.NAMESPACE_URL, f"adapter-trainer/{workflow.name}")),
        "revision": 0,
        "last_node_id": max(entry["id"] for entry in nodes),
        "last_link_id": len(links),
        "nodes": nodes,
        "links": links,
        "groups": [_group(index, frame) for index, frame in enumerate(frames, 1)],
        "config": {},
        "extra": {"ds": {"scale": 0.5, "offset": [60, 120]}},
        "version": 0.4,
    }


def _checked(workflow: Workflow, node: Node, schemas: Schemas) -> list[Input]:
    if node.type not in schemas:
        raise ValueError(f"{workflow.name}: the server has no node {node.type}")
    given = list(inputs_of(schemas[node.type], node.values))
    unknown = set(node.values) - {each.name for each in given}
    if unknown:
        raise ValueError(f"{workflow.name}: {node.type} has no input {sorted(unknown)}")
    return given


def _source(workflow: Workflow, output: Output, schemas: Schemas) -> list[Any]:
    node = workflow.nodes[output.node - 1]
    names = schemas[node.type]["output_name"]
    if output.name not in names:
        raise ValueError(f"{workflow.name}: {node.type} has no output {output.name}")
    return [str(node.id), list(names).index(output.name)]


def _links(workflow: Workflow, schemas: Schemas) -> list[list[Any]]:
    links: list[list[Any]] = []
    for node in workflow.nodes:
        sockets = [each for each in _checked(workflow, node, schemas) if not each.is_widget]
        for slot, each in enumerate(sockets):
            value = node.values.get(each.name)
            if isinstance(value, Output):
                source, output = _source(workflow, value, schemas)
                kind = schemas[workflow.nodes[value.node - 1].type]["output"][output]
                links.append([len(links) + 1, int(source), output, node.id, slot, kind])
    return links


def _node(
    workflow: Workflow,
    node: Node,
    schemas: Schemas,
    place: Place,
    links: list[list[Any]],
    order: int,
) -> dict[str, Any]:
    given = _checked(workflow, node, schemas)
    sockets = [each for each in given if not each.is_widget]
    widgets = [each for each in given if each.is_widget]
    incoming = {link[4]: link[0] for link in links if link[3] == node.id}
    entries: list[dict[str, Any]] = [
        {"name": each.name, "type": each.type, "link": incoming.get(slot)}
        | ({} if each.required else {"shape": 7})
        for slot, each in enumerate(sockets)
    ]
    values: list[Any] = []
    for each in widgets:
        widget = {"name": each.name}
        entries.append({"name": each.name, "type": each.type, "widget": widget, "link": None})
        values.append(node.values.get(each.name, each.default))
        if each.control is not None:
            values.append(each.control)
    schema = schemas[node.type]
    outputs = [
        {"name": name, "type": kind, "links": _outgoing(links, node.id, slot)}
        for slot, (name, kind) in enumerate(
            zip(schema["output_name"], schema["output"], strict=True)
        )
    ]
    return {
        "id": node.id,
        "type": node.type,
        **_standing(place, order),
        "inputs": entries,
        "outputs": outputs,
        **({"title": node.title} if node.title else {}),
        "properties": {
            "Node name for S&R": node.type,
            **({"models": [dict(model) for model in node.models]} if node.models else {}),
        },
        "widgets_values": values,
    }


def _outgoing(links: list[list[Any]], node: int, slot: int) -> list[int] | None:
    return [link[0] for link in links if link[1:3] == [node, slot]] or None


def _standing(place: Place, order: int) -> dict[str, Any]:
    return {
        "pos": [place.x, place.y],
        "size": [place.width, place.height],
        "flags": {},
        "order": order,
        "mode": 0,
    }


def _note(note: Note, place: Place) -> dict[str, Any]:
    return {
        "id": note.id,
        "type": "MarkdownNote",
        **_standing(place, -1),
        "inputs": [],
        "outputs": [],
        "title": note.title,
        "properties": {},
        "widgets_values": [note.text],
        **_NOTE_COLORS,
    }


def _group(index: int, frame: Frame) -> dict[str, Any]:
    place = frame.place
    return {
        "id": index,
        "title": frame.title,
        "bounding": [place.x, place.y, place.width, place.height],
        "color": _FRAME_COLOR,
        "font_size": 24,
        "flags": {},
    }
