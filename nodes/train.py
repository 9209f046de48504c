"""The node that trains."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from . import comfy_host, sockets
from .graph_run import (
    adapter_tensors,
    checked_cache,
    handle_of,
    latest_pictures,
    picture_batch,
    run_training,
    source_of,
)
from .node_observer import NodeObserver
from .run_values import training_config
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
        comfy_host.require_libraries()
        checked_cache(base, cache)
        own = {**section_values(_SETTINGS, given), "resume": "auto" if resume else "none"}
        output, draws = str(comfy_host.output_folder()), base.embedded or vae is not None
        config = training_config(cache, adapter, settings, own, output, draws=draws)
        observer = NodeObserver(
            str(cls.hidden.unique_id), config.output.name, config.training.steps
        )
        if cache.previews and not draws:
            observer.warn("Previews are off: connect a VAE to Train Adapter to see them.")
        result = run_training(config, source_of(None, vae, base), observer)
        pictures = picture_batch(latest_pictures(result.folder))
        return io.NodeOutput(
            adapter_tensors(result.adapters[0]),
            {"loss": list(result.losses)},
            comfy_host.blocked() if pictures is None else pictures,
            handle_of(result),
        )
