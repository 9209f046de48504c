"""What the workflows for full-size bases share: model files, training, drawing, and saving."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .graph import Node, Note, Output, Section, Workflow

_HUB = "https://huggingface.co"
_WHERE = {
    "qwen_image_fp8_e4m3fn.safetensors": (
        "diffusion_models",
        "Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/diffusion_models",
    ),
    "qwen_image_edit_2509_fp8_e4m3fn.safetensors": (
        "diffusion_models",
        "Comfy-Org/Qwen-Image-Edit_ComfyUI/resolve/main/split_files/diffusion_models",
    ),
    "qwen_2.5_vl_7b_fp8_scaled.safetensors": (
        "text_encoders",
        "Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/text_encoders",
    ),
    "qwen_image_vae.safetensors": (
        "vae",
        "Comfy-Org/Qwen-Image_ComfyUI/resolve/main/split_files/vae",
    ),
    "flux1-dev.safetensors": ("diffusion_models", "Comfy-Org/flux1-dev/resolve/main"),
    "flux1-dev-kontext_fp8_scaled.safetensors": (
        "diffusion_models",
        "Comfy-Org/flux1-kontext-dev_ComfyUI/resolve/main/split_files/diffusion_models",
    ),
    "clip_l.safetensors": ("text_encoders", "comfyanonymous/flux_text_encoders/resolve/main"),
    "t5xxl_fp8_e4m3fn_scaled.safetensors": (
        "text_encoders",
        "comfyanonymous/flux_text_encoders/resolve/main",
    ),
    "ae.safetensors": (
        "vae",
        "Comfy-Org/Lumina_Image_2.0_Repackaged/resolve/main/split_files/vae",
    ),
}


def model(name: str) -> dict[str, str]:
    """A model file as ComfyUI offers it for download when it is absent.

    Args:
        name: Its name, as in ComfyUI's own templates.
    """
    folder, place = _WHERE[name]
    return {"name": name, "url": f"{_HUB}/{place}/{name}", "directory": folder}


PROMPT = "a portrait of a woman in a garden"
INSTRUCTION = "turn the image into a watercolour"
_GENERATE = """
## Train {name} on your images

1. Put 10 to 50 images into *datasets/my_images* below ComfyUI's folder, each with a text file
   of the same name that holds its caption. Choose that folder in **Dataset From Folder**.
2. Choose the {files} files below and the same diffusion model in **Load Training Base**. Plain
   bf16, fp16 and fp8_e4m3fn files and fp8_scaled ones can be read.
3. Set *name* and *steps* in **Train Adapter** and press **Run**.

A step holds the whole base in bf16, about {size} GiB: choose a GPU with more than that.
"""
_EDIT = """
## Teach {name} an edit

1. In *datasets/my_pairs* below ComfyUI's folder make *control_images* (before) and
   *training_images* (after), with the same file names, and in *training_images* a text file for
   each image with the instruction.{several}
2. Choose the {files} files below and the same diffusion model in **Load Training Base**.
3. Choose an image to edit: it is used for the previews and at the end.
4. Set *name* and *steps* in **Train Adapter** and press **Run**.

