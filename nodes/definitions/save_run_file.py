"""The node Save Run File: hands a training on to the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..host import comfy_host
from . import input_checks, sockets
from .setting_inputs import RUN_SETTINGS, section_values

if TYPE_CHECKING:
    from ..services.socket_values import AdapterChoice, BaseChoice, EncodedCache, SettingsChoice


class SaveRunFile(io.ComfyNode):
    """Writes what would be trained as a run file."""

    SETTINGS = RUN_SETTINGS

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerSaveRunFile",
            display_name="Save Run File",
            category="Adapter Trainer",
            description="Writes the same training as a run file for the command line or a bigger "
            "machine. It names the finished cache, so no text encoder is needed there.",
            search_aliases=["export training", "yaml", "command line", "train elsewhere"],
            is_output_node=True,
            inputs=[
                *sockets.training_inputs(
                    "Connect Load Training Base: the model that you will generate with later."
                ),
                *(each.input() for each in RUN_SETTINGS),
                io.Boolean.Input(
                    "copy_cache",
                    default=False,
                    tooltip="Switch it on to train on another machine; leave it off on this "
                    "one. Copies the encoded samples beside the run file, so that its "
                    "folder can be moved.",
                ),
            ],
            outputs=[io.String.Output(display_name="path")],
        )

    @classmethod
    def validate_inputs(cls, name: str | None = None) -> bool | str:
        """Refuse a bad name when the graph is queued; one that is linked comes later."""
        from ..services.merged_run_config import check_run_name

        return input_checks.refusal(cls, check_run_name)

    @classmethod
    def execute(
        cls,
        base: BaseChoice,
        cache: EncodedCache,
        adapter: AdapterChoice,
        copy_cache: bool,
        settings: SettingsChoice | None = None,
        **inputs: Any,
    ) -> io.NodeOutput:
        from ..services.merged_run_config import training_config
        from ..services.write_run_file import save_run_file

        comfy_host.require_libraries()
        own = section_values(RUN_SETTINGS, inputs)
        output = str(comfy_host.output_folder())
        config = training_config(
            base, cache, adapter, settings=settings, own=own, output=output, can_preview=True
        )
        return io.NodeOutput(str(save_run_file(config, copy_cache=copy_cache)))
