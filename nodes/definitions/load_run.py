"""Nodes for runs on disk: hand one on to the command line, or load one."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host import comfy_host
from ..services import sockets
from ..services.setting_inputs import RUN_SETTINGS, section_values


class SaveRunFile(io.ComfyNode):
    """Writes what would be trained as a run file."""

    SETTINGS = RUN_SETTINGS

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        return io.Schema(
            node_id="AdapterTrainerSaveRunFile",
            display_name="Save Run File",
            category="Adapter Trainer",
            description="Writes the same training as a run file for the command line or a bigger "
            "machine. It names the finished cache, so no text encoder is needed there.",
            search_aliases=["export training", "yaml", "command line", "train elsewhere"],
            is_output_node=True,
            inputs=[
                sockets.Base.Input("base", tooltip="The base that is trained on."),
                sockets.Cache.Input("cache", tooltip="The encoded dataset."),
                sockets.Adapter.Input("adapter", tooltip="What is trained."),
                sockets.Settings.Input(
                    "settings", optional=True, tooltip="Without it, the defaults."
                ),
                *(each.input() for each in RUN_SETTINGS),
                io.Boolean.Input(
                    "copy_cache",
                    default=False,
                    tooltip="Copy the encoded samples beside the run file, so that its folder can "
                    "be moved to another machine.",
                ),
            ],
            outputs=[io.String.Output(display_name="path")],
        )

    @classmethod
    def validate_inputs(cls, name: str | None = None) -> bool | str:
        """Refuse a bad name when the graph is queued; one that is linked comes later."""
        from ..services.run_values import name_problem

        return name_problem(name) or True

    @classmethod
    def execute(
        cls,
        base: sockets.BaseChoice,
        cache: sockets.EncodedCache,
        adapter: sockets.AdapterChoice,
        copy_cache: bool,
        settings: sockets.SettingsChoice | None = None,
        **given: Any,
    ) -> io.NodeOutput:
        """Write the run file."""
        from ..services.run_files import save_run_file
        from ..services.run_values import training_config

        comfy_host.require_libraries()
        own = section_values(RUN_SETTINGS, given)
        output = str(comfy_host.output_folder())
        config = training_config(cache, adapter, settings, own, output, draws=True)
        return io.NodeOutput(str(save_run_file(config, copy_cache=copy_cache)))


class LoadRun(io.ComfyNode):
    """A run on disk."""

    SETTINGS = ()

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        return io.Schema(
            node_id="AdapterTrainerLoadRun",
            display_name="Load Run",
            category="Adapter Trainer",
            description="A finished or interrupted run: its adapter, losses and last previews.",
            search_aliases=["load training", "resume", "checkpoint", "trained lora"],
            inputs=[
                io.Combo.Input(
                    "run",
                    options=comfy_host.run_names(),
                    tooltip="A run of the output folder; the newest come first.",
                ),
                io.Int.Input(
                    "checkpoint",
                    default=0,
                    min=0,
                    max=10_000_000,
                    tooltip="Step of a checkpoint; 0: the end of the run.",
                ),
            ],
            outputs=[
                sockets.LoraModel.Output(display_name="lora"),
                sockets.LossMap.Output(display_name="loss"),
                io.Image.Output(display_name="previews"),
                sockets.Run.Output(display_name="run"),
            ],
        )

    @classmethod
    def validate_inputs(cls, run: str) -> bool:
        """Leave the check to `execute`, which says what to do."""
        return True

    @classmethod
    def fingerprint_inputs(cls, run: str, **given: Any) -> str:
        """Changes when the run goes on, or loses an adapter."""
        return comfy_host.run_stamp(comfy_host.run_path(run))

    @classmethod
    def execute(cls, run: str, checkpoint: int) -> io.NodeOutput:
        """Read the run."""
        from ..services.graph_run import run_outputs
        from ..services.run_files import load_run

        comfy_host.require_libraries()
        handle, losses = load_run(comfy_host.run_path(run), checkpoint)
        return io.NodeOutput(*run_outputs(handle, losses))