A step holds the whole base in bf16, about {size} GiB: choose a GPU with more than that.
"""


@dataclass(frozen=True, slots=True)
class Choice:
    """What sets one full-size workflow apart from the others.

    Attributes:
        name: What people call the base.
        base: File of the diffusion model.
        kind: Of the adapter.
        guidance: Of the previews.
        run: The run's name.
        files: How many model files there are, as a word.
        size: Of the base in bf16, in GiB.
        edits: Whether it learns an edit, from pairs of images.
        several: Said of control images in the first note, where an image may have several.
    """

    name: str
    base: str
    kind: str
    guidance: float
    run: str
    files: str
    size: int
    edits: bool = False
    several: str = ""

    def about(self, flow: Workflow) -> Note:
        """Add the first note."""
        words = {"name": self.name, "files": self.files, "size": self.size}
        text = (_EDIT if self.edits else _GENERATE).format(**words, several=self.several)
        return flow.note(text, 310 if self.several else 300)


@dataclass(frozen=True, slots=True)
class Trained:
    """The nodes of the training half, for the half that draws."""

    model: Output
    clip: Output
    vae: Output
    image: Output | None


def training_half(flow: Workflow, choice: Choice, clip: Node, vae: str) -> Trained:
    """Add model files, dataset, adapter, training and saving.

    Args:
        flow: The workflow.
        choice: What is trained.
        clip: The text encoder's loader.
        vae: File of the VAE.
    """
    decoder = flow.node("VAELoader", {"vae_name": vae}, models=[model(vae)])
    unet = flow.node("UNETLoader", {"unet_name": choice.base}, models=[model(choice.base)])
    base = flow.node("AdapterTrainerBase", {"source": f"diffusion_models/{choice.base}"})
    folder, dataset = "datasets/my_images", {"resolution": 1024}
    prompts = {"prompts": f"{PROMPT}\na small house by a lake", "guidance": choice.guidance}
    image, controls = None, {}
    if choice.edits:
        folder, dataset = "datasets/my_pairs", {"resolution": 1024, "layout": "paired"}
        prompts["prompts"] = INSTRUCTION
    data = flow.node("AdapterTrainerDatasetFolder", {"folder": folder, **dataset})
    if choice.edits:
        image = _control(flow)
        controls = {"controls": image["IMAGE"]}
    previews = flow.node("AdapterTrainerPreviewPrompts", {**prompts, **controls})
    train, cache, adapter, settings = _train(flow, choice, data, base, clip, decoder, previews)
    shown = flow.node(
        "PreviewImage", {"images": train["previews"]}, title="Previews of the last checkpoint"
    )
    save = flow.node("AdapterTrainerSave", {"run": train["run"], "name": choice.run})
    loss = flow.node(
        "LossGraphNode",
        {"loss": train["loss"], "filename_prefix": f"{choice.run}_loss"},
        tall=330,
    )
    columns = [[base, data], [*_image_nodes(flow, image), previews]]
    flow.row(
        Section("1. Model files", [[choice.about(flow), clip, decoder, unet]]),
        Section("2. Base, images and preview prompts", columns),
        Section("3. Encode and choose the adapter", [[cache, adapter], [settings]]),
        Section("4. Train", [[train], [shown, loss, save]]),
    )
    return Trained(unet["MODEL"], clip["CLIP"], decoder["VAE"], image["IMAGE"] if image else None)


def _control(flow: Workflow) -> Node:
    loaded = flow.node("LoadImage", {"image": "example.png"}, title="Image to edit")
    return flow.node("FluxKontextImageScale", {"image": loaded["IMAGE"]})


def _image_nodes(flow: Workflow, scaled: Node | None) -> list[Node]:
    return [] if scaled is None else [flow.nodes[scaled.id - 2], scaled]


def _train(
    flow: Workflow, choice: Choice, data: Node, base: Node, clip: Node, vae: Node, previews: Node
) -> tuple[Node, Node, Node, Node]:
    cache = flow.node(
        "AdapterTrainerCache",
        {
            "dataset": data["dataset"],
            "base": base["base"],
            "clip": clip["CLIP"],
            "vae": vae["VAE"],
            "previews": previews["previews"],
        },
    )
    adapter = flow.node("AdapterTrainerAdapter", {"rank": 16, "kind": choice.kind})
    settings = flow.node(
        "AdapterTrainerSettings",
        {
            "preview_every": 250,
            "checkpoint_every": 250,
            "warmup_steps": 100,
            "sigma_density": "shifted",
        },
    )
    train = flow.node(
        "AdapterTrainerTrain",
        {
            "base": base["base"],
            "cache": cache["cache"],
            "adapter": adapter["adapter"],
            "settings": settings["settings"],
            "vae": vae["VAE"],
            "steps": 2000,
            "learning_rate": 1e-4,
            "name": choice.run,
        },
    )
    return train, cache, adapter, settings


def with_adapter(flow: Workflow, unet: Output) -> Node:
    """Core's Load LoRA Model behind the Train Adapter of this workflow.

    Args:
        flow: The workflow, with its training half.
        unet: Core's own diffusion model.
    """
    train = next(node for node in flow.nodes if node.type == "AdapterTrainerTrain")
    return flow.node("LoraModelLoader", {"model": unet, "lora": train["lora"]})


def drawn(
    flow: Workflow,
    trained: Trained,
    denoiser: Output,
    positive: Output,
    negative: Output,
    latent: Output,
    cfg: float,
    prefix: str,
) -> list[list[Node]]:
    """Add sampler, decoder and saving, as the last columns of the row that draws."""
    sampler = flow.node(
        "KSampler",
        {
            "model": denoiser,
            "positive": positive,
            "negative": negative,
            "latent_image": latent,
            "steps": 20,
            "cfg": cfg,
            "sampler_name": "euler",
            "scheduler": "simple",
        },
    )
    decoded = flow.node("VAEDecode", {"samples": sampler["LATENT"], "vae": trained.vae})
    prefix = f"adapter_trainer/{prefix}"
    saved = flow.node("SaveImage", {"images": decoded["IMAGE"], "filename_prefix": prefix})
    return [[sampler, decoded], [saved]]


def drawing_row(flow: Workflow, columns: Sequence[Sequence[Node]], latent: Node | None) -> None:
    """Add the row that draws with the trained adapter, with its note.

    Args:
        flow: The workflow.
        columns: Nodes before the sampler, the last two of them sampler and decoder.
        latent: Where the image's size is chosen, or None.
    """
    size = "the size in **EmptySD3LatentImage**" if latent else "the image to edit"
    note = flow.note(
        f"""
## Draw with the trained adapter

This part waits for the training and then draws with ComfyUI's own nodes. Write a prompt as your
captions are written, with your trigger word; choose {size} and *strength_model* of **Load LoRA
Model**.

**Next:** the file that **Save Adapter** wrote is in the list of *Load LoRA* after a refresh
(key R), for any other workflow. Only change the prompt and run again: the training is not repeated.
""",
        230,
        title="What next",
    )
    flow.row(Section("5. Draw with the trained adapter", [[note], *columns]))
