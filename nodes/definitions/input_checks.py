"""Checks the type and choice of each input against its node's schema, also of API prompts.

A prompt of the API can put anything anywhere. ComfyUI checks links against the types of sockets,
and texts against the choices of a list. It lets any value pass that stands where a link belongs,
and drops a choice that it does not know. Then our code would fail at something that it was never
meant for.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from comfy_api.latest import io

from ...trainer_core.errors import InputError, TrainerError
from ...trainer_core.printable import shortened
from ..host import comfy_host, prompt_under_check
from . import sockets
from .setting_inputs import SettingInput, section_values
from .shown_errors import refusal_text, register_node, schema_of, shown_error

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

    An error that it raises is told in the words of the graph. The node is changed, and returned.
    """
    register_node(node)
    inner: Callable[..., io.NodeOutput] = node.execute.__func__  # type: ignore[attr-defined]

    @functools.wraps(inner)
    def run(cls: type[io.ComfyNode], **inputs: Any) -> io.NodeOutput:
        try:
            for each in cls.SCHEMA.inputs:
                _check(cls.SCHEMA, each, inputs)
            return inner(cls, **inputs)
        except TrainerError as error:
            raise shown_error(cls, error, _makers(inputs.values())) from None

    node.execute = classmethod(run)  # type: ignore[assignment]
    return node


def _makers(values: Iterable[Any]) -> set[str]:
    """Titles of the nodes that describe the datasets among what a node is given."""
    from ..services.socket_values import DatasetChoice, EncodedCache

    held = (each.dataset if isinstance(each, EncodedCache) else each for each in values)
    datasets = [each for each in held if isinstance(each, DatasetChoice)]
    return {part.made_by or "" for each in datasets for part in (each, *each.parts)}


class _NoBoolean(str):
    """A text that ComfyUI would take for true; it names the input whose value has no truth."""

    __slots__ = ()

    def __bool__(self) -> bool:
        raise ValueError("expected true or false")


def read_booleans(prompt: Any) -> None:
    """Read "true" and "false" of a prompt in place, and let ComfyUI refuse any other text."""
    nodes = prompt.get("prompt") if isinstance(prompt, Mapping) else None
    for each in nodes.values() if isinstance(nodes, Mapping) else ():
        if not isinstance(each, Mapping) or not isinstance(inputs := each.get("inputs"), dict):
            continue
        schema = schema_of(each.get("class_type"))
        for name in _booleans(schema.inputs) if schema else ():
            value = inputs.get(name)
            if isinstance(value, str):
                known = {"true": True, "false": False}
                inputs[name] = known.get(value.strip().lower(), _NoBoolean(value))


def _booleans(inputs: Iterable[io.Input], before: str = "") -> Iterator[str]:
    """The ids of all inputs for true or false, also of those that a choice shows."""
    for each in inputs:
        if isinstance(each, io.Boolean.Input):
            yield f"{before}{each.id}"
        elif isinstance(each, io.DynamicCombo.Input):
            for option in each.options:
                yield from _booleans(option.inputs, f"{before}{each.id}.")


def refusal(node: type[io.ComfyNode], check: Callable[[Mapping[str, Any]], None]) -> bool | str:
    """What a node's ``validate_inputs`` returns: true, or what is wrong, in lines.

    Nothing is checked while another prompt waits or runs: it may be about to write a folder.
    `check` is given the node's constants by name, and raises an error of the trainer. What comes
    over a link is not known yet.
    """
    constants = prompt_under_check.constants(comfy_host.current_node())
    if constants is None or comfy_host.is_busy():
        return True
    try:
        for name, value in constants.items():
            if isinstance(value, _NoBoolean):
                what = f"{name} of {node.SCHEMA.display_name}: {shortened(str(value), _LONGEST)}"
                raise InputError(what, "true or false", "Correct the value.")
        for each in node.SCHEMA.inputs:
            if each.id in constants and not isinstance(each, io.DynamicCombo.Input):
                _check_value(node.SCHEMA, each, constants[each.id])
        check(constants)
    except TrainerError as error:
        return refusal_text(node, error)
    return True


