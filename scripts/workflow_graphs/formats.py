"""ComfyUI's two formats of a workflow: the image (UI) and what is queued (API)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .graph import Given, Node, Note, Output, Subgraph, Workflow, unique_id
from .layout import Frame, Place, arrange
from .schemas import GROWING, Input, Schemas, inputs_of
from .subgraphs import INPUTS, OUTPUTS, ends, subgraphs_of, with_subgraphs

_NOTE_COLORS = {"color": "#432", "bgcolor": "#653"}
_FRAME_COLOR = "#3f789e"


def to_api(workflow: Workflow, schemas: Schemas) -> dict[str, Any]:
    """The workflow as it is queued; a subgraph's nodes as ``<its node>:<node>``.

    Args:
        workflow: The workflow.
        schemas: ``/object_info`` of a server.

    Raises:
        ValueError: When a node, an input or an output is not known there.
    """
    return dict(_queued(workflow, with_subgraphs(workflow, schemas), "", {}))


def _queued(
    workflow: Workflow, schemas: Schemas, path: str, given: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in workflow.nodes:
        inputs: dict[str, Any] = {}
        for each in _checked(workflow, node, schemas):
            value = node.values.get(each.name, each.default if each.is_widget else Given(""))
            if isinstance(value, Output):
                value = _queued_source(workflow, value, schemas, path)
            if not isinstance(value, Given):
                inputs[each.name] = value
            elif value.name in given:
                inputs[each.name] = given[value.name]
        if node.subgraph:
            yield from _queued(node.subgraph.inner, schemas, f"{path}{node.id}:", inputs)
        else:
            yield f"{path}{node.id}", {"class_type": node.type, "inputs": inputs}


def _queued_source(workflow: Workflow, output: Output, schemas: Schemas, path: str) -> list[Any]:
    node, slot = _source(workflow, output, schemas)
    if node.subgraph is None:
        return [f"{path}{node.id}", slot]
    inner = node.subgraph.outputs[output.name]
    return _queued_source(node.subgraph.inner, inner, schemas, f"{path}{node.id}:")


def to_ui(workflow: Workflow, schemas: Schemas) -> dict[str, Any]:
    """The workflow as the browser opens it, version 0.4 of the format.

    Args:
        workflow: The workflow.
        schemas: ``/object_info`` of a server.
    """
    schemas = with_subgraphs(workflow, schemas)
    links = _links(workflow, schemas)
    nodes, frames = _nodes(workflow, schemas, links)
    definitions = [_definition(each, schemas) for each in subgraphs_of(workflow)]
    return {
        "id": unique_id(workflow.name),
        "revision": 0,
        "last_node_id": max(entry["id"] for entry in nodes),
        "last_link_id": len(links),
        "nodes": nodes,
        "links": links,
        "groups": [_group(index, frame) for index, frame in enumerate(frames, 1)],
        **({"definitions": {"subgraphs": definitions}} if definitions else {}),
        "config": {},
        "extra": {"ds": {"scale": 0.5, "offset": [60, 120]}},
        "version": 0.4,
    }


def _nodes(
    workflow: Workflow, schemas: Schemas, links: list[list[Any]]
) -> tuple[list[dict[str, Any]], list[Frame]]:
    places, frames = arrange(workflow, schemas)
    order = {node.id: index for index, node in enumerate(workflow.ordered())}
    nodes = [_note(note, places[note.id]) for note in workflow.notes]
    nodes += [
        _node(workflow, node, schemas, places[node.id], links, order[node.id])
        for node in workflow.nodes
    ]
    for index, entry in enumerate(sorted(nodes, key=lambda entry: entry["order"])):
        entry["order"] = index
    return nodes, frames


def _definition(subgraph: Subgraph, schemas: Schemas) -> dict[str, Any]:
    inner = subgraph.inner
    links = _links(inner, schemas, subgraph)
    nodes, _ = _nodes(inner, schemas, links)
    right = max(node["pos"][0] + node["size"][0] for node in nodes)
    named = ("id", "origin_id", "origin_slot", "target_id", "target_slot", "type")
    return {
        "id": subgraph.id,
        "version": 1,
        "state": {
            "lastGroupId": 0,
            "lastNodeId": max(node["id"] for node in nodes),
            "lastLinkId": len(links),
            "lastRerouteId": 0,
        },
        "revision": 0,
        "config": {},
        "name": inner.name,
        **ends(subgraph, links, (right, nodes[0]["pos"][1])),
        "widgets": [],
        "nodes": nodes,
        "groups": [],
        "links": [dict(zip(named, link, strict=True)) for link in links],
        "extra": {},
    }


def _checked(workflow: Workflow, node: Node, schemas: Schemas) -> list[Input]:
    if node.type not in schemas:
        raise ValueError(f"{workflow.name}: the server has no node {node.type}")
    given = [each for each in inputs_of(schemas[node.type], node.values) if each.type != GROWING]
    unknown = set(node.values) - {each.name for each in given}
    if unknown:
        raise ValueError(f"{workflow.name}: {node.type} has no input {sorted(unknown)}")
    # ComfyUI keeps sockets before what is set on the node.
    return sorted(given, key=lambda each: each.is_widget)


def _source(workflow: Workflow, output: Output, schemas: Schemas) -> tuple[Node, int]:
    node = workflow.numbered(output.node)
    names = schemas[node.type]["output_name"]
    if output.name not in names:
        raise ValueError(f"{workflow.name}: {node.type} has no output {output.name}")
    return node, list(names).index(output.name)


def _links(workflow: Workflow, schemas: Schemas, within: Subgraph | None = None) -> list[list[Any]]:
    links: list[list[Any]] = []
    for node in workflow.nodes:
        for slot, each in enumerate(_checked(workflow, node, schemas)):
            value = node.values.get(each.name)
            if isinstance(value, Output):
                source, output = _source(workflow, value, schemas)
                kind = schemas[source.type]["output"][output]
                links.append([len(links) + 1, source.id, output, node.id, slot, kind])
            elif isinstance(value, Given) and within:
                at = list(within.inputs).index(value.name)
                links.append([len(links) + 1, INPUTS, at, node.id, slot, each.type])
    for at, value in enumerate(within.outputs.values() if within else ()):
        source, output = _source(workflow, value, schemas)
        kind = schemas[source.type]["output"][output]
        links.append([len(links) + 1, source.id, output, OUTPUTS, at, kind])
    return links


def _node(
    workflow: Workflow,
    node: Node,
    schemas: Schemas,
    place: Place,
    links: list[list[Any]],
    order: int,
) -> dict[str, Any]:
    incoming = {link[4]: link[0] for link in links if link[3] == node.id}
    entries: list[dict[str, Any]] = []
    values: list[Any] = []
    for slot, each in enumerate(_checked(workflow, node, schemas)):
        entry = {"name": each.name, "type": each.type, "link": incoming.get(slot)}
        entries.append(entry)
        if not each.is_widget:
            entry |= {} if each.required else {"shape": 7}
            if "." in each.name:
                # The page names only those that it adds itself.
                entry["label"] = each.name.rpartition(".")[2]
            continue
        entry["widget"] = {"name": each.name}
        value = node.values.get(each.name, each.default)
        values.append(each.default if isinstance(value, Given) else value)
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
