"""A node pack for tests alone: ComfyUI's Load CLIP and DualCLIPLoader, for small text encoders.

ComfyUI's nodes know only a T5 of 4.7 billion weights and a Qwen2.5-VL of 8 billion, but the loader
behind them takes other sizes as options. The tests copy this file and those that it
imports into ``custom_nodes``; ComfyUI's interpreter runs them.
``models/text_encoders/sizes.json`` has the sizes.
"""

import json
from pathlib import Path

import comfy.sd
import folder_paths
from comfy_api.latest import ComfyExtension, io

from .small_models import know_small_models, small_clip
from .small_qwen import small_qwen

SIZES = {"krea2": "krea2", "chroma": "t5", "lumina2": "qwen3", "flux2": "qwen3"}
"""What sizes the text encoder of a loader's type has."""

know_small_models()


def sizes():
    (folder, *_) = folder_paths.get_folder_paths("text_encoders")
    return json.loads((Path(folder) / "sizes.json").read_text(encoding="utf-8"))


def load(kind, *names):
    given = sizes()
    paths = [folder_paths.get_full_path_or_raise("text_encoders", name) for name in names]
    if kind in SIZES:
        return io.NodeOutput(small_clip(kind, *paths, given[SIZES[kind]]))
    options = {
        # The loader makes it the options of CLIP-L, with the length of its text.
        "model_config": given["clip_l"],
        "t5xxl_model_config": given["t5"],
        "qwen25_7b_model_config": given["qwen"],
        "qwen25_7b_class": small_qwen(given["vision"]),
    }
    clip = comfy.sd.load_clip(
        paths, clip_type=getattr(comfy.sd.CLIPType, kind.upper()), model_options=options
    )
    return io.NodeOutput(clip)


class StandInCLIPLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        return io.Schema(
            node_id="StandInCLIPLoader",
            category="tests",
            inputs=[io.String.Input(name) for name in ("clip_name", "type", "device")],
            outputs=[io.Clip.Output()],
        )

    @classmethod
    def execute(cls, clip_name, type, device):
        return load(type, clip_name)


class StandInDualCLIPLoader(io.ComfyNode):
    @classmethod
    def define_schema(cls):
        names = ("clip_name1", "clip_name2", "type", "device")
        return io.Schema(
            node_id="StandInDualCLIPLoader",
            category="tests",
            inputs=[io.String.Input(name) for name in names],
            outputs=[io.Clip.Output()],
        )

    @classmethod
    def execute(cls, clip_name1, clip_name2, type, device):
        return load(type, clip_name1, clip_name2)


class StandIns(ComfyExtension):
    async def get_node_list(self):
        return [StandInCLIPLoader, StandInDualCLIPLoader]


async def comfy_entrypoint():
    return StandIns()
