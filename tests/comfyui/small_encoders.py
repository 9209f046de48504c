"""A node pack for tests alone: FLUX.1's small text encoders, and what they say, in a file.

ComfyUI's Load CLIP node only knows a T5 of 4.7 billion weights and a CLIP-L of 120 million, but its
own classes take the sizes as an option. The tests copy this file into ``custom_nodes``; ComfyUI's
interpreter runs it.
``models/text_encoders`` has ``clip_l.safetensors``, ``t5xxl.safetensors`` and ``sizes.json``.
"""

import json
from pathlib import Path
from types import SimpleNamespace

import comfy.sd
import comfy.utils
import folder_paths
import torch
from comfy.text_encoders import flux
from comfy_api.latest import ComfyExtension, io
from safetensors.torch import save_file


class SmallFluxEncoders(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SmallFluxEncoders", category="tests", inputs=[], outputs=[io.Clip.Output()]
        )

    @classmethod
    def execute(cls):
        names = ("clip_l.safetensors", "t5xxl.safetensors")
        paths = [folder_paths.get_full_path_or_raise("text_encoders", name) for name in names]
        sizes = json.loads(Path(paths[0]).with_name("sizes.json").read_text(encoding="utf-8"))
        target = SimpleNamespace(params={}, clip=flux.flux_clip(), tokenizer=flux.FluxTokenizer)
        clip = comfy.sd.CLIP(
            target,
            state_dict=[comfy.utils.load_torch_file(path, safe_load=True) for path in paths],
            model_options={"dtype": torch.float32, **sizes},
        )
        return io.NodeOutput(clip)


class SaveConditioning(io.ComfyNode):
    """Writes ``output/conditioning/NAME.safetensors``: a text's embeddings, and its pooled one."""

    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="SmallSaveConditioning",
            category="tests",
            inputs=[io.Conditioning.Input("conditioning"), io.String.Input("name")],
            is_output_node=True,
        )

    @classmethod
    def execute(cls, conditioning, name):
        folder = Path(folder_paths.get_output_directory()) / "conditioning"
        folder.mkdir(exist_ok=True)
        ((text, more),) = conditioning
        found = {"text": text, "pooled": more["pooled_output"]}
        ready = {key: each.detach().clone().contiguous() for key, each in found.items()}
        save_file(ready, folder / f"{name}.safetensors")
        return io.NodeOutput()


class SmallEncoders(ComfyExtension):
    async def get_node_list(self):
        return [SmallFluxEncoders, SaveConditioning]


async def comfy_entrypoint():
    return SmallEncoders()
