"""The node that describes the adapter."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import sockets
from .setting_inputs import SettingInput, section_values

_KIND = SettingInput("adapter.kind")
_LOKR = (
    SettingInput("adapter.factor"),
    SettingInput("adapter.full_matrix"),
    SettingInput("adapter.decompose_both", advanced=False),
)
_SHARED = (
    SettingInput("adapter.rank"),
    SettingInput("adapter.alpha", step=1.0),
    SettingInput("adapter.targets"),
    SettingInput("adapter.include", advanced=True),
    SettingInput("adapter.exclude", advanced=True),
    SettingInput("adapter.dropout"),
    SettingInput("adapter.rank_dropout"),
    SettingInput("adapter.module_dropout"),
    SettingInput("adapter.rank_pattern"),
    SettingInput("adapter.alpha_pattern"),
)
_OWN = {"lokr": _LOKR}


class AdapterSettings(io.ComfyNode):
    """Kind, size and targets of the adapter."""

    SETTINGS = (*_SHARED, *_LOKR)

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        kinds = _KIND.input()
        assert isinstance(kinds, io.Combo.Input)
        # The first option is what a new node shows: the default of the run file.
        first = str(_KIND.field.default)
        options = [first, *(kind for kind in kinds.options or [] if kind != first)]
        return io.Schema(
            node_id="AdapterTrainerAdapter",
            display_name="Adapter Config",
            category="Adapter Trainer",
            description="Kind, size and targets of the adapter.",
            search_aliases=["lora config", "lokr", "loha", "lycoris", "rank"],
            inputs=[
                io.DynamicCombo.Input(
                    "kind",
                    options=[
                        io.DynamicCombo.Option(kind, [each.input() for each in _OWN.get(kind, ())])
                        for kind in options
                    ],
                    tooltip=kinds.tooltip,
                ),
                *(each.input() for each in _SHARED),
            ],
            outputs=[sockets.Adapter.Output(display_name="adapter")],
        )

    @classmethod
    def execute(cls, kind: dict[str, Any], **given: Any) -> io.NodeOutput:
        """Describe the adapter."""
        own = section_values(_OWN.get(kind["kind"], ()), kind).get("adapter", {})
        values = section_values(_SHARED, given)["adapter"]
        return io.NodeOutput(sockets.AdapterChoice({"kind": kind["kind"], **values, **own}))
