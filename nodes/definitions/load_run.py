"""The node Load Run: loads a run from disk."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host import comfy_host
from ..host.folders import run_stamp
from . import sockets


class LoadRun(io.ComfyNode):
    """A run on disk."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerLoadRun",
            display_name="Load Run",
            category="Adapter Trainer",
            description="A finished or interrupted run: its adapter, losses and last previews.",
            search_aliases=["load training", "resume training", "training history", "checkpoint"],
            inputs=[
                io.Combo.Input(
                    "run",
                    options=comfy_host.run_names(),
                    tooltip="Choose the run that you want back; the newest come first. A run "
                    "of the output folder.",
                ),
                io.Int.Input(
                    "checkpoint",
                    default=0,
                    min=-1,
                    max=10_000_000,
                    tooltip="Leave it at 0 for the end of the run; -1 gets the state with the "
                    "lowest loss on held-out images, the step of a checkpoint an earlier one.",
                ),
            ],
            outputs=sockets.run_outputs(),
        )

    @classmethod
    def validate_inputs(cls, run: str) -> bool:
        """Leave the check to `execute`, which says what to do."""
        return True

    @classmethod
    def fingerprint_inputs(cls, run: str, **inputs: Any) -> str:
        """Changes when the run goes on, or loses an adapter."""
        return run_stamp(comfy_host.run_path(run))

    @classmethod
    def execute(cls, run: str, checkpoint: int) -> io.NodeOutput:
        from ..services.graph_run import run_outputs
        from ..services.load_run import load_run

        comfy_host.require_libraries()
        handle, losses = load_run(comfy_host.run_path(run), checkpoint)
        return io.NodeOutput(*run_outputs(handle, losses))
