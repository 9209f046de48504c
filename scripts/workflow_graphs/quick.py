"""Workflows of one training node: a few answers, and the adapter in ComfyUI's own sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from . import figures, sampling
from .full_size import INSTRUCTION, model
from .graph import Node, Section, Subgraph, Workflow

_TRIGGER = "ohwx"
_FIRST = """
## Your first adapter: press Run

**Train LoRA (Quick)** teaches a tiny model that ships with this pack what a diamond is, from
{images} bundled images in {steps} steps: some minutes on a CPU. Its panel shows the loss, and
images as they get better.

Then ComfyUI's own KSampler generates one prompt from one seed **without** the adapter (left) and
**with** it (right). The button in the corner of **KSampler** opens what is inside.

**Next:** write *a yellow diamond on a white background* into **Embedded Text** and run again.
Nothing is trained twice. **Save Adapter** wrote the file for *Load LoRA*.

**Your own images:** take a template with *quick* and the name of your model.
"""
_GENERATE = """
## Train a LoRA for {name}

1. Drop your images on **Train LoRA (Quick)**, or choose their *folder*.
2. Say in *goal* what you teach. *trigger_word* is a made-up word that calls it up: it stands in
   the *prompt* on the right as well.
3. Choose the {files} model files below, and in *base* the same diffusion model.
4. Press **Run**. The panel shows what was chosen for you, and why.

**Then** KSampler generates the *prompt* with your adapter, and **Save Adapter** has written the
file for *Load LoRA* (key R lists it).
"""
_EDIT = """
## Teach {name} an edit

1. Your folder needs pairs: *control_images* (before) and *training_images* (after), with the same
   file names. A text file beside each image after says what was done.{several}
2. Choose that *folder* in **Train LoRA (Quick)**, the {files} model files below, and in *base* the
   same diffusion model.
3. Choose an *Image to edit*, and press **Run**. The panel shows what was chosen for you, and why.

