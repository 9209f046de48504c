"""A workflow as its author thinks of it: nodes with what differs from the default, in sections."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Output:
    """An output of a node.

    Attributes:
        node: The node's id.
        name: The output's name.
    """

    node: int
    name: str


@dataclass(frozen=True, slots=True)
class Given:
    """An input of a subgraph, as a node inside it names it."""

    name: str


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the graph.

    Attributes:
        id: Its number in the workflow.
        type: Its id in ComfyUI.
        values: What differs from the defaults, and the links, by input name.
        title: Shown instead of the node's own name.
        models: Model files that it names.
        tall: Height instead of the measured one; for images.
        subgraph: What it stands for, when it is several nodes shown as one.
    """

    id: int
    type: str
    values: Mapping[str, Any]
    title: str = ""
    models: tuple[Mapping[str, str], ...] = ()
    tall: int = 0
    subgraph: Subgraph | None = None

    def __getitem__(self, output: str) -> Output:
        return Output(self.id, output)


@dataclass(frozen=True, slots=True)
class Note:
    """A text beside the nodes, in Markdown.

    ComfyUI shows code in blue on the note's colour, which cannot be read: the texts have none.
    """

    id: int
    title: str
    text: str
    width: int
    height: int


Item = Node | Note


@dataclass(frozen=True, slots=True)
class Subgraph:
    """Several nodes that ComfyUI shows as one, and opens with a double click.

    Attributes:
        inner: Its nodes; they take its inputs as `Given`.
        inputs: Names of its inputs, sockets before those that are set on it.
        outputs: Its outputs, by name.
        size: Width and height of the node that stands for it.
    """

    inner: Workflow
    inputs: Sequence[str]
    outputs: Mapping[str, Output]
    size: tuple[int, int]

    @property
    def id(self) -> str:
        """Its id in a workflow file, in the place of a node's type."""
        return unique_id(f"subgraph/{self.inner.name}")


def unique_id(name: str) -> str:
    """The same UUID for the same name, as workflow files want one."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"adapter-trainer/{name}"))


@dataclass(frozen=True, slots=True)
class Section:
    """A framed part of the image: columns of nodes, from left to right."""

    title: str
    columns: Sequence[Sequence[Item]]


@dataclass(slots=True)
class Workflow:
    """One workflow.

    Attributes:
        name: Name of its files.
        purpose: What it does, in a line.
        first: Number of its first node. The page gives the nodes of a subgraph other numbers
            where the workflow, or another of its subgraphs, has the same.
        rows: Sections from left to right, one such row below the other.
    """

    name: str
    purpose: str
    first: int = 1
    rows: list[list[Section]] = field(default_factory=list)
    _nodes: list[Node] = field(default_factory=list)
    _notes: list[Note] = field(default_factory=list)

    def node(
        self,
        kind: str,
        values: Mapping[str, Any] | None = None,
        *,
        title: str = "",
        models: Sequence[Mapping[str, str]] = (),
        tall: int = 0,
    ) -> Node:
        """Add a node; the order of adding numbers the nodes."""
        number = self.first + len(self._nodes)
        node = Node(number, kind, dict(values or {}), title, tuple(models), tall)
        self._nodes.append(node)
        return node

    def several(self, subgraph: Subgraph, values: Mapping[str, Any], *, title: str = "") -> Node:
        """Add a node that stands for several."""
        number = self.first + len(self._nodes)
        node = Node(number, subgraph.id, dict(values), title, subgraph=subgraph)
        self._nodes.append(node)
        return node

    def note(
        self, text: str, height: int, width: int = 400, title: str = "Read this first"
    ) -> Note:
        """Add a note; notes are numbered behind 100."""
        note = Note(101 + len(self._notes), title, text.strip(), width, height)
        self._notes.append(note)
        return note

    def row(self, *sections: Section) -> None:
        """Add a row of sections below the others."""
        self.rows.append(list(sections))

    @property
    def nodes(self) -> Sequence[Node]:
        """All nodes, by number."""
        return self._nodes

    @property
    def notes(self) -> Sequence[Note]:
        """All notes, by number."""
        return self._notes

    def numbered(self, number: int) -> Node:
        """The node of a number."""
        return self._nodes[number - self.first]

    def ordered(self) -> Iterator[Node]:
        """The nodes so that each comes behind those that it is linked to."""
        left, done = list(self._nodes), set()
        while left:
            ready = [node for node in left if _sources(node) <= done]
            if not ready:
                raise ValueError(f"{self.name}: the links run in a circle")
            yield from ready
            done |= {node.id for node in ready}
            left = [node for node in left if node.id not in done]


def _sources(node: Node) -> set[int]:
    return {value.node for value in node.values.values() if isinstance(value, Output)}
