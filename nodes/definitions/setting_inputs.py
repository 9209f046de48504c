"""Node inputs made from the run file's settings: nothing is declared twice.

An input takes default, bounds and help from the config models. What the run file leaves out
("null") an input says with 0 or an empty text; lists and tables are written one item per line.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin

from comfy_api.latest import io
from pydantic.fields import FieldInfo

from ...trainer_core.config.describe import choices_of, find_setting, is_advanced
from ...trainer_core.config.output import LayoutName
from ...trainer_core.errors import ConfigError
from ...trainer_core.families.registry import PACKAGES

LARGEST = 2**63 - 1
_LAYOUTS = (
    "comfyui: for ComfyUI's own loaders. diffusers: for Diffusers. peft: a folder for PEFT. kohya: "
    "names of kohya's scripts and of musubi. lycoris: LyCORIS's names. ComfyUI loads the last two "
    "as well."
)


@dataclass(frozen=True, slots=True)
class SettingInput:
    """A node input for one setting.

    Attributes:
        path: The setting's YAML path.
        name: The input's id; unset: the last part of the path.
        step: Step of the arrows of a number with a fraction.
        advanced: Whether the node hides it; unset: as the setting says.
        optional: Whether a prompt may leave it out, as those do that were saved before it existed.
            It stands behind the others, because a saved graph keeps values by their places.
    """

    path: str
    name: str = ""
    step: float = 0.01
    advanced: bool | None = None
    optional: bool = False

    @property
    def id(self) -> str:
        """The input's id in the node."""
        return self.name or self.path.rsplit(".", 1)[-1]

    @property
    def field(self) -> FieldInfo:
        """The setting's declaration."""
        field = find_setting(self.path)
        if field is None:
            raise KeyError(self.path)
        return field

    def input(self) -> io.Input:
        """The input, for a node's schema."""
        shape = _shape_of(self.field.annotation)
        advanced = is_advanced(self.field) if self.advanced is None else self.advanced
        common = {"tooltip": _tooltip(self.field, shape), "advanced": advanced or None}
        if self.optional:
            common["optional"] = True
        return _MAKERS[shape.kind](self, shape, common)

    def read(self, value: Any) -> Any:
        """What the input says, as a value for the run file.

        Raises:
            ConfigError: When a line of a table has no number.
        """
        shape = _shape_of(self.field.annotation)
        if shape.kind in {"int", "float", "text"} and shape.optional:
            return value or None
        if shape.kind == "lines":
            return _lines(value)
        if shape.kind == "text or lines":
            lines = _lines(value)
            return lines[0] if len(lines) == 1 and lines[0].isidentifier() else lines
        if shape.kind == "table":
            return dict(_table_line(self.path, line) for line in _lines(value))
        return value


def section_values(inputs: Sequence[SettingInput], given: Mapping[str, Any]) -> dict[str, Any]:
    """Collect what inputs say, nested as in the run file.

    Args:
        inputs: A node's settings.
        given: The values that the node was executed with, by input id.

    Returns:
        Values by section and name; inputs that were not given are left out.
    """
    values: dict[str, Any] = {}
    for each in inputs:
        if each.id not in given:
            continue
        *sections, name = each.path.split(".")
        place = values
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = each.read(given[each.id])
    return values


RUN_SETTINGS = (
    SettingInput("output.name"),
    SettingInput("training.steps"),
    SettingInput("training.optimizer.learning_rate", step=1e-5),
    SettingInput("seed"),
)
"""What a run is asked for last: by Train Adapter, and by Save Run File in its place."""


READING = (
    SettingInput("dataset.layout"),
    SettingInput("dataset.resolution"),
    SettingInput("dataset.trigger_word"),
    SettingInput("dataset.caption_dropout"),
    SettingInput("dataset.num_repeats"),
    SettingInput("dataset.missing_caption", advanced=True),
    SettingInput("dataset.missing_image", advanced=True),
    SettingInput("dataset.missing_control", advanced=True),
    SettingInput("dataset.unreadable", advanced=True),
    SettingInput("dataset.animated", advanced=True),
    SettingInput("dataset.caption_extension"),
    SettingInput("dataset.max_aspect_ratio"),
    SettingInput("dataset.upscale"),
    SettingInput("dataset.control_area"),
)
"""How a folder is read."""

KEEPING = (
    SettingInput("dataset.preservation.share", "preservation", optional=True),
    SettingInput(
        "dataset.preservation.prompts", "preservation_prompts", advanced=True, optional=True
    ),
    SettingInput("dataset.preservation.count", "preservation_count", optional=True),
    SettingInput("dataset.preservation.steps", "preservation_steps", optional=True),
)
"""What an adapter is kept from forgetting; of both dataset nodes."""

SIZING = tuple(
    each
    for each in READING
    if each.id
    in {
        "resolution",
        "trigger_word",
        "caption_dropout",
        "num_repeats",
        "max_aspect_ratio",
        "upscale",
        "control_area",
    }
)
"""Those of `READING` that pictures of a graph have too."""


def family_choices() -> list[str]:
    """For an input that names the family: ``auto``, or one of those that there are."""
    return ["auto", *PACKAGES]


