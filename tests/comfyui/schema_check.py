"""What a workflow in API format asks of a server that the server does not have."""

from collections.abc import Iterator, Mapping
from typing import Any

Schemas = Mapping[str, Mapping[str, Any]]
_DYNAMIC = "COMFY_DYNAMICCOMBO_V3"
_GROWING = "COMFY_AUTOGROW_V3"


def faults(prompt: Mapping[str, Any], schemas: Schemas) -> list[str]:
    """Unknown nodes and inputs, absent ones, values that are not offered, links that do not fit."""
    return [f"node {node}: {fault}" for node in prompt for fault in _of_node(node, prompt, schemas)]


def _of_node(node: str, prompt: Mapping[str, Any], schemas: Schemas) -> Iterator[str]:
    kind, given = prompt[node]["class_type"], prompt[node]["inputs"]
    if kind not in schemas:
        yield f"no class {kind}"
        return
    known = dict(_inputs(schemas[kind]["input"], given, ""))
    yield from (f"no input {name}" for name in given.keys() - known.keys())
    for name, (spec, required) in known.items():
        if name not in given:
            if required:
                yield f"{name} is absent"
        elif isinstance(given[name], list):
            yield from _of_link(name, given[name], spec[0], prompt, schemas)
        else:
            yield from _of_value(name, given[name], spec)


def _inputs(
    groups: Mapping[str, Any], given: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, tuple[Any, bool]]]:
    for group in ("required", "optional"):
        for name, spec in groups.get(group, {}).items():
            path = f"{prefix}{name}"
            if spec[0] == _GROWING:
                yield from _grown(path, spec[1]["template"])
                continue
            yield path, (spec, group == "required")
            if spec[0] == _DYNAMIC:
                for option in spec[1]["options"]:
                    if option["key"] == given.get(path):
                        yield from _inputs(option["inputs"], given, f"{path}.")


def _grown(path: str, template: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Any, bool]]]:
    ((_, spec),) = template["input"]["required"].items()
    for number in range(template["max"]):
        yield f"{path}.{template['prefix']}{number}", (spec, number < template["min"])


def _of_link(
    name: str, link: list[Any], wanted: Any, prompt: Mapping[str, Any], schemas: Schemas
) -> Iterator[str]:
    source, slot = link
    if source not in prompt or prompt[source]["class_type"] not in schemas:
        yield f"{name} comes from an unknown node {source}"
        return
    outputs = schemas[prompt[source]["class_type"]]["output"]
    if slot >= len(outputs):
        yield f"{name} comes from an output {slot} that is not there"
    elif outputs[slot] not in str(wanted).split(",") and "*" not in (outputs[slot], wanted):
        yield f"{name} gets {outputs[slot]} instead of {wanted}"


def _of_value(name: str, value: Any, spec: Any) -> Iterator[str]:
    kind, options = spec[0], spec[1] if len(spec) > 1 else {}
    offered = kind if isinstance(kind, list) else options.get("options")
    if offered is not None:
        keys = [each["key"] if isinstance(each, dict) else each for each in offered]
        if value not in keys:
            yield f"{name} offers no {value!r}"
    elif kind.split(",")[0] in {"INT", "FLOAT"}:
        low, high = options.get("min", value), options.get("max", value)
        if not low <= value <= high:
            yield f"{name} is {value}, not in {low} to {high}"
    elif kind not in {"STRING", "BOOLEAN", "COLOR"}:
        yield f"{name} needs a link"
