"""Node inputs made from the run file's settings: nothing is declared twice.

An input takes default, bounds and help from the config models. What the run file leaves out
("null") an input says with 0 or an empty text; lists and tables are written one item per line.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from comfy_api.latest import io
from pydantic.fields import FieldInfo

from ...trainer_core.config.folders import FolderSection
from ...trainer_core.config.run import LayoutName, nested, walk_settings
from ...trainer_core.config.section import choices_of, is_advanced
from ...trainer_core.errors import ConfigError, InputError
from ...trainer_core.families.registry import PACKAGES

LARGEST = 2**63 - 1
_KINDS: Mapping[Any, str] = {
    Literal: "choice",
    bool: "flag",
    int: "int",
    float: "float",
    str: "text",
    list: "lines",
    dict: "table",
}
_NOTES = {
    "lines": " One per line.",
    "numbers": " One per line.",
    "text or lines": " Several: one per line.",
    "table": " One per line: pattern = number.",
}
_UNSET = {"int": " 0: unset.", "float": " 0: unset.", "text": " Empty: unset."}
_BY_OPTIMIZER = " Left as it is: what suits the optimizer."
_LAYOUTS = (
    "Leave it on comfyui for ComfyUI's own loaders. diffusers: for Diffusers. peft: a folder "
    "for PEFT. kohya: names of kohya's scripts and of musubi. lycoris: LyCORIS's names. "
    "ComfyUI loads the last two as well."
)


class SettingInput(NamedTuple):
    """A node input for one setting.

    Attributes:
        path: The setting's YAML path.
        name: The input's id; unset: the last part of the path.
        step: Step of the arrows of a number with a fraction.
        advanced: Whether the node hides it; unset: as the setting says.
        optional: Whether a prompt may leave it out, as those do that were saved before it existed.
            It stands behind the others, because a saved graph keeps values by their places.
        by_optimizer: Whether its default value says nothing, because each optimizer has its own.
    """

    path: str
    name: str = ""
    step: float = 0.01
    advanced: bool | None = None
    optional: bool = False
    by_optimizer: bool = False

    @property
    def id(self) -> str:
        """The input's id in the node."""
        return self.name or self.path.rsplit(".", 1)[-1]

    @property
    def field(self) -> FieldInfo:
        """The setting's declaration."""
        return _settings()[self.path]

    def input(self) -> io.Input:
        """The input, for a node's schema."""
        field = self.field
        kind, may_be_unset = _kind(field.annotation)
        advanced = is_advanced(field) if self.advanced is None else self.advanced
        note = (_UNSET if may_be_unset else _NOTES).get(kind, "")
        note += _BY_OPTIMIZER if self.by_optimizer else ""
        shared: dict[str, Any] = {
            "tooltip": (field.description or "") + note,
            "advanced": advanced or None,
        }
        if self.optional:
            shared["optional"] = True
        default = field.get_default(call_default_factory=True)
        if kind == "choice":
            return io.Combo.Input(self.id, options=choices_of(field), default=default, **shared)
        if kind == "flag":
            return io.Boolean.Input(self.id, default=default, **shared)
        if kind in {"int", "float"}:
            shared["min"] = 0 if may_be_unset else _bound(field, "ge", "gt")
            return self._number(kind, default or 0, _bound(field, "le", "lt"), shared)
        if kind != "text":
            shared["multiline"] = True
        text = default if isinstance(default, str) else "\n".join(map(str, default or ()))
        return io.String.Input(self.id, default=text, **shared)

    def _number(self, kind: str, default: Any, high: Any, shared: dict[str, Any]) -> io.Input:
        if kind == "float":
            high = 1e6 if high is None else high
            # A rounded learning rate would be another one.
            shared |= {"step": self.step, "max": high, "extra_dict": {"round": False}}
            return io.Float.Input(self.id, default=float(default), **shared)
        high = LARGEST if high is None else min(high, LARGEST)
        # ComfyUI gives every seed a rule for its next value, by default a random one: then a second
        # Run would train again, and a cancelled run could not be resumed.
        rule = io.ControlAfterGenerate.fixed if self.id == "seed" else None
        return io.Int.Input(
            self.id, default=default, max=high, control_after_generate=rule, **shared
        )

    def leaves_it_open(self, value: Any) -> bool:
        """Whether a value of the input stands for what suits the optimizer."""
        return self.by_optimizer and value == self.field.default

    def read(self, value: Any) -> Any:
        """The input's value for the run file; `ConfigError` for a line without a number."""
        kind, may_be_unset = _kind(self.field.annotation)
        if kind in {"choice", "flag"}:
            return value
        if kind in {"int", "float", "text"}:
            return (value or None) if may_be_unset else value
        lines = [line.strip() for line in value.splitlines() if line.strip()]
        if kind == "table":
            return dict(_table_line(self.path, line) for line in lines)
        if kind == "numbers":
            # What is none is refused with its setting's name, as any value of a wrong type.
            return [int(line) if line.isdecimal() else line for line in lines]
        one_word = kind == "text or lines" and len(lines) == 1 and lines[0].isidentifier()
        return lines[0] if one_word else lines

    def written(self, value: Any) -> Any:
        """What the input says for a value of the run file: `read` gives the same value back."""
        kind, may_be_unset = _kind(self.field.annotation)
        if value is None and may_be_unset:
            return "" if kind == "text" else 0
        if isinstance(value, Mapping):
            return "\n".join(f"{pattern} = {number}" for pattern, number in value.items())
        return "\n".join(map(str, value)) if isinstance(value, list | tuple) else value


