"""The node Check Adapter: whether ComfyUI loads an adapter as the trainer means it."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ..host import comfy_host
from . import sockets


class CheckAdapter(sockets.FileOrLora):
    """Loads an adapter with ComfyUI's own code and compares every layer."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerCheck",
            display_name="Check Adapter",
            category="Adapter Trainer",
            description="Lets ComfyUI load an adapter for this model, names every tensor that it "
            "does not load, and compares each layer's change with the trainer's.",
            search_aliases=[
                "lora key not loaded",
                "check lora",
                "inspect lora",
                "lora does nothing",
            ],
            is_output_node=True,
            inputs=[
                io.Model.Input(
                    "model",
                    tooltip="Connect the model that you generate with: the "
                    "adapter is checked for it.",
                ),
                cls.file_input(),
                io.Combo.Input(
                    "on_problem",
                    options=["report", "stop"],
                    default="report",
                    tooltip="Leave it on report to read what is wrong; take stop to end the "
                    "graph with an error then.",
                ),
                cls.lora_input(),
            ],
            outputs=[
                io.String.Output(display_name="report"),
                io.Boolean.Output(display_name="ok"),
            ],
            hidden=[io.Hidden.unique_id],
        )

    @classmethod
    def execute(cls, model: Any, file: str, on_problem: str, lora: Any = None) -> io.NodeOutput:
        from ..services.adapter_check import check_adapter

        comfy_host.require_libraries()
        source = sockets.chosen_lora(file, lora)
        proof = check_adapter(str(cls.hidden.unique_id), model, source, on_problem)
        return io.NodeOutput(proof.text(), proof.ok, ui={"text": (proof.text(),)})