def settings_check(settings: Sequence[SettingInput]) -> Callable[[Mapping[str, Any]], None]:
    """A check of nothing but settings, given by the ids of their inputs."""

    def check(inputs: Mapping[str, Any]) -> None:
        from ..services.node_checks import check_settings

        check_settings(section_values(settings, inputs))

    return check


def _check(schema: io.Schema, declared: io.Input, inputs: Mapping[str, Any]) -> None:
    value = inputs.get(declared.id)
    if value is None:
        if not declared.optional:
            raise _refused(schema, declared, "nothing, or a choice that is not known")
        return
    # A node that takes lists is given one for each input.
    for each in value if schema.is_input_list and isinstance(value, list) else [value]:
        _check_value(schema, declared, each)


def _check_value(schema: io.Schema, declared: io.Input, value: Any) -> None:
    kind = declared.get_io_type()
    if isinstance(declared, io.Autogrow.Input) and isinstance(value, Mapping):
        _check_each(schema, declared.template.input, value)
        return
    if isinstance(declared, io.DynamicCombo.Input):
        known = [option.key for option in declared.options]
        fits = isinstance(value, dict) and value.get(declared.id) in known
    elif kind in _WIDGETS:
        fits = isinstance(value, _WIDGETS[kind])
        if isinstance(value, float) and not math.isfinite(value):
            fits = False
        # Half of an emoji, as JSON may hold it, is not text that an encoder takes.
        if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
            fits = False
    elif kind in (own := _own_classes()):
        fits = isinstance(value, own[kind])
    elif kind == sockets.LoraModel.io_type:
        fits = isinstance(value, Mapping) and all(map(_is_tensor, value.values()))
    elif kind in {io.Image.io_type, io.Mask.io_type}:
        fits = _is_tensor(value)
    else:
        # A model, a CLIP or a VAE: whatever class it is, it is none that JSON could hold.
        fits = not isinstance(value, str | int | float | list | dict)
    if not fits:
        raise _refused(schema, declared, shortened(repr(value), _LONGEST))


def _check_each(schema: io.Schema, declared: io.Input, values: Mapping[str, Any]) -> None:
    """Check what is connected to an input that grows."""
    for name, value in values.items():
        inner = copy.copy(declared)
        inner.id = name
        _check_value(schema, inner, value)


def _own_classes() -> Mapping[str, type]:
    """Sockets of this pack, to what travels through them; loaded with the first run."""
    from ..services import socket_values

    return {
        sockets.Dataset.io_type: socket_values.DatasetChoice,
        sockets.Base.io_type: socket_values.BaseChoice,
        sockets.Previews.io_type: socket_values.PreviewChoice,
        sockets.Cache.io_type: socket_values.EncodedCache,
        sockets.Adapter.io_type: socket_values.AdapterChoice,
        sockets.Settings.io_type: socket_values.SettingsChoice,
        sockets.Run.io_type: socket_values.RunHandle,
    }


def _is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def _refused(schema: io.Schema, declared: io.Input, found: str) -> InputError:
    kind = declared.get_io_type()
    name = f"{declared.id} of {schema.display_name}"
    if isinstance(declared, io.DynamicCombo.Input):
        choices = ", ".join(option.key for option in declared.options)
        return InputError(f"{name}: {found}", f"one of {choices}", "Choose one of these.")
    if kind in _WIDGETS:
        expected = {"COMBO": "a text, one of the list", "FLOAT": "a number"}.get(kind, kind.lower())
        return InputError(f"{name}: {found}", expected, "Correct the value.")
    return InputError(
        f"{name}: {found}",
        f"the output {kind} of another node",
        "Connect a node that has such an output; in a prompt of the API: [node id, output number].",
    )
