"""Subgraphs in ComfyUI's formats: what their node looks like, and what is inside."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .graph import Given, Node, Output, Subgraph, Workflow, unique_id
from .schemas import Schemas

INPUTS, OUTPUTS = -10, -20
"""Ids of the two ends of a subgraph, between which its nodes are linked."""


def with_subgraphs(workflow: Workflow, schemas: Schemas) -> Schemas:
    """A server's schemas and, of the same form, those of a workflow's subgraphs.

    Args:
        workflow: The workflow.
        schemas: ``/object_info`` of a server.
    """
    return {**schemas, **{each.id: _schema(each, schemas) for each in subgraphs_of(workflow)}}


def subgraphs_of(workflow: Workflow) -> list[Subgraph]:
    """The subgraphs of a workflow, each once."""
    found = {node.subgraph.id: node.subgraph for node in workflow.nodes if node.subgraph}
    return list(found.values())


def takers(subgraph: Subgraph, name: str) -> Iterator[tuple[Node, str]]:
    """The nodes inside that take an input of the subgraph, and by which of theirs."""
    for node in subgraph.inner.nodes:
        for own, value in node.values.items():
            if value == Given(name):
                yield node, own


def _schema(subgraph: Subgraph, schemas: Schemas) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    for name in subgraph.inputs:
        node, own = next(takers(subgraph, name))
        groups = schemas[node.type]["input"]
        kind, *options = next(group[own] for group in groups.values() if own in group)
        # A rule for a seed's next value stays with the node inside.
        taken[name] = [kind, {**(options[0] if options else {}), "control_after_generate": False}]
    types = [_output_type(subgraph.inner, output, schemas) for output in subgraph.outputs.values()]
    return {"input": {"required": taken}, "output": types, "output_name": [*subgraph.outputs]}


def _output_type(inner: Workflow, output: Output, schemas: Schemas) -> str:
    schema = schemas[inner.numbered(output.node).type]
    return schema["output"][schema["output_name"].index(output.name)]


def ends(subgraph: Subgraph, links: list[list[Any]], box: tuple[int, int]) -> dict[str, Any]:
    """Both ends of a subgraph and their slots.

    Args:
        subgraph: The subgraph.
        links: All links inside, in order id, source, output, target, input, type.
        box: Where its nodes end to the right, and the height at which the ends stand.
    """
    right, top = box
    given: dict[str, Any] = {}
    sides = (
        ("input", INPUTS, (1, 2), subgraph.inputs, -220),
        ("output", OUTPUTS, (3, 4), [*subgraph.outputs], right + 100),
    )
    for side, end, (node, slot), names, left in sides:
        given[f"{side}Node"] = {"id": end, "bounding": [left, top, 120, 40 + 20 * len(names)]}
        given[f"{side}s"] = [
            {
                "id": unique_id(f"subgraph/{subgraph.inner.name}/{side}/{name}"),
                "name": name,
                "type": next(link[5] for link in links if link[node] == end and link[slot] == at),
                "linkIds": [link[0] for link in links if link[node] == end and link[slot] == at],
                "pos": [left + (100 if side == "input" else 20), top + 20 + 20 * at],
            }
            for at, name in enumerate(names)
        ]
    return given
