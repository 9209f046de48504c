"""The node Adapter Config: kind, rank and layers of the adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ...trainer_core.config.section import choices_of
from ..host import comfy_host
from . import input_checks, sockets
from .setting_inputs import SettingInput, section_values

_LORA = (SettingInput("adapter.init"),)
_LOKR = (
    SettingInput("adapter.factor"),
    SettingInput("adapter.full_matrix"),
    SettingInput("adapter.decompose_both"),
    SettingInput("adapter.unbalanced"),
)
SHARED = (
    SettingInput("adapter.rank"),
    SettingInput("adapter.alpha", step=1.0),
    SettingInput("adapter.dora"),
    SettingInput("adapter.targets"),
    SettingInput("adapter.include"),
    SettingInput("adapter.exclude"),
    SettingInput("adapter.dropout"),
    SettingInput("adapter.rank_dropout"),
    SettingInput("adapter.rank_dropout_scale"),
    SettingInput("adapter.module_dropout"),
    SettingInput("adapter.rank_pattern"),
    SettingInput("adapter.alpha_pattern"),
    SettingInput("adapter.rslora"),
    SettingInput("adapter.dora_axis"),
    SettingInput("adapter.exact_delta"),
)
"""The inputs of every kind."""
_OWN = {"lora": _LORA, "lokr": _LOKR}
_KINDS = choices_of(SettingInput("adapter.kind").field)


def settings_of(kind: str) -> tuple[SettingInput, ...]:
    """The inputs that only a kind has."""
    return _OWN.get(kind, ())


class AdapterSettings(io.ComfyNode):
    """Kind, size and targets of the adapter."""

    SETTINGS = (*SHARED, *_LORA, *_LOKR)

    @classmethod
    def define_schema(cls) -> io.Schema:
        kind = SettingInput("adapter.kind").field
        # The first option is what a new node shows: the default of the run file.
        kinds = sorted(choices_of(kind), key=lambda name: name != kind.default)
        return io.Schema(
            node_id="AdapterTrainerAdapter",
            display_name="Adapter Config",
            category="Adapter Trainer",
            description="Kind, size and targets of the adapter.",
            search_aliases=[
                "lora config",
                "lora rank",
                "network dim",
                "alpha",
                "lokr",
                "loha",
                "dora",
                "lycoris",
            ],
            inputs=[
                io.DynamicCombo.Input(
                    "kind",
                    options=[
                        io.DynamicCombo.Option(name, [each.input() for each in _OWN.get(name, ())])
                        for name in kinds
                    ],
                    tooltip=kind.description,
                ),
                *(each.input() for each in SHARED),
                io.Combo.Input(
                    "start_from",
                    options=sockets.lora_choices(),
                    default=sockets.NO_FILE,
                    tooltip=SettingInput("adapter.start_from").field.description,
                ),
            ],
            outputs=[sockets.Adapter.Output(display_name="adapter")],
        )

    @classmethod
    def validate_inputs(cls, kind: Any = None) -> bool | str:
        """Refuse settings that cannot be when the graph is queued."""
        return input_checks.refusal(cls, _check)

    @classmethod
    def fingerprint_inputs(cls, start_from: str, **inputs: Any) -> str:
        """Changes with the file that training starts from."""
        return sockets.lora_stamp(start_from)

    @classmethod
    def execute(cls, kind: dict[str, Any], start_from: str, **inputs: Any) -> io.NodeOutput:
        from ..services.node_checks import check_settings
        from ..services.socket_values import AdapterChoice

        values = _values(kind, inputs)
        check_settings({"adapter": values})
        if start_from != sockets.NO_FILE:
            values["start_from"] = str(comfy_host.lora_path(start_from))
        return io.NodeOutput(AdapterChoice(values))


def _values(kind: Mapping[str, Any], inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The run file's ``adapter`` section, without the file to start from."""
    own = section_values(_OWN.get(kind["kind"], ()), kind).get("adapter", {})
    return {**section_values(SHARED, inputs).get("adapter", {}), "kind": kind["kind"], **own}


def _check(inputs: Mapping[str, Any]) -> None:
    from ..services.node_checks import check_settings

    chosen = inputs.get("kind")
    if chosen in _KINDS:
        # ComfyUI writes what belongs to a choice as "kind.init".
        own = {name.removeprefix("kind."): value for name, value in inputs.items()}
        check_settings({"adapter": _values({**own, "kind": chosen}, inputs)})
