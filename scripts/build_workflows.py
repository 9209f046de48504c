"""Makes the shipped workflows of ``workflows`` and, as they are queued, of ``tests/workflows``.

Defaults, the order of inputs and the outputs come from a running ComfyUI that has the pack.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scripts.workflow_graphs.formats import Schemas, to_api, to_ui
from scripts.workflow_graphs.shipped import WORKFLOWS

DRAWN = Path("workflows")
QUEUED = Path("tests", "workflows")


def built(schemas: Schemas) -> dict[Path, str]:
    """All files and their text.

    Args:
        schemas: ``/object_info`` of a ComfyUI with the pack.

    Returns:
        Text by path from the root of the repository.
    """
    files: dict[Path, str] = {}
    for make in WORKFLOWS:
        workflow = make()
        files[DRAWN / f"{workflow.name}.json"] = _text(to_ui(workflow, schemas))
        files[QUEUED / f"{workflow.name}.json"] = _text(to_api(workflow, schemas))
    return files


def _text(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
