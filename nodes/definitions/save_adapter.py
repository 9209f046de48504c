"""The node Save Adapter: writes a trained adapter for ComfyUI and other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ...trainer_core.errors import InputError
from ..host.clip_and_vae_inputs import MUTED
from . import input_checks, sockets
from .setting_inputs import form_inputs, layout_input, overwrite_input

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..services.socket_values import RunHandle


class SaveAdapter(io.ComfyNode):
    """Writes a trained adapter into the loras folder."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerSave",
            display_name="Save Adapter",
            category="Adapter Trainer",
            description="Writes the adapter into ComfyUI's loras folder, where Load LoRA lists it "
            "after a refresh (key R).",
            search_aliases=["save lora", "export lora", "export adapter"],
            is_output_node=True,
            inputs=[
                sockets.Run.Input(
                    "run",
                    optional=True,
                    tooltip="Connect the output run of Train Adapter; "
                    "its facts go into the file's header.",
                ),
                sockets.LoraModel.Input(
                    "lora",
                    optional=True,
                    tooltip="Connect it in place of run for an adapter that has none, such as "
                    "a converted one.",
                ),
                io.String.Input(
                    "name",
                    default="",
                    tooltip="Leave it empty to take the run's name; set it to call the file "
                    "something else. Folders with /.",
                ),
                layout_input(),
                overwrite_input(),
                *form_inputs(),
            ],
            outputs=[io.String.Output(display_name="path")],
        )

    @classmethod
    def validate_inputs(cls, name: str = "") -> bool | str:
        """Refuse a bad name when the graph is queued."""
        return input_checks.refusal(cls, _check)

    @classmethod
    def execute(
        cls,
        name: str,
        layout: str,
        overwrite: bool,
        run: RunHandle | None = None,
        lora: Any = None,
        fused: bool = False,
        dtype: str = "keep",
    ) -> io.NodeOutput:
        from ..services.loras_folder import write_adapter_file, written_text

        if (run is None) == (lora is None):
            found = "both a run and a lora" if run else "neither a run nor a lora"
            remedy = "Connect the output run of the node that trains, or a LORA_MODEL."
            raise InputError(found, "one of the two", remedy if run else f"{remedy} {MUTED}")
        form = {"overwrite": overwrite, "fused": fused, "dtype": dtype}
        name = name or (run.folder.parent.name if run else "adapter")
        file = write_adapter_file(run.adapter if run else lora, name, layout, **form)
        sentence = written_text(file, name, run.step if run else 0)
        return io.NodeOutput(str(file.path), ui={"text": (sentence,)})


def _check(inputs: Mapping[str, Any]) -> None:
    from ..services.loras_folder import check_file_name

    if inputs.get("name"):
        check_file_name(inputs["name"])
