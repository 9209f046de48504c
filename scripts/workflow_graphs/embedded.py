"""Workflows that need no model file: the base that ships with the pack learns in minutes."""

from __future__ import annotations

from collections.abc import Sequence

from .figures import bundled_images
from .graph import Node, Note, Section, Subgraph, Workflow

_TINY_SETTINGS = {
    "batch_size": 16,
    "preview_every": 100,
    "checkpoint_every": 100,
    "schedule": "cosine",
    "warmup_steps": 20,
    "gradient_checkpointing": False,
}
_TINY_ADAPTER = {"kind": "lokr", "kind.factor": 4, "rank": 16, "targets": "all_linear"}
_TINY_DATA = {"resolution": 64, "preservation": 0.5}
_TINY_PREVIEWS = {"width": 64, "height": 64, "guidance": 3.0}


def embedded_generate() -> Workflow:
    """Text-to-image LoKr on the embedded base."""
    flow = Workflow("51_advanced_first_adapter", "A tiny base learns a diamond; no model file")
    data = flow.node("AdapterTrainerDatasetFolder", {"folder": "demo/demo-generate", **_TINY_DATA})
    base = flow.node("AdapterTrainerBase", {"source": "embedded", "precision": "fp32"})
    previews = flow.node(
        "AdapterTrainerPreviewPrompts",
        {
            "prompts": "a red diamond on a green background\n"
            "a yellow diamond on a green background",
            **_TINY_PREVIEWS,
        },
    )
    settings = {**_TINY_SETTINGS, "sigma_density": "shifted", "sigma_shift": 2.5}
    _training(flow, data, base, previews, settings, {"name": "diamond", "steps": 0})
    about = flow.note(
        f"""
## The first adapter, with every setting

A tiny Qwen-Image ships with this pack. It knows circles, squares, triangles and crosses, and no
diamond. {bundled_images("demo-generate")} bundled images teach it one, in a few minutes on a CPU.

Press **Run**, then watch the loss curve and the images on **Train Adapter**. **Preview Adapter**
generates the same prompts from the same seeds with the adapter and without it.

Run again: nothing is trained twice. Raise *steps*, and it goes on where it stopped.

Your own images: choose another *folder*. Each image needs a text file of the same name with
its caption.
""",
        330,
    )
    _places(flow, about)
    return flow


def embedded_edit() -> Workflow:
    """Edit LoKr on the embedded base, with control images."""
    flow = Workflow(
        "52_advanced_first_edit", "A tiny base learns an edit from pairs; no model file"
    )
    data = flow.node("AdapterTrainerDatasetFolder", {"folder": "demo/demo-edit", **_TINY_DATA})
    base = flow.node(
        "AdapterTrainerBase", {"source": "embedded", "precision": "fp32", "variant": "edit"}
    )
    control = flow.several(_control_image(), {}, title="Control image")
    previews = flow.node(
        "AdapterTrainerPreviewPrompts",
        {"prompts": "add a frame\nmake the shape red", "controls": control["IMAGE"]}
        | _TINY_PREVIEWS,
    )
    settings = {**_TINY_SETTINGS, "sigma_density": "uniform"}
    _training(flow, data, base, previews, settings, {"name": "frame", "steps": 0})
    about = flow.note(
        f"""
## Teach an edit, with every setting

The dataset has {bundled_images("demo-edit")} **pairs**: *control_images/001.png* is the image
before, and *training_images/001.png* the one after, with the instruction in *001.txt*. The tiny
base that ships with this pack learns the edit *add a frame*, on a CPU as well.

Press **Run**. The previews edit the control image that is put together here; the second prompt
is an edit that the base knew before and should keep.
""",
        290,
    )
    _places(flow, about, [control])
    return flow


