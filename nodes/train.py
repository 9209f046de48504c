"""The node that trains."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import comfy_host, sockets
from .setting_inputs import SettingInput, section_values

_SETTINGS = (
    SettingInput("output.name"),
    SettingInput("training.steps"),
    SettingInput("training.optimizer.learning_rate", step=1e-5),
    SettingInput("seed"),
)


class TrainAdapter(io.ComfyNode):
    """Trains an adapter and hands it to the graph."""

    SETTINGS = _SETTINGS

    @classmethod
    def define_schema(cls) -> io.Schema:
        """The node's inputs and outputs."""
        return io.Schema(
            node_id="AdapterTrainerTrain",
            display_name="Train Adapter",
            category="Adapter Trainer",
            description="Trains the adapter. Cancel finishes the step and saves its state; the "
            "next run goes on from there. Behind it: Load LoRA Model, KSampler, Save Adapter.",
            search_aliases=["train lora", "train lokr", "train loha", "fine-tune", "finetune"],
            is_output_node=True,
            inputs=[
                sockets.Base.Input("base", tooltip="The base that the adapter is trained on."),
                sockets.Cache.Input("cache", tooltip="The encoded dataset."),
                sockets.Adapter.Input("adapter", tooltip="What is trained."),
                sockets.Settings.Input(
                    "settings", optional=True, tooltip="Without it, the defaults."
                ),
                io.Vae.Input(
                    "vae",
                    optional=True,
                    tooltip="Decodes previews. Without it there are none; the embedded base has "
                    "its own.",
                ),
                *(each.input() for each in _SETTINGS),
                io.Boolean.Input(
                    "resume",
                    default=True,
                    tooltip="Go on with the newest checkpoint of this name, if it was made with "
                    "the same settings and pictures. Off: always start anew.",
                ),
            ],
            outputs=[
                sockets.LoraModel.Output(display_name="lora"),
                sockets.LossMap.Output(display_name="loss"),
                io.Image.Output(display_name="previews"),
                sockets.Run.Output(display_name="run"),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(
        cls,
        base: sockets.BaseChoice,
        cache: sockets.EncodedCache,
        adapter: sockets.AdapterChoice,
        resume: bool,
        settings: sockets.SettingsChoice | None = None,
        vae: Any = None,
        **given: Any,
    ) -> io.NodeOutput:
        """Train, or go on."""
        from .graph_run import run_outputs, train_on_node

        comfy_host.require_libraries()
        own = {**section_values(_SETTINGS, given), "resume": "auto" if resume else "none"}
        node_id = str(cls.hidden.unique_id)
        handle, losses = train_on_node(node_id, base, cache, adapter, settings, vae, own)
        return io.NodeOutput(*run_outputs(handle, losses))
