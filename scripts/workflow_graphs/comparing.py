"""A workflow that rewrites an adapter file in other layouts and compares what they generate."""

from __future__ import annotations

from collections.abc import Mapping

from .graph import Node, Section, Workflow


def convert_and_compare() -> Workflow:
    """Convert an adapter file and generate with each copy."""
    flow = Workflow(
        "41_convert_and_compare", "An adapter file in other layouts, and what it generates"
    )
    base = flow.node("AdapterTrainerBase", {"source": "embedded", "precision": "fp32"})
    previews = flow.node(
        "AdapterTrainerPreviewPrompts",
        {
            "prompts": "a red diamond on a green background\na blue circle on a white background",
            "width": 64,
            "height": 64,
            "guidance": 3.0,
        },
    )
    file = {"file": "diamond.safetensors", "overwrite": True}
    native = flow.node(
        "AdapterTrainerConvert",
        {**file, "layout": "comfyui", "name": "converted/diamond_comfyui"},
        title="Convert Adapter: for ComfyUI",
    )
    other = flow.node(
        "AdapterTrainerConvert",
        {**file, "layout": "diffusers", "name": "converted/diamond_diffusers"},
        title="Convert Adapter: for Diffusers",
    )
    drawing = {"base": base["base"], "previews": previews["previews"]}
    columns = [
        _drawn(flow, "Base alone", drawing),
        _drawn(flow, "Layout comfyui", {**drawing, "lora": native["lora"]}),
        _drawn(flow, "Layout diffusers", {**drawing, "lora": other["lora"]}),
    ]
    about = flow.note(
        """
## Convert an adapter, and see that nothing changed

1. Choose the adapter in *file* of both **Convert Adapter** nodes. *diamond* is what the template
   *01_first_adapter* saves: run that first. Files of any trainer are read.
2. Choose the base that it was trained for. A base other than the embedded one needs its CLIP and
   VAE: connect them to each **Preview Adapter**, and raise *width* and *height* of the prompts.
3. Press **Run**. Both files lie in the folder *converted* of the loras folder.

The images of both layouts are the same; those of the base alone differ.
""",
        290,
    )
    flow.row(
        Section("1. Base and prompts", [[about, base, previews]]),
        Section("2. Convert", [[native, other]]),
        Section("3. Generate with each", [list(pair) for pair in columns]),
    )
    return flow


def _drawn(flow: Workflow, title: str, values: Mapping[str, object]) -> tuple[Node, Node]:
    drawn = flow.node("AdapterTrainerPreview", values, title=title)
    return drawn, flow.node("PreviewImage", {"images": drawn["images"]}, title=title)
