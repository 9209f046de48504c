"""What ComfyUI's own reader makes of adapter files: `reader_process` and its results."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from comfyui.host import ComfyHost
from safetensors import safe_open
from safetensors.torch import load_file


def read_by_comfyui(
    host: ComfyHost,
    folder: Path,
    adapters: Iterable[str],
    names: Mapping[str, Any],
    bypass: Iterable[str] = (),
) -> dict[str, tuple[dict[str, Any], list[str], int]]:
    """Patched weights, messages and number of patched layers of each adapter.

    Args:
        host: Where ComfyUI's reader runs.
        folder: It has ``base.safetensors``, and each adapter under its name.
        adapters: Their names.
        names: What a name in the files means, see `reader_process`.
        bypass: Names of adapters whose bypass is computed as well.
    """
    adapters = list(adapters)

    def path(name: str, ending: str = "safetensors") -> str:
        return str(folder / f"{name}.{ending}")

    jobs = {
        "base": path("base"),
        "names": names,
        "adapters": {path(name): path(name, "result") for name in adapters},
        "bypass": [path(name) for name in bypass],
    }
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    host.run("reader_process.py", folder / "jobs.json")
    found = {}
    for name in adapters:
        with safe_open(path(name, "result"), "pt") as file:
            header = file.metadata()
        weights = load_file(path(name, "result"))
        found[name] = (weights, json.loads(header["messages"]), int(header["patched"]))
    return found
