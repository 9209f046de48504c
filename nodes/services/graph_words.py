"""Says settings in the words of a graph: the one place that turns their names into inputs.

The core names settings by their place in a run file. A graph has nodes with inputs, so here
``dataset.missing_caption`` becomes ``missing_caption of Dataset From Folder``. Whatever is shown in
a graph passes here: errors, warnings, notes, what is found in a folder.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

_OPENING = {"AdapterTrainerQuick": "Open as full graph"}
"""Nodes that stand for several, with the button that lays these out."""

# As a run file has it; in a graph a value is chosen. A caption may have the same form.
_ASSIGNED = re.compile(r"\b(set (\w+)(?: of [\w ()]{1,80})?): (?=[\w-])", re.IGNORECASE)


class NodeInputs(NamedTuple):
    """What a node has inputs for.

    Attributes:
        node_class: As prompts name it.
        title: As the canvas shows it.
        paths: YAML paths of settings, to the ids of the inputs.
    """

    node_class: str
    title: str
    paths: Mapping[str, str]


# A setting as a message names it; a dot behind it may end the sentence.
_NAMED = re.compile(r"(?<![\w./\\-])[a-z]\w*(?:\.[a-z]\w*)+(?![\w/\\]|\.\w)")
_nodes: list[Callable[[], NodeInputs]] = []


def register_inputs(inputs: Callable[[], NodeInputs]) -> None:
    """Know the inputs of a node; they are asked for when a message is shown."""
    _nodes.append(inputs)
    _registered.cache_clear()
    _inputs_by_path.cache_clear()


def settings_of(node_class: str) -> Mapping[str, str] | None:
    """Ids of a node's inputs to the YAML paths of their settings; None for a node of others."""
    for node in _registered():
        if node.node_class == node_class:
            return {own: path for path, own in node.paths.items()}
    return None


def titles_in(prompt: Mapping[str, object]) -> frozenset[str]:
    """Titles of the pack's nodes in a prompt of ComfyUI's API, which may come from anybody."""
    nodes = [each for each in prompt.values() if isinstance(each, Mapping)]
    classes = {str(each.get("class_type")) for each in nodes}
    return frozenset(node.title for node in _registered() if node.node_class in classes)


def in_graph_words(text: str, node_class: str = "", titles: Collection[str] = ()) -> str:
    """A message with the inputs of nodes in place of the settings that it names.

    Args:
        text: It may name settings by their YAML paths.
        node_class: Of the node that shows it, whose inputs are named by their ids alone.
        titles: Of nodes in the graph, which are named where several have the same setting.
    """
    return parts_in_graph_words([text], node_class, titles)[0]


def parts_in_graph_words(
    parts: Iterable[str], node_class: str = "", titles: Collection[str] = ()
) -> list[str]:
    """The parts of one message, as `in_graph_words`; the last says how to reach absent inputs."""
    inputs = _inputs_by_path(node_class, frozenset(titles))
    absent: dict[str, None] = {}

    def input_name(match: re.Match[str]) -> str:
        found = inputs.get(match[0])
        if found is None:
            return match[0]
        own, title = found
        if title and title not in titles:
            absent[title] = None
        return f"{own} of {title}" if title else own

    names = {own for own, _ in inputs.values()}

    def assigned(match: re.Match[str]) -> str:
        return f"{match[1]} to " if match[2] in names else match[0]

    sentences = [_ASSIGNED.sub(assigned, _NAMED.sub(input_name, each)) for each in parts]
    button = _OPENING.get(node_class)
    if button and absent:
        last = sentences[-1].rstrip(". ")
        sentences[-1] = f"{last}. “{button}” lays out {' and '.join(absent)}."
    return sentences


@functools.cache
def _registered() -> Sequence[NodeInputs]:
    return [each() for each in _nodes]


@functools.lru_cache(maxsize=64)
def _inputs_by_path(node_class: str, titles: frozenset[str]) -> Mapping[str, tuple[str, str]]:
    """YAML paths to the id of an input, and the title of its node where that is another one."""
    inputs: dict[str, tuple[str, str]] = {}
    # The node's own settings win over another node's.
    for node in sorted(
        _registered(), key=lambda node: (node.node_class != node_class, node.title not in titles)
    ):
        title = "" if node.node_class == node_class else node.title
        for path, own in node.paths.items():
            inputs.setdefault(path, (own, title))
    return inputs