@functools.cache
def _settings() -> dict[str, FieldInfo]:
    return dict(walk_settings())


def _kind(annotation: Any) -> tuple[str, bool]:
    """What is written into an input, and whether the setting may be unset."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        others = [part for part in inner if part is not types.NoneType]
        return (_kind(others[0])[0], True) if len(others) == 1 else ("text or lines", False)
    return "numbers" if inner == (int,) else _KINDS[origin or annotation], False


def _bound(field: FieldInfo, *names: str) -> Any:
    found = (getattr(part, name, None) for part in field.metadata for name in names)
    return next((value for value in found if value is not None), None)


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


def section_values(inputs: Sequence[SettingInput], values: Mapping[str, Any]) -> dict[str, Any]:
    """Collect what the values of a node's inputs, by input id, say: nested as in the run file.

    Those that were not given are left out, and those that leave it to the optimizer.
    """
    return nested(
        {
            each.path: each.read(values[each.id])
            for each in inputs
            if each.id in values and not each.leaves_it_open(values[each.id])
        }
    )


RUN_SETTINGS = (
    SettingInput("output.name"),
    SettingInput("training.steps"),
    SettingInput("training.optimizer.learning_rate", step=1e-5, by_optimizer=True),
    SettingInput("seed"),
)
"""What a run is asked for last: by Train Adapter, and by Save Run File in its place."""


READING = (
    SettingInput("dataset.layout"),
    SettingInput("dataset.resolution"),
    SettingInput("dataset.trigger_word"),
    SettingInput("dataset.caption_dropout"),
    SettingInput("dataset.num_repeats"),
    SettingInput("dataset.missing_caption"),
    SettingInput("dataset.missing_image"),
    SettingInput("dataset.missing_control"),
    SettingInput("dataset.unreadable"),
    SettingInput("dataset.animated"),
    SettingInput("dataset.caption_extension"),
    SettingInput("dataset.max_aspect_ratio"),
    SettingInput("dataset.upscale"),
    SettingInput("dataset.control_area"),
)
"""How a folder is read."""

KEEPING = (
    SettingInput("dataset.preservation.share", "preservation", optional=True),
    SettingInput("dataset.preservation.prompts", "preservation_prompts", optional=True),
    SettingInput("dataset.preservation.count", "preservation_count", optional=True),
    SettingInput("dataset.preservation.steps", "preservation_steps", optional=True),
    SettingInput("dataset.preservation.kind", "preservation_kind", optional=True),
    SettingInput("dataset.preservation.class_word", "class_word", optional=True),
)
"""What an adapter is kept from forgetting; of both dataset nodes."""

CAPTIONING = (
    SettingInput("dataset.captions.prefix", "caption_prefix", optional=True),
    SettingInput("dataset.captions.suffix", "caption_suffix", optional=True),
    SettingInput("dataset.captions.variants", "caption_variants", optional=True),
    SettingInput("dataset.captions.length", "caption_length", optional=True),
    SettingInput("dataset.captions.wildcards", optional=True),
    SettingInput("dataset.captions.shuffle", "shuffle_tags", optional=True),
    SettingInput("dataset.captions.keep", "keep_tags", optional=True),
    SettingInput("dataset.captions.separator", "tag_separator", optional=True),
    SettingInput("dataset.captions.most", "most_captions", optional=True),
    SettingInput("dataset.control_dropout", optional=True),
)
"""What becomes of captions and control images."""

FRAMING = (
    SettingInput("dataset.mask.source", "mask_source", optional=True),
    SettingInput("dataset.mask.invert", "mask_invert", optional=True),
    SettingInput("dataset.mask.foreground", "mask_foreground", optional=True),
    SettingInput("dataset.mask.background", "mask_background", optional=True),
    SettingInput("dataset.mask.normalize", "mask_normalize", optional=True),
    SettingInput("dataset.flip", optional=True),
    SettingInput("dataset.flip_except", optional=True),
    SettingInput("dataset.crop", optional=True),
    SettingInput("dataset.more_resolutions", optional=True),
    SettingInput("dataset.bucketing", optional=True),
    SettingInput("dataset.bucket_step", optional=True),
    SettingInput("dataset.batch_size", optional=True),
    SettingInput("dataset.validation.share", "validation_share", advanced=True, optional=True),
    SettingInput("dataset.validation.every", "validation_every", optional=True),
    SettingInput("dataset.validation.most", "validation_most", optional=True),
    SettingInput("dataset.validation.noise_levels", "validation_noise_levels", optional=True),
)
"""What of an image is trained, at which size, and what is held out; of both dataset nodes."""

METADATA = SettingInput("dataset.metadata", optional=True)
"""The file of a folder that lists its images."""

LAST = (
    SettingInput("dataset.captions.escape_brackets", optional=True),
    SettingInput("dataset.more_shapes", optional=True),
)
"""Of both dataset nodes, behind all others."""

LATER = (
    SettingInput("dataset.subfolders", optional=True),
    SettingInput("dataset.captions.default", "default_caption", optional=True),
    SettingInput("dataset.captions.drop", "drop_tags", optional=True),
)
"""Inputs of a folder that stand behind those of older workflows."""

CLIPS = (
    SettingInput("dataset.frames", optional=True),
    SettingInput("dataset.fps", optional=True),
    SettingInput("dataset.start_frame", optional=True),
    SettingInput("dataset.end_frame", optional=True),
    SettingInput("dataset.max_clips", optional=True),
)
"""Inputs of both dataset nodes that take clips."""

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
"""Those of `READING` that images of a graph have too."""


def refuse_others(node: type[io.ComfyNode], inputs: Mapping[str, Any]) -> None:
    """Refuse inputs that are not settings of a node: ComfyUI hands on links to any name.

    Raises:
        InputError: It names them.
    """
    schema = node.define_schema()
    known = {each.id for each in schema.inputs}
    others = sorted(inputs.keys() - known)
    if others:
        sockets = [each.id for each in schema.inputs if not isinstance(each, io.WidgetInput)]
        raise InputError(
            f"{', '.join(others)} connected to {schema.display_name}",
            ", ".join(sockets),
            "Disconnect it. A part of an image is trained with masks, or cropped before this node.",
        )


def role_inputs() -> list[io.Input]:
    """What a dataset is for where several are joined; in saved workflows behind all others."""
    role, weight = (FolderSection.model_fields[name] for name in ("role", "weight"))
    joined = " Only for Combine Datasets."
    return [
        io.Combo.Input(
            "role",
            options=choices_of(role),
            default=role.default,
            optional=True,
            advanced=True,
            tooltip=(role.description or "") + joined,
        ),
        io.Float.Input(
            "weight",
            default=weight.default,
            min=_bound(weight, "ge"),
            max=_bound(weight, "le"),
            step=0.01,
            optional=True,
            advanced=True,
            tooltip=(weight.description or "") + joined,
            extra_dict={"round": False},
        ),
    ]


def family_choices() -> list[str]:
    """For an input that names the family: ``auto``, or one of those that there are."""
    return ["auto", *PACKAGES]


def layout_input() -> io.Input:
    """The layout of an adapter's file that a node writes."""
    names = list(get_args(LayoutName))
    return io.Combo.Input("layout", options=names, default="comfyui", tooltip=_LAYOUTS)