def embedded_folders() -> Workflow:
    """Two folders as one dataset, one of them of ordinary images, with a report on both."""
    flow = Workflow("53_advanced_several_folders", "Two folders, a report and masks; no model file")
    small = {"resolution": 64}
    own = flow.node(
        "AdapterTrainerDatasetFolder",
        {"folder": "demo/demo-own", **small, "num_repeats": 3},
        title="Your own images",
    )
    ordinary = flow.node(
        "AdapterTrainerDatasetFolder",
        {"folder": "demo/demo-generate", **small, "role": "regularization", "weight": 0.5},
        title="Ordinary images",
    )
    data = flow.node(
        "AdapterTrainerDatasetCombine",
        {"datasets.dataset0": own["dataset"], "datasets.dataset1": ordinary["dataset"]},
    )
    base = flow.node("AdapterTrainerBase", {"source": "embedded", "precision": "fp32"})
    report = flow.node(
        "AdapterTrainerDatasetReport", {"dataset": data["dataset"], "base": base["base"]}
    )
    sheet = flow.node("PreviewImage", {"images": report["contact_sheet"]}, title="Contact sheet")
    words = flow.node("PreviewAny", {"source": report["report"]}, title="Report")
    previews = flow.node(
        "AdapterTrainerPreviewPrompts",
        {
            "prompts": "a red house on a green background\na yellow circle on a green background",
            **_TINY_PREVIEWS,
        },
    )
    settings = {**_TINY_SETTINGS, "sigma_density": "shifted", "sigma_shift": 2.5}
    _training(flow, data, base, previews, settings, {"name": "house", "steps": 240})
    about = flow.note(
        f"""
## Several folders, and what is in them

{bundled_images("demo-own")} images of houses are learned, three times in an epoch.
{bundled_images("demo-generate")} of shapes stand for **ordinary images**, with *role*
regularization and half the weight: they keep the base from forgetting.

**Dataset Report** looks at all of them before anything is trained.

**Masks**: put *photo_mask.png* beside *photo.png*. White is trained.
""",
        210,
    )
    cache, adapter, chosen, train, *compared = flow.nodes[-9:]
    after, shown, save, before, bare = compared
    flow.row(
        Section("1. Images and base", [[base, own, ordinary]]),
        Section("2. Join and look", [[about, data, report, words, sheet]]),
        Section("3. Encode and choose the adapter", [[previews, cache, adapter, before]]),
        Section("4. Train, compare and save", [[chosen, train], [after, shown, save, bare]]),
    )
    return flow


def _training(
    flow: Workflow,
    data: Node,
    base: Node,
    previews: Node,
    settings: dict[str, object],
    run: dict[str, object],
) -> None:
    cache = flow.node(
        "AdapterTrainerCache",
        {"dataset": data["dataset"], "base": base["base"], "previews": previews["previews"]},
    )
    adapter = flow.node("AdapterTrainerAdapter", _TINY_ADAPTER)
    chosen = flow.node("AdapterTrainerSettings", settings)
    train = flow.node(
        "AdapterTrainerTrain",
        {
            "base": base["base"],
            "cache": cache["cache"],
            "adapter": adapter["adapter"],
            "settings": chosen["settings"],
            "learning_rate": 0.01,
            **run,
        },
    )
    drawing = {"base": base["base"], "previews": previews["previews"]}
    after = flow.node(
        "AdapterTrainerPreview", {**drawing, "lora": train["lora"]}, title="With the adapter"
    )
    flow.node("PreviewImage", {"images": after["images"]}, title="With the adapter", tall=264)
    flow.node("AdapterTrainerSave", {"run": train["run"]})
    before = flow.node("AdapterTrainerPreview", drawing, title="Without the adapter")
    flow.node("PreviewImage", {"images": before["images"]}, title="Without the adapter", tall=264)


def _control_image() -> Subgraph:
    flow = Workflow("Draw a control image", "", first=301)
    ground = flow.node(
        "EmptyImage", {"width": 64, "height": 64, "color": 0x2850DC}, title="Background"
    )
    shape = flow.node("EmptyImage", {"width": 28, "height": 28, "color": 0xF0D228}, title="Shape")
    both = flow.node(
        "ImageCompositeMasked",
        {"destination": ground["IMAGE"], "source": shape["IMAGE"], "x": 18, "y": 18},
    )
    flow.row(Section("", [[ground, shape], [both]]))
    return Subgraph(flow, (), {"IMAGE": both["IMAGE"]}, (400, 60))


def _places(flow: Workflow, about: Note, control: Sequence[Node] = ()) -> None:
    data, base, *_, previews = flow.nodes[: 3 + len(control)]
    cache, adapter, settings, train = flow.nodes[3 + len(control) : -5]
    after, shown, save, before, bare = flow.nodes[-5:]
    flow.row(
        Section("1. Images and base", [[about, data, *control, base]]),
        Section("2. Encode and choose the adapter", [[cache, previews], [adapter, settings]]),
        Section("3. Train", [[train, before]]),
        Section("4. Compare and save", [[after, shown, save, bare]]),
    )
