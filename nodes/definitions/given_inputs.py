"""What a node is given, checked once for all nodes: a prompt of the API can put anything anywhere.

ComfyUI checks links against the types of sockets, and texts against the choices of a list. It lets
any value pass that stands where a link belongs, and drops a choice that it does not know. Then our
code would fail at something that it was never meant for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from comfy_api.latest import io

from ...trainer_core.errors import InputError
from ...trainer_core.printable import shortened
from . import sockets

_Node = TypeVar("_Node", bound=type[io.ComfyNode])
_LONGEST = 60
_WIDGETS: Mapping[str, type | tuple[type, ...]] = {
    io.String.io_type: str,
    io.Int.io_type: int,
    io.Float.io_type: (int, float),
    io.Boolean.io_type: bool,
    io.Combo.io_type: str,
}


def checked(node: _Node) -> _Node:
    """Let a node's ``execute`` refuse what its inputs are not made for, before it does anything.

    Args:
        node: A node of this pack; it is changed.

    Returns:
        The same.
    """
    inner: Callable[..., io.NodeOutput] = node.execute.__func__  # type: ignore[attr-defined]

    @functools.wraps(inner)
    def run(cls: type[io.ComfyNode], **given: Any) -> io.NodeOutput:
        for each in cls.SCHEMA.inputs:
            _check(cls.SCHEMA, each, given)
        return inner(cls, **given)

    node.execute = classmethod(run)  # type: ignore[assignment]
    return node


def _check(schema: io.Schema, asked: io.Input, given: Mapping[str, Any]) -> None:
    value = given.get(asked.id)
    if value is None:
        if not asked.optional:
            raise _refused(schema, asked, "nothing, or a choice that is not known")
        return
    # A node that takes lists is given one for each input.
    for each in value if schema.is_input_list and isinstance(value, list) else [value]:
        _check_value(schema, asked, each)


def _check_value(schema: io.Schema, asked: io.Input, value: Any) -> None:
    kind = asked.get_io_type()
    if isinstance(asked, io.DynamicCombo.Input):
        known = [option.key for option in asked.options]
        fits = isinstance(value, dict) and value.get(asked.id) in known
    elif kind in _WIDGETS:
        fits = isinstance(value, _WIDGETS[kind])
        if isinstance(value, float) and not math.isfinite(value):
            fits = False
    elif kind in sockets.CLASSES:
        fits = isinstance(value, sockets.CLASSES[kind])
    elif kind == sockets.LoraModel.io_type:
        fits = isinstance(value, Mapping) and all(map(_is_tensor, value.values()))
    elif kind == io.Image.io_type:
        fits = _is_tensor(value)
    else:
        # A model, a CLIP or a VAE: whatever class it is, it is none that JSON could hold.
        fits = not isinstance(value, str | int | float | list | dict)
    if not fits:
        raise _refused(schema, asked, shortened(repr(value), _LONGEST))


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _refused(schema: io.Schema, asked: io.Input, found: str) -> InputError:
    kind = asked.get_io_type()
    name = f"{asked.id} of {schema.display_name}"
    if isinstance(asked, io.DynamicCombo.Input):
        choices = ", ".join(option.key for option in asked.options)
        return InputError(f"{name}: {found}", f"one of {choices}", "Choose one of these.")
    if kind in _WIDGETS:
        expected = {"COMBO": "a text, one of the list", "FLOAT": "a number"}.get(kind, kind.lower())
        return InputError(f"{name}: {found}", expected, "Correct the value.")
    return InputError(
        f"{name}: {found}",
        f"the output {kind} of another node",
        "Connect a node that has such an output; in a prompt of the API: [node id, output number].",
    )