def overwrite_input() -> io.Input:
    """Whether an adapter's file may be replaced."""
    tooltip = "Leave it off to keep older files: a number is added. On: this name is replaced."
    return io.Boolean.Input("overwrite", default=False, tooltip=tooltip)


def keep_in_loras_input() -> io.Input:
    """How many of a run's checkpoints Load LoRA lists; in saved workflows behind all others."""
    return io.Int.Input(
        "keep_in_loras",
        default=0,
        min=0,
        max=1000,
        optional=True,
        advanced=True,
        tooltip="Leave it at 0, unless you want to compare steps in Load LoRA. 1: the adapter of "
        "every checkpoint is copied to the loras folder as name_step_000500; 2: of every second "
        "one. They stay there until you delete them.",
    )


def form_inputs() -> list[io.Input]:
    """How an adapter's file is written; in saved workflows these stand behind all others."""
    return [
        io.Boolean.Input(
            "fused",
            default=False,
            optional=True,
            advanced=True,
            tooltip="Leave it off unless you load the file with ComfyUI's bypass loaders, "
            "which drop slices. Layout comfyui: writes q, k and v as ComfyUI's one "
            "layer. Layout kohya always does.",
        ),
        io.Combo.Input(
            "dtype",
            options=["keep", *choices_of(SettingInput("output.dtype").field)],
            default="keep",
            optional=True,
            advanced=True,
            tooltip="Leave it on keep; take bf16 or fp16 for a smaller file. Number format of "
            "the file. keep: that of the adapter.",
        ),
    ]
