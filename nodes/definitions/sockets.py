"""What nodes are given: their sockets, a file in an adapter's place, and the check of all of it.

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
from typing import TYPE_CHECKING, Any, TypeVar

from comfy_api.latest import io

from ...trainer_core.errors import InputError, TrainerError
from ...trainer_core.printable import shortened
from ..host import comfy_host, prompt_under_check
from ..host.folders import file_stamp
from ..services.expert_models import AUTO, ROLES, SWITCH_AT
from .refusals import as_refused, as_shown, know, schema_of
from .setting_inputs import SettingInput, section_values

if TYPE_CHECKING:
    from ..services.socket_values import RunHandle

Dataset = io.Custom("ADAPTER_TRAINER_DATASET")
Base = io.Custom("ADAPTER_TRAINER_BASE")
Previews = io.Custom("ADAPTER_TRAINER_PREVIEWS")
Cache = io.Custom("ADAPTER_TRAINER_CACHE")
Adapter = io.Custom("ADAPTER_TRAINER_ADAPTER")
Settings = io.Custom("ADAPTER_TRAINER_SETTINGS")
Run = io.Custom("ADAPTER_TRAINER_RUN")
LoraModel = io.Custom("LORA_MODEL")
LossMap = io.Custom("LOSS_MAP")

NO_FILE = "none"
"""The choice that stands for no file."""

BEST = "best"
"""The choice of the checkpoint with the lowest loss on held-out images."""

_Node = TypeVar("_Node", bound=type[io.ComfyNode])
_LONGEST = 60
_WIDGETS: Mapping[str, type | tuple[type, ...]] = {
    io.String.io_type: str,
    io.Int.io_type: int,
    io.Float.io_type: (int, float),
    io.Boolean.io_type: bool,
    io.Combo.io_type: str,
}


def preview_vae_input() -> io.Input:
    """The VAE of a node that trains on encoded images."""
    return io.Vae.Input(
        "vae",
        optional=True,
        tooltip="Connect it to see previews; without it there are none. Leave it open for the "
        "embedded base, which has its own. It decodes previews.",
    )


def training_inputs(base: str) -> list[io.Input]:
    """The sockets that say what is trained; `base` is the help text of the first."""
    return [
        Base.Input("base", tooltip=base),
        Cache.Input("cache", tooltip="Connect Cache Embeddings: the encoded dataset."),
        Adapter.Input("adapter", tooltip="Connect Adapter Config: what is trained."),
        Settings.Input(
            "settings",
            optional=True,
            tooltip="Leave it open for the defaults; connect Training Settings to change them.",
        ),
    ]


def model_inputs() -> list[io.Input]:
    """What belongs to a MODEL that is trained: the other of two experts, its eyes, its sound."""
    return [
        io.Combo.Input(
            "expert",
            options=list(ROLES),
            default=AUTO,
            optional=True,
            advanced=True,
            tooltip="Leave it on auto, which goes by the file's name. Of a model with an expert "
            "for high noise and one for low noise (Wan 2.2 A14B) each is trained by a node of its "
            "own, at its own levels of noise.",
        ),
        io.Model.Input(
            "other_expert",
            optional=True,
            tooltip="Connect the other expert of Wan 2.2 A14B, with which previews are sampled as "
            "in your workflow. It is not trained. Behind the adapter that the other node has "
            "trained it shows both.",
        ),
        io.Float.Input(
            "switch_at",
            default=SWITCH_AT,
            min=0.05,
            max=0.95,
            step=0.05,
            optional=True,
            advanced=True,
            tooltip="Leave it at 0.5, as ComfyUI's workflows have it; set it where yours differs. "
            "Share of the sampling steps that the expert for high noise makes.",
        ),
        io.ClipVision.Input(
            "clip_vision",
            optional=True,
            tooltip="Connect Load CLIP Vision for a model of videos that sees the first frame "
            "through it: Wan 2.1 I2V, HunyuanVideo 1.5. Others need none.",
        ),
        io.Vae.Input(
            "audio_vae",
            optional=True,
            tooltip="Connect Load LTXV Audio VAE to train clips of LTX-2 with their sound. Left "
            "open, clips are trained without it. MiniMax-H3 needs its own: Load VAE.",
        ),
    ]


def run_outputs() -> list[io.Output]:
    """What a run gives to the graph."""
    return [
        LoraModel.Output(display_name="lora"),
        LossMap.Output(display_name="loss"),
        io.Image.Output(display_name="previews"),
        Run.Output(display_name="run"),
    ]


class TrainingNode(io.ComfyNode):
    """A node that trains, and hands on what it has trained."""

    @classmethod
    def fingerprint_inputs(cls, name: str | None, **inputs: Any) -> str:
        """Changes when the adapter that this node handed on was deleted, or is to go on."""
        from ..services.rerun_stamps import train_stamp

        return train_stamp(str(cls.hidden.unique_id), name)

    @classmethod
    def workflow(cls) -> dict[str, object]:
        """What is kept with the run of the graph that runs."""
        return comfy_host.queued_graph(cls.hidden.prompt, cls.hidden.extra_pnginfo)

    @classmethod
    def hand_on(
        cls, name: str, handle: RunHandle, losses: Sequence[float], *more: Any
    ) -> io.NodeOutput:
        """A run as `run_outputs`, and further values."""
        from ..services.graph_run import run_outputs, shown_run
        from ..services.rerun_stamps import ADAPTERS

        ADAPTERS.hand_on(str(cls.hidden.unique_id), name, handle.adapter)
        return io.NodeOutput(*run_outputs(handle, losses), *more, ui=shown_run(handle))


class FileOrLora(io.ComfyNode):
    """A node that reads an adapter: a file of the loras folder, or one of the graph."""

    @classmethod
    def file_input(cls) -> io.Input:
        """The choice of the file."""
        help_text = "Choose a file of the loras folder, or leave it on none and connect lora."
        return io.Combo.Input("file", options=lora_choices(), default=NO_FILE, tooltip=help_text)

    @classmethod
    def lora_input(cls) -> io.Input:
        """The socket in the file's place."""
        return LoraModel.Input(
            "lora",
            optional=True,
            tooltip="Connect an adapter of the graph in place of a file; set file to none then.",
        )

    @classmethod
    def validate_inputs(cls, file: str) -> bool:
        """Leave the check to `execute`, which says what to do."""
        return True

    @classmethod
    def fingerprint_inputs(cls, file: str, **inputs: Any) -> str:
        """Changes with the file."""
        return lora_stamp(file)


