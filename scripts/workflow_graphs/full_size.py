"""The full graphs for full-size bases: every setting of a training, and ComfyUI's own sampler."""

from __future__ import annotations

from . import figures
from .bases import FullSize
from .graph import Node, Output, Section, Workflow
from .training import Learned, saved, training

PROMPT = "a portrait of a woman in a garden"
INSTRUCTION = "turn the image into a watercolour"
CAPTION = "a poster with a cat in front of a house"
_GENERATE = """
## Train {name} with every setting

1. Drop your images on **Dataset From Folder**, each with a text file of the same name that holds
   its caption, or choose their *folder*.
2. Choose the {files} files below and the same diffusion model in **Load Training Base**. Plain
   bf16, fp16 and fp8_e4m3fn files and fp8_scaled ones can be read.
3. Set *name* and *steps* in **Train Adapter** and press **Run**. Then KSampler generates the
   *prompt* with your adapter.

The whole base in bf16 is about {size} GiB. With less VRAM **Training Settings** packs it and swaps
blocks; the panel says how.
"""
_EDIT = """
## Teach {name} an edit, with every setting

1. Your folder needs *control_images* (before) and *training_images* (after), with the same file
   names, and in *training_images* a text file for each with the instruction.{several}
2. Choose it in **Dataset From Folder**, the {files} files below, and the same diffusion model in
   **Load Training Base**.
3. Choose an *Image to edit*, for the previews and for KSampler.
4. Set *name* and *steps* in **Train Adapter** and press **Run**.

The whole base in bf16 is about {size} GiB. With less VRAM **Training Settings** packs it and swaps
blocks; the panel says how.
"""
_LAYERED = """
## Teach {name} to take images apart, with every setting

1. Your folder needs *training_images*, each whole image with a text file of the same name that
   holds its caption, and *layers* with its layers from the lowest to the topmost: *cat_0.png*,
   *cat_1.png* ... of *cat.png*, PNG with transparency and of the image's size.
2. Choose it in **Dataset From Folder**, the {files} files below, and the same diffusion model in
   **Load Training Base**.
3. Choose an *Image to take apart*, for the previews and for KSampler.
4. Set *name* and *steps* in **Train Adapter** and press **Run**.

The whole base in bf16 is about {size} GiB. With less VRAM **Training Settings** packs it and swaps
blocks; the panel says how.
"""


def full_size(number: int, choice: FullSize) -> Workflow:
    """Train a full-size base with every setting in the graph."""
    flow = Workflow(
        f"{number:02}_advanced_{choice.file}", f"{choice.name} with every setting, then KSampler"
    )
    loaders = clip, vae, unet = choice.loaders(flow)
    base = flow.node("AdapterTrainerBase", {"source": f"diffusion_models/{choice.base}"})
    side = 640 if choice.layered else 1024
    data = flow.node(
        "AdapterTrainerDatasetFolder",
        {"folder": choice.folder, "resolution": side, **choice.layout},
    )
    image: Output | None = None
    shown: list[Node] = []
    prompts = {"prompts": f"{PROMPT}\na small house by a lake", "guidance": choice.guidance}
    if choice.edits:
        shown = [image_to_change(flow, choice)]
        image = shown[0]["IMAGE"]
        prompts |= {"prompts": instruction(choice), "controls": image}
    if choice.layered:
        prompts |= {"width": side, "height": side}
    previews = flow.node("AdapterTrainerPreviewPrompts", prompts)
    inputs = (data["dataset"], base["base"], clip["CLIP"], vae["VAE"], previews["previews"])
    learned = Learned(*inputs, choice.run, choice.kind)
    train, cache, adapter, settings = training(flow, learned)
    save, loss = saved(flow, train, choice.run)
    prompt = instruction(choice) if choice.edits else PROMPT
    *first, last, image_saved = choice.generating(flow, train["lora"], loaders, image, prompt)
    size = figures.gibibytes(choice.family, choice.sizes)
    words = _LAYERED if choice.layered else _EDIT if choice.edits else _GENERATE
    text = words.format(size=size, **choice.about())
    note = flow.note(text, 310 if choice.several or choice.layered else 290)
    flow.row(
        Section("1. Model files", [[note, clip, vae, unet, *shown]]),
        Section("2. Images and preview prompts", [[base, data, previews]]),
        Section("3. Encode, choose the adapter", [[cache, adapter, settings]]),
        Section("4. Train and save", [[train, save]]),
        Section("5. Loss, and generate", [[loss, *first, last, image_saved]]),
    )
    return flow


def instruction(choice: FullSize) -> str:
    """What is said of the image that a base changes."""
    return CAPTION if choice.layered else INSTRUCTION


def image_to_change(flow: Workflow, choice: FullSize) -> Node:
    """Add the image that a base changes."""
    title = "Image to take apart" if choice.layered else "Image to edit"
    return flow.node("LoadImage", {"image": "example.png"}, title=title)