def layout_input() -> io.Input:
    """The layout of an adapter's file that a node writes."""
    names = list(get_args(LayoutName))
    return io.Combo.Input("layout", options=names, default="comfyui", tooltip=_LAYOUTS)


def overwrite_input() -> io.Input:
    """Whether an adapter's file may be replaced."""
    told = "Replace a file of this name; off: a number is added."
    return io.Boolean.Input("overwrite", default=False, tooltip=told)


def form_inputs() -> list[io.Input]:
    """How an adapter's file is written; in saved workflows these stand behind all others."""
    return [
        io.Boolean.Input(
            "fused",
            default=False,
            optional=True,
            advanced=True,
            tooltip="Layout comfyui: write q, k and v as ComfyUI's one layer, for its bypass "
            "loaders, which drop slices. Layout kohya always does.",
        ),
        io.Combo.Input(
            "dtype",
            options=["keep", *choices_of(SettingInput("output.dtype").field)],
            default="keep",
            optional=True,
            advanced=True,
            tooltip="Number format of the file. keep: that of the adapter.",
        ),
    ]


@dataclass(frozen=True, slots=True)
class _Shape:
    kind: str
    optional: bool = False
    choices: tuple[str, ...] = ()


def _shape_of(annotation: Any) -> _Shape:
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return _Shape("choice", choices=tuple(map(str, inner)))
    if origin in (Union, types.UnionType):
        others = [part for part in inner if part is not types.NoneType]
        if len(others) == 1:
            return _Shape(_shape_of(others[0]).kind, optional=True)
        return _Shape("text or lines")
    if origin is list:
        return _Shape("lines")
    if origin is dict:
        return _Shape("table")
    return _Shape({bool: "flag", int: "int", float: "float", str: "text"}[annotation])


def _tooltip(field: FieldInfo, shape: _Shape) -> str:
    notes = {
        "lines": " One per line.",
        "text or lines": " Several: one per line.",
        "table": " One per line: pattern = number.",
    }
    unset = {"int": " 0: unset.", "float": " 0: unset.", "text": " Empty: unset."}
    note = unset.get(shape.kind, "") if shape.optional else notes.get(shape.kind, "")
    return (field.description or "") + note


def _bound(field: FieldInfo, *names: str) -> Any:
    for part in field.metadata:
        for name in names:
            value = getattr(part, name, None)
            if value is not None:
                return value
    return None


def _default(setting: SettingInput) -> Any:
    return setting.field.get_default(call_default_factory=True)


def _number_bounds(setting: SettingInput, shape: _Shape) -> tuple[Any, Any]:
    low, high = _bound(setting.field, "ge", "gt"), _bound(setting.field, "le", "lt")
    return (0 if shape.optional else low), high


def _int(setting: SettingInput, shape: _Shape, common: dict[str, Any]) -> io.Input:
    low, high = _number_bounds(setting, shape)
    if high is None or high > LARGEST:
        high = LARGEST
    # ComfyUI gives every seed a rule for its next value, by default a random one: then a second
    # Run would train anew, and a cancelled run could not be resumed.
    rule = io.ControlAfterGenerate.fixed if setting.id == "seed" else None
    return io.Int.Input(
        setting.id,
        default=_default(setting) or 0,
        min=low,
        max=high,
        control_after_generate=rule,
        **common,
    )


def _float(setting: SettingInput, shape: _Shape, common: dict[str, Any]) -> io.Input:
    low, high = _number_bounds(setting, shape)
    return io.Float.Input(
        setting.id,
        default=_default(setting) or 0.0,
        min=low,
        max=1e6 if high is None else high,
        step=setting.step,
        # A rounded learning rate would be another one.
        extra_dict={"round": False},
        **common,
    )


def _text(setting: SettingInput, shape: _Shape, common: dict[str, Any]) -> io.Input:
    return io.String.Input(setting.id, default=_default(setting) or "", **common)


def _lines_input(setting: SettingInput, shape: _Shape, common: dict[str, Any]) -> io.Input:
    default = _default(setting)
    text = default if isinstance(default, str) else "\n".join(default)
    return io.String.Input(setting.id, default=text, multiline=True, **common)


def _choice(setting: SettingInput, shape: _Shape, common: dict[str, Any]) -> io.Input:
    return io.Combo.Input(
        setting.id, options=list(shape.choices), default=_default(setting), **common
    )


def _flag(setting: SettingInput, shape: _Shape, common: dict[str, Any]) -> io.Input:
    return io.Boolean.Input(setting.id, default=_default(setting), **common)


_MAKERS: Mapping[str, Callable[[SettingInput, _Shape, dict[str, Any]], io.Input]] = {
    "int": _int,
    "float": _float,
    "text": _text,
    "lines": _lines_input,
    "text or lines": _lines_input,
    "table": _lines_input,
    "choice": _choice,
    "flag": _flag,
}


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _table_line(path: str, line: str) -> tuple[str, float]:
    pattern, equals, number = line.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        equals = ""
    if not equals or not pattern.strip():
        raise ConfigError(
            f"{path} has the line {line!r}",
            "pattern = number, such as transformer_blocks\\.0\\..* = 8",
            "Write one pattern with its number on each line.",
        )
    return pattern.strip(), int(value) if value.is_integer() else value
