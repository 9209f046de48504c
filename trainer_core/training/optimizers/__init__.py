"""The optimizers of a run: one table of what each is, and what is done alike with all of them.

docs/optimizers.md says which one suits what, docs/decisions/0045 why they are built as they are.
"""

from __future__ import annotations

from .allocation import allocate_state, rehearse
from .optimizer_kind import evaluation_weights, update
from .registry import OPTIMIZERS, make_optimizer, require_optimizer, set_learning_rate
from .stored_state import goes_on, load_optimizer_tensors, optimizer_tensors

__all__ = [
    "OPTIMIZERS",
    "allocate_state",
    "evaluation_weights",
    "goes_on",
    "load_optimizer_tensors",
    "make_optimizer",
    "optimizer_tensors",
    "rehearse",
    "require_optimizer",
    "set_learning_rate",
    "update",
]
