"""Writes the shipped workflows into ``workflows`` and, as they are queued, ``tests/workflows``.

Defaults, the order of inputs and the outputs come from a running ComfyUI that has the pack. Run
from the root of the repository: ``python -m scripts.build_workflows http://127.0.0.1:8188``.
"""

from __future__ import annotations

import argparse
import json
import urllib.request
from pathlib import Path
from typing import Any

from scripts.workflow_graphs.formats import Schemas, to_api, to_ui
from scripts.workflow_graphs.shipped import WORKFLOWS

ROOT = Path(__file__).resolve().parents[1]
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


def main() -> None:
    """Asks the server and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server", help="address of a running ComfyUI")
    address = parser.parse_args().server.rstrip("/")
    with urllib.request.urlopen(f"{address}/object_info", timeout=60) as answer:
        files = built(json.load(answer))
    for path, text in files.items():
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
        print(f"wrote {path}")


if __name__ == "__main__":
    main()
