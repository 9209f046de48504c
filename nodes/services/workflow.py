"""The workflow that a run was started from: kept with the run, and given back to the browser."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ...trainer_core.errors import InputError
from ..host import comfy_host


def started_workflow(prompt: object, extra: object) -> dict[str, object]:
    """What ComfyUI says of the graph that runs, as far as it may be kept.

    Args:
        prompt: The hidden input ``prompt``.
        extra: The hidden input ``extra_pnginfo``; None without a browser.

    Returns:
        JSON values under ``workflow`` and ``prompt``; nothing under ``--disable-metadata``.
    """
    if not comfy_host.keeps_workflows():
        return {}
    found: dict[str, object] = {}
    if isinstance(extra, Mapping) and extra.get("workflow"):
        found["workflow"] = extra["workflow"]
    if isinstance(prompt, Mapping) and prompt:
        found["prompt"] = {name: _as_queued(node) for name, node in prompt.items()}
    return found


def _as_queued(node: object) -> object:
    # ComfyUI notes there whether a node has changed: stamps of files, or a number that JSON lacks.
    if not isinstance(node, Mapping):
        return node
    return {name: value for name, value in node.items() if name != "is_changed"}


def add_workflow_route(table: Any) -> None:
    """Add the route that gives the browser a run's workflow, as it lies on disk.

    Args:
        table: An aiohttp route table.
    """
    from aiohttp import web

    @table.get("/adapter_trainer/workflow")
    async def workflow(request: web.Request) -> web.Response:
        name = request.query.get("run", "")
        try:
            content = await asyncio.to_thread(_kept_workflow, name)
        except InputError as error:
            return web.json_response({"reason": error.found}, status=404)
        except OSError as error:
            reason = f"the workflow of this run cannot be read ({error.strerror or error})"
            return web.json_response({"reason": reason}, status=404)
        return web.Response(
            body=content,
            content_type="application/json",
            headers={"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"},
        )


def _kept_workflow(run: str) -> bytes:
    """A run's workflow, or else its prompt; the browser sees whether it is one.

    Raises:
        InputError: When there is no such run, or it has none.
        OSError: When the file cannot be read.
    """
    from ...trainer_core.adapter_files.header import LARGEST_KEPT, WORKFLOW_KEYS

    for key in WORKFLOW_KEYS:
        path = comfy_host.run_file(run, f"{key}.json")
        if path is None:
            continue
        if path.stat().st_size > LARGEST_KEPT + 1:
            raise InputError(
                f"{path.name} of {run} is too large",
                f"at most {LARGEST_KEPT // 2**20} MiB",
                "Open it by hand, if you trust it.",
            )
        return path.read_bytes()
    raise InputError(
        f"{run} has no workflow", "a run that was started in ComfyUI", "Choose another run."
    )
