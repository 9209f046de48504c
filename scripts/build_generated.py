"""Writes what follows from the settings: the nodes' help pages, workflows and locale files.

``make generated`` runs it with a ComfyUI that it starts, as the tests do. With a running one that
has the pack, from the root of the repository:
``python -m scripts.build_generated http://127.0.0.1:8188``.
"""

from __future__ import annotations

import json
import shutil
import sys
import urllib.request
from pathlib import Path
from typing import Any

from scripts import build_help_pages, build_locales, build_workflows

ROOT = Path(__file__).resolve().parents[1]
_SERVER = ROOT / "build" / "generated"


def generated(schemas: dict[str, Any]) -> dict[Path, str]:
    """All files and their text, by path from the root of the repository.

    Args:
        schemas: ``/object_info`` of a ComfyUI with the pack.
    """
    return (
        build_help_pages.built(schemas)
        | build_workflows.built(schemas)
        | build_locales.built(schemas)
    )


def _schemas(address: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{address.rstrip('/')}/object_info", timeout=60) as answer:
        return json.load(answer)


def _of_own_server() -> dict[str, Any]:
    from comfyui.conftest import comfy_programs, make_data
    from comfyui.server import comfy_server

    shutil.rmtree(_SERVER, ignore_errors=True)
    with comfy_server(*comfy_programs(), make_data(_SERVER)) as server:
        return _schemas(server.address)


def main() -> None:
    """Asks the server and writes the files that are another now."""
    schemas = _schemas(sys.argv[1]) if len(sys.argv) > 1 else _of_own_server()
    for path, text in generated(schemas).items():
        if not (ROOT / path).exists() or (ROOT / path).read_text(encoding="utf-8") != text:
            (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
            (ROOT / path).write_text(text, encoding="utf-8")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
