"""The node Load Training Base: chooses the base model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from comfy_api.latest import io

from ..host import comfy_host
from ..host.folders import file_stamp
from . import input_checks, sockets
from .base_adapters import base_adapter_inputs, chosen_adapters
from .setting_inputs import SettingInput, family_choices, section_values


class LoadBase(io.ComfyNode):
    """Chooses the frozen base."""

    SETTINGS = (
        SettingInput("training.precision"),
        SettingInput("base.variant"),
        SettingInput("base.text_length"),
        SettingInput("base.distilled", optional=True),
    )

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerBase",
            display_name="Load Training Base",
            category="Adapter Trainer",
            description="The base model that the adapter is trained for. Nothing is loaded here: "
            "Train Adapter loads it once and lets go of it.",
            search_aliases=[
                "base model",
                "load model for training",
                "unet",
                "checkpoint",
                "diffusion model",
            ],
            inputs=[
                io.Combo.Input(
                    "source",
                    options=comfy_host.base_names(),
                    default=comfy_host.EMBEDDED,
                    tooltip="Choose the model that you will generate with later, or embedded, "
                    "the tiny one that ships with the pack, to try things out. A file "
                    "of diffusion_models or checkpoints, or a Diffusers folder.",
                ),
                io.Combo.Input(
                    "family",
                    options=family_choices(),
                    default="auto",
                    tooltip="Leave it on auto unless the file does not tell. Architecture of "
                    "the base. auto: read from the file.",
                ),
                *(each.input() for each in cls.SETTINGS),
                *base_adapter_inputs(),
            ],
            outputs=[sockets.Base.Output(display_name="base")],
        )

    @classmethod
    def validate_inputs(cls, source: str = "") -> bool | str:
        """Refuse a base that cannot be trained when the graph is queued."""
        return input_checks.refusal(cls, _check)

    @classmethod
    def fingerprint_inputs(cls, source: str, **inputs: Any) -> str:
        """Changes with the files."""
        path = comfy_host.base_path(source)
        stamp = path if path == comfy_host.EMBEDDED else file_stamp(path)
        return " ".join([stamp, *(file_stamp(each["path"]) for each in chosen_adapters(inputs))])

    @classmethod
    def execute(cls, source: str, family: str, **inputs: Any) -> io.NodeOutput:
        """Describe the base; its header is read to find the family."""
        from ..services.node_checks import check_base
        from ..services.socket_values import BaseChoice

        values = section_values(cls.SETTINGS, inputs)
        base = _base_values(source, inputs)
        found = check_base(family, base)
        return io.NodeOutput(BaseChoice(found, base, values["training"]["precision"]))


def _check(inputs: Mapping[str, Any]) -> None:
    from ..services.node_checks import check_base

    if {"source", "family", "variant"} <= inputs.keys():
        check_base(inputs["family"], _base_values(inputs["source"], inputs))


def _base_values(source: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """The run file's ``base`` section; what a saved graph does not know is left out."""
    values = section_values(LoadBase.SETTINGS, inputs).get("base", {})
    adapters = chosen_adapters(inputs)
    added = {"adapters": adapters} if adapters else {}
    return {**values, **added, "path": comfy_host.base_path(source)}
