"""The node Train Sweep: trains one base with several values of a few settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from comfy_api.latest import io

from ..host import comfy_host
from . import input_checks, sockets
from .setting_inputs import RUN_SETTINGS, section_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..services.socket_values import AdapterChoice, BaseChoice, EncodedCache, SettingsChoice


class TrainSweep(sockets.TrainingNode):
    """Trains every combination of a few settings, and hands on the best adapter."""

    SETTINGS = RUN_SETTINGS

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerSweep",
            display_name="Train Sweep",
            category="Adapter Trainer",
            description="Trains a run for every combination of a few settings, on the same base "
            "and encoded images, and hands on the adapter with the lowest loss on held-out images. "
            "Cancel saves; the next run goes on and repeats nothing.",
            search_aliases=["grid search", "hyperparameters", "tune lora", "compare settings"],
            is_output_node=True,
            inputs=[
                *sockets.training_inputs(
                    "Connect Load Training Base or Base From Model: the model of all trials."
                ),
                sockets.preview_vae_input(),
                *(each.input() for each in RUN_SETTINGS),
                io.String.Input(
                    "grid",
                    multiline=True,
                    default="learning_rate: 1e-4, 2e-4\nrank: 8, 16",
                    tooltip="Write a line for each setting: its name or YAML path, and its values. "
                    "Every combination is trained, as a run named after what differs; other "
                    "settings are those of the inputs. Hold images out: validation of the dataset.",
                ),
                io.Boolean.Input(
                    "stop_hopeless",
                    default=True,
                    tooltip="Leave it on to end trials early whose lowest loss on held-out images "
                    "is above the median of the finished trials' means (median stopping rule, "
                    "Google Vizier). Switch it off to train all of them to their end.",
                ),
            ],
            outputs=[*sockets.run_outputs(), io.String.Output(display_name="table")],
            hidden=[io.Hidden.unique_id, io.Hidden.prompt, io.Hidden.extra_pnginfo],
        )

    @classmethod
    def validate_inputs(cls, name: str | None = None, grid: str | None = None) -> bool | str:
        """Refuse a bad name or grid when the graph is queued; one that is linked comes later."""
        from ..services.merged_run_config import check_run_name
        from ..services.sweep_run import check_grid

        def check(inputs: Mapping[str, Any]) -> None:
            check_run_name(inputs)
            check_grid(inputs)

        return input_checks.refusal(cls, check)

    @classmethod
    def execute(
        cls,
        base: BaseChoice,
        cache: EncodedCache,
        adapter: AdapterChoice,
        grid: str,
        stop_hopeless: bool = True,
        settings: SettingsChoice | None = None,
        vae: Any = None,
        **inputs: Any,
    ) -> io.NodeOutput:
        from ..services.sweep_run import train_sweep

        comfy_host.require_libraries()
        own, node_id = section_values(RUN_SETTINGS, inputs), str(cls.hidden.unique_id)
        workflow = cls.workflow()
        handle, losses, table = train_sweep(
            node_id,
            base,
            cache,
            adapter=adapter,
            settings=settings,
            vae=vae,
            own=own,
            workflow=workflow,
            grid=grid,
            stops=stop_hopeless,
        )
        return cls.hand_on(inputs["name"], handle, losses, table)
