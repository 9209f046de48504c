"""All workflows that the pack ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from .comparing import convert_and_compare
from .embedded import embedded_edit, embedded_generate
from .flux import flux_dev_lora, flux_kontext
from .graph import Workflow
from .quick import QUICK, first_adapter, quick
from .qwen_image import qwen_image_edit, qwen_image_lokr

WORKFLOWS: Sequence[Callable[[], Workflow]] = (
    first_adapter,
    *(partial(quick, choice) for choice in QUICK),
    convert_and_compare,
    embedded_generate,
    embedded_edit,
    qwen_image_lokr,
    qwen_image_edit,
    flux_dev_lora,
    flux_kontext,
)
"""What makes each of them, in the order of a learner: their names begin with their number."""
