"""The prompt that ComfyUI checks before it is queued: what it holds beside a node's own inputs.

ComfyUI shows a node's check only the inputs that it names, drops its own checks of those, and
repeats what the node says for each of them. So the checks name one input, and look here for the
rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from . import comfy_host

_asked: ContextVar[Mapping[str, Any] | None] = ContextVar("what is being queued", default=None)


def listen() -> None:
    """Remember what is being queued; the check runs in the same task, so in the same context."""

    def remember(request: Any) -> None:
        _asked.set(request if isinstance(request, Mapping) else None)

    comfy_host.add_prompt_listener(remember)


def constants(node_id: str) -> dict[str, Any] | None:
    """A node's inputs that are not links, in the prompt under check; None outside of a check."""
    inputs = _inputs(node_id)
    if inputs is None:
        return None
    return {name: value for name, value in inputs.items() if not _is_link(value)}


def _is_link(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def links(node_id: str) -> set[str]:
    """The names of a node's inputs that come over a link, in the prompt that is checked."""
    return {name for name, value in (_inputs(node_id) or {}).items() if isinstance(value, list)}


def loader_of(prompt: object, node_id: str, name: str) -> str:
    """The class of the node that an input is linked to, a slash, and the file that it loads.

    Nothing where the input has no link, or nobody knows what is behind it.
    """
    nodes = prompt if isinstance(prompt, Mapping) else {}
    link = _inputs_of(nodes.get(node_id)).get(name)
    loader = nodes.get(link[0]) if _is_link(link) else None
    if not isinstance(loader, Mapping):
        return ""
    files = [_inputs_of(loader).get(each) for each in ("unet_name", "ckpt_name")]
    file = next((each for each in files if isinstance(each, str)), "")
    return f"{loader.get('class_type', '')}/{file}"


def _inputs(node_id: str) -> Mapping[str, Any] | None:
    nodes = (_asked.get() or {}).get("prompt")
    node = nodes.get(node_id) if isinstance(nodes, Mapping) else None
    return _inputs_of(node) if isinstance(node, Mapping) else None


def _inputs_of(node: Any) -> Mapping[str, Any]:
    inputs = node.get("inputs") if isinstance(node, Mapping) else None
    return inputs if isinstance(inputs, Mapping) else {}


def workflow() -> str:
    """The id of the workflow whose prompt is checked or runs; empty without a page."""
    extra = (_asked.get() or comfy_host.running()).get("extra_data")
    for name in ("extra_pnginfo", "workflow"):
        extra = extra.get(name) if isinstance(extra, Mapping) else None
    return str(extra.get("id") or "") if isinstance(extra, Mapping) else ""


def tell_sender(event: str, payload: dict[str, Any]) -> None:
    """Send an event to the browser that is queueing the prompt; without one nobody hears it."""
    client = (_asked.get() or {}).get("client_id")
    if isinstance(client, str) and client:
        comfy_host.send(event, payload, client)