def lora_choices() -> list[str]:
    """What a combo box of adapter files offers; no file comes first."""
    return [NO_FILE, *comfy_host.lora_names()]


def lora_stamp(file: str) -> str:
    """Changes with the chosen file."""
    if file == NO_FILE:
        return NO_FILE
    return file_stamp(str(comfy_host.lora_path(file)))


def chosen_lora(file: str, lora: Any) -> Any:
    """The chosen file's path, or the graph's adapter.

    Raises:
        InputError: When both or neither is given, or there is no such file.
    """
    if (file == NO_FILE) == (lora is None):
        raise InputError(
            "neither a file nor a lora" if lora is None else "both a file and a lora",
            "one of the two",
            "Choose a file, or set file to none and connect a LORA_MODEL.",
        )
    return lora if file == NO_FILE else comfy_host.lora_path(file)


def checked(node: _Node) -> _Node:
    """Let a node's ``execute`` refuse what its inputs are not made for, before it does anything.

    An error that it raises is told in the words of the graph. The node is changed, and returned.
    """
    know(node)
    inner: Callable[..., io.NodeOutput] = node.execute.__func__  # type: ignore[attr-defined]

    @functools.wraps(inner)
    def run(cls: type[io.ComfyNode], **inputs: Any) -> io.NodeOutput:
        try:
            for each in cls.SCHEMA.inputs:
                _check(cls.SCHEMA, each, inputs)
            return inner(cls, **inputs)
        except TrainerError as error:
            raise as_shown(cls, error, _makers(inputs.values())) from None

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
        return as_refused(node, error)
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
    elif kind == LoraModel.io_type:
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
        Dataset.io_type: socket_values.DatasetChoice,
        Base.io_type: socket_values.BaseChoice,
        Previews.io_type: socket_values.PreviewChoice,
        Cache.io_type: socket_values.EncodedCache,
        Adapter.io_type: socket_values.AdapterChoice,
        Settings.io_type: socket_values.SettingsChoice,
        Run.io_type: socket_values.RunHandle,
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
