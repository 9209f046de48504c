"""The full graphs that train the MODEL of the graph itself, whatever loader made it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from . import sampling
from .bases import model
from .full_size import PROMPT
from .graph import Node, Output, Section, Subgraph, Workflow
from .training import Learned, saved, training

_SDXL = """
## Train SDXL, or any checkpoint made from it

1. Choose your checkpoint below: SDXL, or one of its kind such as Illustrious or Pony, also one of
   v-prediction. **Base From Model** trains it where it lies, without a second copy.
2. Drop your images on **Dataset From Folder**, each with a text file of the same name that holds
   its caption, or choose their *folder*.
3. Set *name* and *steps* in **Train Adapter** and press **Run**. Then KSampler generates the
   *prompt* with your adapter.

Leave *sigma_density* on auto: the model's own noise levels, each as often as the others.
"""
_ANY = """
## Train any model that ComfyUI loads

1. Exchange the three loaders below for those that you generate with: Load Checkpoint, or one that
   reads GGUF. Anima stands here as an example. A LoRA on the model becomes a part of the base.
2. Drop your images on **Dataset From Folder**, each with a text file of the same name that holds
   its caption, or choose their *folder*.
3. Set size and *guidance* of **Preview Prompts**, and those in **Generate**, to what your model
   wants.
4. Set *name* and *steps* in **Train Adapter** and press **Run**.

Leave *sigma_density* on auto. A model that cannot be trained is refused by its name.
"""


@dataclass(frozen=True, slots=True)
class GraphBase:
    """A model of the graph that is trained.

    Attributes:
        file: What its workflow is called behind ``advanced``.
        name: What people call it.
        checkpoint: File of model, text encoders and VAE in one; empty where each has its own.
        files: Of the diffusion model, the text encoder and the VAE, where they are three.
        sampling: Makes what generates with an adapter.
        guidance: Of the previews.
        run: The run's name.
        note: What the note says.
        facts: What its card says, a line each.
    """

    file: str
    name: str
    checkpoint: str
    files: Sequence[str]
    sampling: Callable[[], Subgraph]
    guidance: float
    run: str
    note: str
    facts: Sequence[str]

    def loaders(self, flow: Workflow) -> tuple[list[Node], Output, Output, Output]:
        """Add ComfyUI's loaders; they, and their MODEL, CLIP and VAE."""
        if self.checkpoint:
            values = {"ckpt_name": self.checkpoint}
            one = flow.node("CheckpointLoaderSimple", values, models=[model(self.checkpoint)])
            return [one], one["MODEL"], one["CLIP"], one["VAE"]
        names = ("UNETLoader", "unet_name"), ("CLIPLoader", "clip_name"), ("VAELoader", "vae_name")
        made = [
            flow.node(kind, {key: file}, models=[model(file)])
            for (kind, key), file in zip(names, self.files, strict=True)
        ]
        unet, clip, vae = made
        return made, unet["MODEL"], clip["CLIP"], vae["VAE"]


GRAPH_BASES = (
    GraphBase(
        "sdxl",
        "SDXL",
        "sd_xl_base_1.0.safetensors",
        (),
        sampling.sdxl,
        7.0,
        "my_sdxl",
        _SDXL,
        ("Load Checkpoint", "every setting", "then KSampler"),
    ),
    GraphBase(
        "any_model",
        "Any model",
        "",
        (
            "anima-base-v1.0.safetensors",
            "qwen_3_06b_base.safetensors",
            "qwen_image_vae.safetensors",
        ),
        sampling.any_model,
        4.0,
        "my_model",
        _ANY,
        ("whatever loader makes it", "every setting", "then KSampler"),
    ),
)
"""In the order of their workflows."""


def graph_model(number: int, choice: GraphBase) -> Workflow:
    """Train a model of the graph with every setting in the graph."""
    flow = Workflow(
        f"{number:02}_advanced_{choice.file}", f"{choice.name} of the graph, then KSampler"
    )
    loaders, given, clip, vae = choice.loaders(flow)
    base = flow.node("AdapterTrainerBaseFromModel", {"model": given})
    data = flow.node(
        "AdapterTrainerDatasetFolder", {"folder": "datasets/my_images", "resolution": 1024}
    )
    prompts = f"{PROMPT}\na small house by a lake"
    previews = flow.node(
        "AdapterTrainerPreviewPrompts", {"prompts": prompts, "guidance": choice.guidance}
    )
    inputs = (data["dataset"], base["base"], clip, vae, previews["previews"])
    learned = Learned(*inputs, choice.run, density="auto")
    train, cache, adapter, settings = training(flow, learned)
    save, loss = saved(flow, train, choice.run)
    lora = flow.node("LoraModelLoader", {"model": given, "lora": train["lora"]})
    generating = {"model": lora["model"], "clip": clip, "vae": vae, "prompt": PROMPT}
    generate = flow.several(choice.sampling(), generating, title="Generate with the adapter")
    shown = {"images": generate["IMAGE"], "filename_prefix": f"adapter_trainer/{choice.run}"}
    image = flow.node("SaveImage", shown, tall=290)
    note = flow.note(choice.note, 330)
    flow.row(
        Section("1. Model files", [[note, *loaders]]),
        Section("2. Images and preview prompts", [[base, data, previews]]),
        Section("3. Encode, choose the adapter", [[cache, adapter, settings]]),
        Section("4. Train and save", [[train, save]]),
        Section("5. Loss, and generate", [[loss, lora, generate, image]]),
    )
    return flow
