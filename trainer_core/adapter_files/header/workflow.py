"""The workflow that made an adapter, as ComfyUI's page reads it back: JSON texts, never more.

There are two: ``workflow``, the graph as the page draws it, and ``prompt``, what the server ran.
The trainer writes them down and tells how large they are; nothing of what they say is acted on.
They hold prompts, paths and names, so a file that is shared has them only when that was asked for.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from ...filesystem.text_files import parse_json

WORKFLOW_KEYS = ("workflow", "prompt")
"""Keys of a header under which ComfyUI's page looks, the one that it prefers first."""

LARGEST_KEPT = 16 * 1024 * 1024
"""Bytes of one text that are kept beside a run; a workflow has some ten thousand."""

LARGEST_IN_HEADER = 1024 * 1024
"""Bytes that both texts may take in a header. ComfyUI's page reads the first 4 MiB of a file, and
the whole header with the list of all tensors has to be in them (frontend 1.49.6, pnginfo.ts)."""


def workflow_texts(given: Mapping[str, object], warn: Callable[[str], None]) -> dict[str, str]:
    """Turn what the host says of a workflow into texts; what cannot be one is left out.

    Args:
        given: What the host has under some of `WORKFLOW_KEYS`; None is nothing.
        warn: Told, in a line, of each that is left out.

    Returns:
        ASCII by key: an object of strict JSON each, of at most `LARGEST_KEPT` bytes.
    """
    kept: dict[str, str] = {}
    for key in WORKFLOW_KEYS:
        value = given.get(key)
        if value is None:
            continue
        try:
            text = json.dumps(value, separators=(",", ":"), allow_nan=False)
        except (ValueError, TypeError, RecursionError) as error:
            warn(f"The {key} of this run is not kept: it is no JSON ({str(error)[:80]}).")
            continue
        if not isinstance(value, Mapping):
            warn(f"The {key} of this run is not kept: it is no JSON object.")
        elif len(text) > LARGEST_KEPT:
            warn(f"The {key} of this run is not kept: it has {_size(text)}.")
        else:
            kept[key] = text
    return kept


def header_workflow(texts: Mapping[str, str]) -> dict[str, str]:
    """Choose what fits into an adapter file's header.

    Args:
        texts: As `workflow_texts` gives them.

    Returns:
        The same by key, as far as both together take at most `LARGEST_IN_HEADER` bytes.
    """
    room = LARGEST_IN_HEADER
    kept: dict[str, str] = {}
    for key in WORKFLOW_KEYS:
        # Quotation marks and backslashes take two bytes in a header.
        size = len(json.dumps(texts[key])) if key in texts else room + 1
        if size <= room:
            kept[key] = texts[key]
            room -= size
    return kept


def header_problems(texts: Mapping[str, str]) -> list[str]:
    """Say, in a line each, what does not fit into a header."""
    kept = header_workflow(texts)
    return [
        f"The {key} of this run ({_size(text)}) is too large for the adapter file's header; it is "
        "in the run's folder."
        for key, text in texts.items()
        if key not in kept
    ]


def workflow_summary(text: str) -> dict[str, Any]:
    """Tell of a header's workflow what can be told without showing it.

    Args:
        text: Of a file that may come from anybody.

    Returns:
        ``bytes``, and ``nodes`` or the ``problem`` with it.
    """
    summary: dict[str, Any] = {"bytes": len(text.encode(errors="surrogatepass"))}
    if summary["bytes"] > LARGEST_KEPT:
        return {**summary, "problem": "too large to be looked at"}
    try:
        content = parse_json(text)
    except ValueError:
        return {**summary, "problem": "no JSON"}
    if not isinstance(content, dict):
        return {**summary, "problem": "no JSON object"}
    drawn = content.get("nodes")
    if isinstance(drawn, list):
        return {**summary, "nodes": len(drawn)}
    queued = [each for each in content.values() if isinstance(each, dict) and "class_type" in each]
    return {**summary, "nodes": len(queued)}


def _size(text: str) -> str:
    return f"{len(text) / 2**20:.1f} MiB"
