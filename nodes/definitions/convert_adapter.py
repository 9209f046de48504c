"""The node Convert Adapter: rewrites an adapter file in another layout."""

from __future__ import annotations

from typing import Any

from comfy_api.latest import io

from ...trainer_core.adapter_files.names.video_model_names import VIDEO_MODELS
from ..host import comfy_host
from . import sockets
from .setting_inputs import family_choices, form_inputs, layout_input, overwrite_input


def _approximation_inputs() -> list[io.Input]:
    return [
        io.Combo.Input(
            "approximate",
            options=["none", "lora", "lokr"],
            default="none",
            optional=True,
            advanced=True,
            tooltip="Leave it on none; change it when the layout cannot hold the adapter as it "
            "is. lora: writes the nearest LoRA of the rank. lokr: the nearest "
            "Kronecker product of q, k and v together. The error is shown.",
        ),
        io.Int.Input(
            "rank",
            default=0,
            min=0,
            max=4096,
            optional=True,
            advanced=True,
            tooltip="Set it when approximate is lora: higher is closer, lower a smaller file. "
            "Highest rank of the nearest LoRA; 0: none is named, which does only where "
            "an exact one exists.",
        ),
        io.Combo.Input(
            "extras",
            options=["keep", "drop"],
            default="keep",
            optional=True,
            advanced=True,
            tooltip="Leave it on keep; take drop when the layout has no place for them. "
            "Trained biases and norms of other programs; drop leaves them out.",
        ),
        sockets.Base.Input(
            "base",
            optional=True,
            tooltip="Leave it open unless the conversion asks for it. The base's weights are "
            "needed for DoRA of the output axis, which ComfyUI reads wrongly: the "
            "difference that it makes is written then, or with approximate its nearest "
            "LoRA.",
        ),
    ]


class ConvertAdapter(sockets.FileOrLora):
    """Rewrites an adapter file in another layout."""

    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="AdapterTrainerConvert",
            display_name="Convert Adapter",
            category="Adapter Trainer",
            description="Reads an adapter and writes it in another layout, into the loras folder.",
            search_aliases=["convert lora", "lora format", "kohya", "diffusers lora"],
            is_output_node=True,
            inputs=[
                cls.file_input(),
                cls.lora_input(),
                layout_input(),
                io.Combo.Input(
                    "family",
                    options=[*dict.fromkeys((*family_choices(), *VIDEO_MODELS))],
                    default="auto",
                    tooltip="Leave it on auto unless the file does not tell. Architecture of "
                    "the adapter's base. auto: read from the file.",
                ),
                io.String.Input(
                    "name",
                    default="converted",
                    tooltip="Set it to what the new file should be called; folders with /.",
                ),
                overwrite_input(),
                *form_inputs(),
                *_approximation_inputs(),
            ],
            outputs=[
                sockets.LoraModel.Output(display_name="lora"),
                io.String.Output(display_name="path"),
            ],
        )

    @classmethod
    def execute(
        cls, file: str, layout: str, name: str, lora: Any = None, **inputs: Any
    ) -> io.NodeOutput:
        from ..services import loras_folder

        comfy_host.require_libraries()
        source = sockets.chosen_lora(file, lora)
        written = loras_folder.write_adapter_files(source, name, layout, **inputs)
        sentence = loras_folder.conversion_text(written)
        first = next(iter(written.values())).path
        weights = loras_folder.adapter_tensors(loras_folder.weights_file(first))
        return io.NodeOutput(weights, str(first), ui={"text": (sentence,)})
