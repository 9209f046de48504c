"""Workflows of one training node: a few answers, and the adapter in ComfyUI's own sampler."""

from __future__ import annotations

from . import figures, sampling
from .bases import FullSize
from .graph import Node, Section, Workflow

_TRIGGER = "ohwx"
_INSTRUCTION = "turn the image into a watercolour"
_CAPTION = "a poster with a cat in front of a house"
_FIRST = """
## Your first adapter: press Run

**Train LoRA (Quick)** teaches a tiny model that ships with this pack what a diamond is, from
{images} bundled images in {steps} steps: some minutes on a CPU. Its panel shows the loss, and
images as they get better.

Then ComfyUI's own KSampler generates one prompt from one seed **without** the adapter (left) and
**with** it (right). The button in the corner of **KSampler** opens what is inside.

**Next:** write *a yellow diamond on a white background* into **Embedded Text** and run again.
Nothing is trained twice. **Save Adapter** writes the file for *Load LoRA*, and says its name.

**Your own images:** drop them on **Train LoRA (Quick)** in a template with *quick* and the name of
your model.
"""
_GENERATE = """
## Train a LoRA for {name}

1. Drop your images on **Train LoRA (Quick)**, or choose their *folder*.
2. Say in *goal* what you teach. *trigger_word* is a made-up word that calls it up: it stands in
   the *prompt* on the right as well.
3. Choose the {files} model files below.
4. Press **Run**. The panel shows what was chosen for you, and why.

**Then** KSampler generates the *prompt* with your adapter, and **Save Adapter** has written the
file for *Load LoRA* (key R lists it).
"""
_EDIT = """
## Teach {name} an edit

1. Your folder needs pairs: *control_images* (before) and *training_images* (after), with the same
   file names. A text file beside each image after says what was done.{several}
2. Choose that *folder* in **Train LoRA (Quick)**, and the {files} model files below.
3. Choose an *Image to edit*, and press **Run**. The panel shows what was chosen for you, and why.

**Then** KSampler edits that image with your adapter, and **Save Adapter** has written the file for
*Load LoRA* (key R lists it).
"""
_LAYERED = """
## Teach {name} to take images apart

1. Your folder needs *training_images*, each whole image with a text file of the same name that
   holds its caption, and *layers* with its layers from the lowest to the topmost: *cat_0.png*,
   *cat_1.png* ... of *cat.png*, PNG with transparency and of the image's size.
2. Choose that *folder* in **Train LoRA (Quick)**, and the {files} model files below.
3. Choose an *Image to take apart*, and press **Run**. The panel shows what was chosen for you.

**Then** KSampler takes that image apart with your adapter, and **Save Adapter** has written the
file for *Load LoRA* (key R lists it).
"""


def first_adapter() -> Workflow:
    """The embedded base learns a shape, and KSampler generates it: nothing is downloaded."""
    flow = Workflow("01_first_adapter", "A tiny base learns a diamond, and KSampler shows it")
    answers = {"folder": "demo/demo-generate", "base": "embedded", "goal": "object"}
    quick = flow.node("AdapterTrainerQuick", {**answers, "name": "diamond"})
    base = flow.node("AdapterTrainerEmbeddedModel")
    text = {"text": "a red diamond on a green background"}
    prompt = flow.node("AdapterTrainerEmbeddedText", text)
    lora = flow.node("LoraModelLoader", {"model": base["model"], "lora": quick["lora"]})
    save = flow.node("AdapterTrainerSave", {"run": quick["run"]})
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
    note = flow.note(_FIRST.format(**figures.first_run()), 350, width=360)
    flow.row(
        Section("1. Train", [[note], [quick]]),
        Section(
            "2. Generate with ComfyUI's own sampler",
            [[lora, base, prompt, save], [sampler, shown]],
        ),
    )
    return flow


def quick(number: int, choice: FullSize) -> Workflow:
    """Train a full-size base with a few answers."""
    flow = Workflow(
        f"{number:02}_quick_{choice.file}", f"{choice.name} from a few answers, then KSampler"
    )
    loaded = choice.loaders(flow)
    goal = {"goal": "edit"} if choice.edits else {"goal": "person", "trigger_word": _TRIGGER}
    trained = flow.node(
        "AdapterTrainerQuick",
        {
            "folder": choice.folder,
            "name": choice.run,
            "model": loaded.model,
            "clip": loaded.clip,
            "vae": loaded.vae,
            **goal,
        },
    )
    layout = {"layout": choice.layout} if choice.layout else {}
    save = flow.node("AdapterTrainerSave", {"run": trained["run"], **layout})
    shown: list[Node] = []
    if choice.edits:
        title = "Image to take apart" if choice.layered else "Image to edit"
        shown = [flow.node("LoadImage", {"image": "example.png"}, title=title)]
    image = shown[0]["IMAGE"] if shown else None
    prompt = f"a portrait of {_TRIGGER} in a garden"
    if choice.edits:
        prompt = _CAPTION if choice.layered else _INSTRUCTION
    *first, last, saved = choice.generating(flow, trained["lora"], loaded, image, prompt)
    usual = _LAYERED if choice.layered else _EDIT if choice.edits else _GENERATE
    words = choice.note or usual.format(**choice.about())
    note = flow.note(words, 290 if choice.layered or choice.note else 270)
    flow.row(
        Section("1. Model files", [[note, *loaded.nodes]]),
        Section("2. Train", [[trained]]),
        Section("3. Save, and generate", [[*first, save, *shown, last], [saved]]),
    )
    return flow