**Then** KSampler edits that image with your adapter, and **Save Adapter** has written the file for
*Load LoRA* (key R lists it).
"""


@dataclass(frozen=True, slots=True)
class Quick:
    """What sets one of these workflows apart from the others.

    Attributes:
        file: The workflow's name.
        name: What people call the base.
        base: File of the diffusion model.
        texts: Files of the text encoders.
        vae: File of the VAE.
        clip: Class and settings of the text encoders' loader, besides their files.
        sampling: Makes what generates with the adapter.
        run: The run's name.
        goal: What is taught.
        several: Said of control images, where an image may have several.
    """

    file: str
    name: str
    base: str
    texts: tuple[str, ...]
    vae: str
    clip: tuple[str, Mapping[str, Any]]
    sampling: Callable[[], Subgraph]
    run: str
    goal: str = "person"
    several: str = ""


_QWEN = ("qwen_2.5_vl_7b_fp8_scaled.safetensors",)
_FLUX = ("clip_l.safetensors", "t5xxl_fp8_e4m3fn_scaled.safetensors")
_QWEN_CLIP = ("CLIPLoader", {"clip_name": _QWEN[0], "type": "qwen_image"})
_FLUX_CLIP = (
    "DualCLIPLoader",
    {"clip_name1": _FLUX[0], "clip_name2": _FLUX[1], "type": "flux"},
)
QUICK = (
    Quick(
        "02_quick_qwen_image",
        "Qwen-Image",
        "qwen_image_fp8_e4m3fn.safetensors",
        _QWEN,
        "qwen_image_vae.safetensors",
        _QWEN_CLIP,
        sampling.qwen_image,
        "my_qwen_image",
    ),
    Quick(
        "03_quick_qwen_image_edit",
        "Qwen-Image-Edit",
        "qwen_image_edit_2509_fp8_e4m3fn.safetensors",
        _QWEN,
        "qwen_image_vae.safetensors",
        _QWEN_CLIP,
        sampling.qwen_image_edit,
        "my_qwen_edit",
        "edit",
        " Several before one after: *cat_0.png*, *cat_1.png*.",
    ),
    Quick(
        "04_quick_flux_dev",
        "FLUX.1-dev",
        "flux1-dev.safetensors",
        _FLUX,
        "ae.safetensors",
        _FLUX_CLIP,
        sampling.flux,
        "my_flux",
    ),
    Quick(
        "05_quick_flux_kontext",
        "FLUX.1 Kontext",
        "flux1-dev-kontext_fp8_scaled.safetensors",
        _FLUX,
        "ae.safetensors",
        _FLUX_CLIP,
        sampling.flux_kontext,
        "my_kontext",
        "edit",
    ),
)
"""One for each supported base."""


def first_adapter() -> Workflow:
    """The embedded base learns a shape, and KSampler generates it: nothing is downloaded."""
    flow = Workflow("01_first_adapter", "A tiny base learns a diamond, and KSampler shows it")
    answers = {"folder": "demo/demo-generate", "base": "embedded", "goal": "object"}
    quick = flow.node("AdapterTrainerQuick", {**answers, "name": "diamond"})
    base = flow.node("AdapterTrainerEmbeddedModel")
    text = {"text": "a red diamond on a green background"}
    prompt = flow.node("AdapterTrainerEmbeddedText", text)
    lora = flow.node("LoraModelLoader", {"model": base["model"], "lora": quick["lora"]})
    save = flow.node("AdapterTrainerSave", {"run": quick["run"], "name": "diamond"})
    sampler = flow.several(
        sampling.before_and_after(),
        {
            "model": base["model"],
            "with_adapter": lora["model"],
            "positive": prompt["conditioning"],
            "negative": prompt["negative"],
            "vae": base["vae"],
        },
        title="KSampler: without and with the adapter",
    )
    shown = flow.node(
        "PreviewImage", {"images": sampler["IMAGE"]}, title="Without and with the adapter", tall=380
    )
    note = flow.note(_FIRST.format(**figures.first_run()), 440, width=360)
    flow.row(
        Section("1. Train", [[note], [quick]]),
        Section(
            "2. Generate with ComfyUI's own sampler",
            [[save, lora, base, prompt], [sampler, shown]],
        ),
    )
    return flow


def quick(choice: Quick) -> Workflow:
    """Train a full-size base with a few answers."""
    flow = Workflow(choice.file, f"{choice.name} from a few answers, straight into KSampler")
    kind, values = choice.clip
    clip = flow.node(kind, values, models=[model(name) for name in choice.texts])
    vae = flow.node("VAELoader", {"vae_name": choice.vae}, models=[model(choice.vae)])
    unet = flow.node("UNETLoader", {"unet_name": choice.base}, models=[model(choice.base)])
    edits = choice.goal == "edit"
    answers = {"goal": choice.goal, "name": choice.run, "trigger_word": "" if edits else _TRIGGER}
    trained = flow.node(
        "AdapterTrainerQuick",
        {
            "folder": f"datasets/my_{'pairs' if edits else 'images'}",
            "base": f"diffusion_models/{choice.base}",
            **answers,
            "clip": clip["CLIP"],
            "vae": vae["VAE"],
        },
    )
    save = flow.node("AdapterTrainerSave", {"run": trained["run"], "name": choice.run})
    own = {"clip": clip["CLIP"], "vae": vae["VAE"]}
    columns = [_edited(flow, choice, unet, trained, own)] if edits else []
    columns = columns or [_generated(flow, choice, unet, trained, own)]
    saved = flow.node(
        "SaveImage",
        {"images": columns[0][-1]["IMAGE"], "filename_prefix": f"adapter_trainer/{choice.run}"},
    )
    files = figures.WORDS[len(choice.texts) + 2]
    text = (_EDIT if edits else _GENERATE).format(
        name=choice.name, files=files, several=choice.several
    )
    note = flow.note(text, 340)
    flow.row(
        Section("1. Model files", [[note, clip, vae, unet]]),
        Section("2. Train", [[trained]]),
        Section("3. Save, and generate", [[save, *columns[0]], [saved]]),
    )
    return flow


def _generated(
    flow: Workflow, choice: Quick, unet: Node, trained: Node, own: Mapping[str, Any]
) -> list[Node]:
    lora = flow.node("LoraModelLoader", {"model": unet["MODEL"], "lora": trained["lora"]})
    prompt = {"prompt": f"a portrait of {_TRIGGER} in a garden"}
    made = choice.sampling()
    return [
        lora,
        flow.several(
            made, {"model": lora["model"], **own, **prompt}, title="Generate with KSampler"
        ),
    ]


def _edited(
    flow: Workflow, choice: Quick, unet: Node, trained: Node, own: Mapping[str, Any]
) -> list[Node]:
    image = flow.node("LoadImage", {"image": "example.png"}, title="Image to edit")
    given = {"model": unet["MODEL"], "lora": trained["lora"], **own, "image": image["IMAGE"]}
    settings = {"prompt": INSTRUCTION, "strength_model": 1.0}
    return [
        image,
        flow.several(choice.sampling(), {**given, **settings}, title="Edit with KSampler"),
    ]
