"""What a server's ``/object_info`` says of its nodes: inputs in order, defaults, outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Schemas = Mapping[str, Mapping[str, Any]]
"""A node's entry of ``/object_info`` by its id."""

_WIDGETS = {"INT", "FLOAT", "STRING", "BOOLEAN", "COMBO", "COLOR", "COMFY_DYNAMICCOMBO_V3"}
_DYNAMIC = "COMFY_DYNAMICCOMBO_V3"
GROWING = "COMFY_AUTOGROW_V3"
"""Stands for as many sockets as are linked, and has none itself."""

_SEEDS = {"seed", "noise_seed"}


@dataclass(frozen=True, slots=True)
class Input:
    """An input of a node.

    Attributes:
        name: Its id; an input of a choice is ``<choice>.<name>``, a socket of a growing one
            ``<input>.<prefix><number>``.
        type: Its type; ``COMBO`` for a list of words.
        options: What else is said of it.
        choices: The words that a COMBO takes.
        required: Whether it has to be given.
    """

    name: str
    type: str
    options: Mapping[str, Any]
    choices: tuple[Any, ...]
    required: bool

    @property
    def is_widget(self) -> bool:
        """Whether it is set on the node and not by a link."""
        # Of several types, the first says what the page shows.
        return self.type.split(",")[0] in _WIDGETS and not self.options.get("forceInput")

    @property
    def default(self) -> Any:
        """What a new node shows."""
        if "default" in self.options:
            return self.options["default"]
        if self.choices:
            return self.choices[0]
        return {"INT": 0, "FLOAT": 0.0, "STRING": "", "BOOLEAN": False}.get(self.type)

    @property
    def control(self) -> str | None:
        """What the browser keeps behind the value in a workflow file, or None.

        A seed has the rule for its next value, an image its upload button.
        """
        if self.options.get("image_upload"):
            return "image"
        asked = self.options.get("control_after_generate")
        if asked is None:
            asked = self.type == "INT" and self.name in _SEEDS
        return "fixed" if asked else None


def inputs_of(schema: Mapping[str, Any], values: Mapping[str, Any]) -> Iterator[Input]:
    """The inputs that a node has with these values, in the schema's order.

    Args:
        schema: The node's entry of ``/object_info``.
        values: The node's values; a choice among them decides what follows it.
    """
    for group in ("required", "optional"):
        for name, spec in schema["input"].get(group, {}).items():
            whole = _input(name, spec, required=group == "required")
            yield whole
            if whole.type == _DYNAMIC:
                yield from _chosen(whole, values.get(name, whole.default))
            elif whole.type == GROWING:
                yield from _grown(whole, values)


def _chosen(whole: Input, key: Any) -> Iterator[Input]:
    option = next(option for option in whole.options["options"] if option["key"] == key)
    for group in ("required", "optional"):
        for name, spec in option["inputs"].get(group, {}).items():
            yield _input(f"{whole.name}.{name}", spec, required=group == "required")


def _grown(whole: Input, values: Mapping[str, Any]) -> Iterator[Input]:
    """The sockets that the page shows: those that are linked and a free one, or the fewest."""
    template = whole.options["template"]
    ((_, spec),) = template["input"]["required"].items()
    linked = sum(name.startswith(f"{whole.name}.") for name in values)
    for number in range(min(max(template["min"], linked + 1), template["max"])):
        name = f"{whole.name}.{template['prefix']}{number}"
        yield _input(name, spec, required=number < template["min"])


def _input(name: str, spec: Any, *, required: bool) -> Input:
    kind, options = spec[0], spec[1] if len(spec) > 1 else {}
    if isinstance(kind, list):
        return Input(name, "COMBO", options, tuple(kind), required)
    listed = options.get("options", ()) if kind in {"COMBO", _DYNAMIC} else ()
    choices = tuple(each["key"] if isinstance(each, dict) else each for each in listed)
    return Input(name, kind, options, choices, required)
