"""All workflows that the pack ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from .bases import FULL_SIZE
from .comparing import convert_and_compare
from .embedded import embedded_edit, embedded_folders, embedded_generate
from .full_size import full_size
from .graph import Workflow
from .graph_models import GRAPH_BASES, graph_model
from .quick import first_adapter, quick

QUICK, ADVANCED, MODELS = 11, 61, 91
"""The first numbers of the workflows for full-size bases, with few settings and with all, and for
models of the graph; a new base renames no other's."""

WORKFLOWS: Sequence[Callable[[], Workflow]] = (
    first_adapter,
    *(partial(quick, number, base) for number, base in enumerate(FULL_SIZE, QUICK)),
    convert_and_compare,
    embedded_generate,
    embedded_edit,
    embedded_folders,
    *(partial(full_size, number, base) for number, base in enumerate(FULL_SIZE, ADVANCED)),
    *(partial(graph_model, number, base) for number, base in enumerate(GRAPH_BASES, MODELS)),
)
"""What makes each of them, in the order of a learner: their names begin with their number."""
