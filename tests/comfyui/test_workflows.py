"""The shipped workflows against a real server: what they name exists there, and they run.

The files that they name are small stand-ins of random weights. ComfyUI's loaders of T5 and of the
Qwen text encoders know their own sizes only, which need the real file: in
`WITHOUT_THEIR_TEXT_ENCODER` these nodes alone give way to ones that load a small text encoder
through the same function of ComfyUI. So do the loaders of SDXL and Anima, whose sizes ComfyUI knows
too: in `OF_TINY_MODELS` a test node gives a tiny MODEL of the same class, its CLIP and its VAE.
"""

import copy
import io
import json
import shutil

import av
import numpy
import pytest
from comfyui.clip_files import write_clip
from comfyui.conftest import write_example, write_images, write_layers
from comfyui.schema_check import faults
from comfyui.server import PACK, ROOT
from fixtures.combinations import some
from fixtures.stand_ins import write_large_stand_ins, write_stand_ins
from PIL import Image
from safetensors.torch import load_file

from trainer_core.families.run_files import template_config

pytestmark = [pytest.mark.comfy, pytest.mark.slow]

DRAWN, QUEUED = ROOT / "workflows", ROOT / "tests" / "workflows"
NAMES = sorted(path.stem for path in DRAWN.glob("*.json"))
GENERATE, EDIT, FOLDERS, CONVERT = (
    "51_advanced_first_adapter",
    "52_advanced_first_edit",
    "53_advanced_several_folders",
    "41_convert_and_compare",
)
SDXL, ANY_MODEL = "21_quick_sdxl", "22_quick_any_model"
QUICK = ("01_first_adapter", CONVERT)
# They run as they are but for size and length.
WHOLE = ["01_first_adapter", GENERATE, EDIT, FOLDERS, CONVERT]
# ComfyUI's loaders build their text encoders in full size only.
# The tiny MODEL that stands for each; its node's outputs are those of Load Checkpoint.
OF_TINY_MODELS = {
    SDXL: "sdxl",
    ANY_MODEL: "anima",
    "23_quick_wan22_t2v": "wan21",
    "24_quick_wan22_5b": "wan21",
    "25_quick_hunyuan_video_15": "hunyuan_video",
    "26_quick_ltx_video": "ltxv",
    "27_quick_wan22_i2v": "wan22_i2v",
    "28_quick_ltx23": "ltxav_23",
}
WITHOUT_THEIR_TEXT_ENCODER = [name for name in NAMES if name not in {*WHOLE, *OF_TINY_MODELS}]
LOADERS = {
    "UNETLoader": 0,
    "CLIPLoader": 1,
    "DualCLIPLoader": 1,
    "VAELoader": 2,
    "LTXAVTextEncoderLoader": 1,
    "LTXVAudioVAELoader": 4,
}
SIZE, FRAMES = 64, 9
CLIP = {"width": SIZE, "height": SIZE, "length": FRAMES}
# Every change to a workflow that runs here, by the node's class: another class, inputs, and
# inputs that are taken away.
SMALL = {
    "CLIPLoader": ("StandInCLIPLoader", {}, ()),
    "DualCLIPLoader": ("StandInDualCLIPLoader", {}, ()),
    "AdapterTrainerDatasetFolder": ("", {"resolution": SIZE}, ()),
    "AdapterTrainerPreviewPrompts": ("", {"width": SIZE, "height": SIZE, "steps": 1}, ()),
    "AdapterTrainerSettings": (
        "",
        # The images before the first step are drawn, and no others.
        {"batch_size": 1, "preview_every": 100, "checkpoint_every": 0, "warmup_steps": 0},
        (),
    ),
    "AdapterTrainerTrain": ("", {"steps": 2, "learning_rate": 0.01}, ()),
    "AdapterTrainerQuick": ("", {"steps": 2, "quality": "fast", "prompts": "a red diamond"}, ()),
    "KSampler": ("", {"steps": 1, "cfg": 1.0}, ()),
    "EmptyLatentImage": ("", {"width": SIZE, "height": SIZE}, ()),
    "EmptySD3LatentImage": ("", {"width": SIZE, "height": SIZE}, ()),
    "KSamplerAdvanced": ("", {"cfg": 1.0}, ()),
    "EmptyHunyuanLatentVideo": ("", CLIP, ()),
    "WanImageToVideo": ("", CLIP, ()),
    "EmptyLTXVLatentVideo": ("", CLIP, ()),
    "LTXVEmptyLatentAudio": ("", {"frames_number": FRAMES}, ()),
    # Their channels are those of the large models.
    "Wan22ImageToVideoLatent": ("EmptyHunyuanLatentVideo", CLIP, ("vae",)),
    "EmptyHunyuanVideo15Latent": ("EmptyHunyuanLatentVideo", CLIP, ()),
    "EmptyQwenImageLayeredLatentImage": ("", {"width": SIZE, "height": SIZE, "layers": 2}, ()),
    "ImageScale": ("", {"width": SIZE, "height": SIZE}, ()),
    "EmptyFlux2LatentImage": ("", {"width": SIZE, "height": SIZE}, ()),
    "ImageScaleToTotalPixels": ("", {"megapixels": 0.01}, ()),
    # Both make a megapixel of any image, for which a CPU takes minutes.
    "FluxKontextImageScale": (
        "ImageScale",
        {"upscale_method": "area", "width": SIZE, "height": SIZE, "crop": "disabled"},
        (),
    ),
    "TextEncodeQwenImageEditPlus": ("", {}, ("vae",)),
}
INPUTS = -10  # the end of a subgraph that hands its inputs in
TRAINING = {"AdapterTrainerTrain", "AdapterTrainerQuick"}
COMPLAINTS = ("lora key not loaded", "ERROR lora", "not in model state_dict")


def api(name):
    return json.loads((QUEUED / f"{name}.json").read_text(encoding="utf-8"))


def ui(name):
    return json.loads((DRAWN / f"{name}.json").read_text(encoding="utf-8"))


def small(name, server):
    """The workflow at a size that a CPU trains in seconds."""
    nodes = copy.deepcopy(api(name))
    if name in WITHOUT_THEIR_TEXT_ENCODER:
        open_as_full_graph(nodes, server)
    if name in OF_TINY_MODELS:
        with_tiny_model(nodes, OF_TINY_MODELS[name])
    for node in nodes.values():
        kind, changes, gone = SMALL.get(node["class_type"], ("", {}, ()))
        node["class_type"] = kind or node["class_type"]
        node["inputs"] |= changes
        for input_name in gone:
            del node["inputs"][input_name]
    return nodes


def open_as_full_graph(nodes, server):
    """Put the nodes of *Open as full graph* in the quick one's place: they have sizes to set."""
    quick = only(nodes, "AdapterTrainerQuick")
    given = nodes.pop(quick)["inputs"]
    links = {name: value for name, value in given.items() if isinstance(value, list)}
    answers = {name: value for name, value in given.items() if name not in links}
    loader = nodes[links["model"][0]]
    file = next(v for k, v in loader["inputs"].items() if k in {"unet_name", "ckpt_name"})
    answers["loader"] = f"{loader['class_type']}/{file}"
    status, opened = server.post("/adapter_trainer/full_graph", answers)
    assert status == 200, opened
    for node, content in opened["nodes"].items():
        for name, value in content["inputs"].items():
            if isinstance(value, list):
                content["inputs"][name] = [f"{quick}:{value[0]}", value[1]]
        nodes[f"{quick}:{node}"] = content
    for name, targets in opened["inputs"].items():
        for node, target in targets if name in links else ():
            nodes[f"{quick}:{node}"]["inputs"][target] = links[name]
    for content in nodes.values():
        for name, value in content["inputs"].items():
            if isinstance(value, list) and value[0] == quick:
                content["inputs"][name] = [f"{quick}:{opened['train']}", value[1]]


def with_tiny_model(nodes, model):
    """Put a node in the place of each loader of a model, in the graph itself."""
    kinds = {node: content["class_type"] for node, content in nodes.items()}
    tiny = [
        node for node, kind in kinds.items() if kind in {"UNETLoader", "CheckpointLoaderSimple"}
    ]
    for seed, node in enumerate(tiny):
        given = {"model": model, "seed": seed, "precision": "fp32"}
        nodes[node] = {"class_type": "TinyModelForTests", "inputs": given}
    others = {node: LOADERS[kind] for node, kind in kinds.items() if kind in LOADERS}
    for node in others.keys() - set(tiny):
        del nodes[node]
    for content in nodes.values():
        for name, value in content["inputs"].items():
            if isinstance(value, list) and value[0] in others.keys() - set(tiny):
                content["inputs"][name] = [tiny[0], others[value[0]]]


@pytest.fixture(scope="module")
def server(shared_server):
    """The shared server with what the workflows name; the files of models have no content yet."""
    data = shared_server.data
    write_example(data)
    write_images(data / "datasets" / "my_images")
    pairs = data / "datasets" / "my_pairs"
    write_images(pairs / "training_images", captions=("make it red",) * 2)
    write_images(pairs / "control_images", captions=(None,) * 2, first=50)
    write_layers(data / "datasets" / "my_layers")
    write_clip(data / "datasets" / "my_clips", SIZE, FRAMES + 1, 16, tone=440)
    named = {
        data / "models" / file["directory"] / file["name"]
        for name in NAMES
        for each in ui(name)["nodes"]
        for file in each["properties"].get("models", ())
    }
    for path in named:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    yield shared_server
    for folder in {path.parent for path in named}:
        shutil.rmtree(folder)  # they are large


class Ran:
    """Each workflow's run, made when it is asked for first."""

    def __init__(self, server):
        self.server = server
        self._outputs = {}
        self._has_small = self._has_large = False

    def images(self, name):
        """The images that each node showed, by the node's id."""
        if name == CONVERT:
            self.images("01_first_adapter")  # which saves the file that it converts
        models = self.server.data / "models"
        if name in WITHOUT_THEIR_TEXT_ENCODER and not self._has_small:
            write_stand_ins(models)
            self._has_small = True
        if name in WITHOUT_THEIR_TEXT_ENCODER and "qwen_image" in name and not self._has_large:
            write_large_stand_ins(models)
            self._has_large = True
        if name not in self._outputs:
            begin = len(self.server.log.read_bytes())
            result = self.server.run(small(name, self.server))
            said = self.server.log.read_bytes()[begin:].decode(errors="replace")
            assert not [text for text in COMPLAINTS if text in said], said[-3000:]
            self._outputs[name] = result["outputs"]
        return {
            node: [self._open(image) for image in output["images"]]
            for node, output in self._outputs[name].items()
            if "images" in output
        }

    def _open(self, image):
        query = "&".join(f"{key}={image[key]}" for key in ("filename", "subfolder", "type"))
        content = self.server.fetch(f"/view?{query}")
        if image["filename"].endswith(".mp4"):
            with av.open(io.BytesIO(content)) as container:
                frame = next(container.decode(video=0))
            return frame.to_ndarray(format="rgb24").astype(numpy.int16)
        return numpy.asarray(Image.open(io.BytesIO(content)).convert("RGB"), dtype=numpy.int16)


@pytest.fixture(scope="module")
def ran(server):
    return Ran(server)


def only(nodes, kind):
    """The only node of a class."""
    (found,) = (node for node, content in nodes.items() if content["class_type"] == kind)
    return found


def titled(name, title):
    """The preview of a title in the drawing; the queued format has no titles."""
    (found,) = (
        str(node["id"])
        for node in ui(name)["nodes"]
        if (node["type"], node.get("title")) == ("PreviewImage", title)
    )
    return found


def test_every_node_and_input_is_known_to_the_server(server, ran):
    ran.images("01_first_adapter")  # the file that CONVERT names
    known = server.get("/object_info")
    assert {name: found for name in NAMES if (found := faults(api(name), known))} == {}


@pytest.mark.parametrize("name", NAMES)
def test_the_drawing_and_the_queued_graph_are_the_same(name):
    assert from_drawing(ui(name)) == api(name)


def from_drawing(workflow):
    """What ComfyUI's page queues for a drawing of these nodes."""
    parts = {part["id"]: part for part in workflow.get("definitions", {}).get("subgraphs", ())}
    links = {
        link[0]: dict(zip(("origin_id", "origin_slot"), link[1:3], strict=True))
        for link in workflow["links"]
    }
    return dict(queued_nodes(workflow["nodes"], links, parts, "", []))


def queued_nodes(nodes, links, parts, path, given):
    """The nodes of a graph, and those of the subgraphs in it, which have its node before theirs."""
    kinds = {node["id"]: node["type"] for node in nodes}
    for node in nodes:
        if node["type"] == "MarkdownNote":
            continue
        part = parts.get(node["type"])
        inputs, values = {}, iter(node["widgets_values"])
        for entry in node["inputs"]:
            if "widget" in entry:
                inputs[entry["name"]] = next(values)
                # A seed is followed by its rule, an image by its upload button.
                if entry["name"] in {"seed", "noise_seed", "image"} and part is None:
                    assert next(values) in {"fixed", "image"}
            if entry["link"] is not None:
                link = links[entry["link"]]
                inputs[entry["name"]] = queued_source(link, kinds, parts, path, given)
        assert list(values) == []
        if part is None:
            yield f"{path}{node['id']}", {"class_type": node["type"], "inputs": inputs}
            continue
        inner = {link["id"]: link for link in part["links"]}
        handed = [inputs[each["name"]] for each in part["inputs"]]
        yield from queued_nodes(part["nodes"], inner, parts, f"{path}{node['id']}:", handed)


def queued_source(link, kinds, parts, path, given):
    """What a link brings: from a node, from one inside a subgraph, or from outside this one."""
    at, slot = link["origin_id"], link["origin_slot"]
    if at == INPUTS:
        return given[slot]
    part = parts.get(kinds[at])
    if part is None:
        return [f"{path}{at}", slot]
    (end,) = (each for each in part["links"] if each["id"] in part["outputs"][slot]["linkIds"])
    return [f"{path}{at}:{end['origin_id']}", end["origin_slot"]]


@pytest.mark.parametrize(("name", "purpose"), [(GENERATE, "tiny"), (EDIT, "tiny_edit")])
def test_the_embedded_workflows_train_as_the_demonstration_does(name, purpose):
    nodes = {node["class_type"]: node["inputs"] for node in api(name).values()}
    train, settings = nodes["AdapterTrainerTrain"], nodes["AdapterTrainerSettings"]
    adapter, preset = nodes["AdapterTrainerAdapter"], template_config("qwen_image", purpose)
    training = preset.training
    assert (train["steps"] or None, settings["batch_size"]) == (training.steps, training.batch_size)
    data = nodes["AdapterTrainerDatasetFolder"]
    assert data["preservation"] == preset.dataset.preservation.share
    assert train["learning_rate"] == training.optimizer.learning_rate
    assert (settings["schedule"], settings["warmup_steps"]) == (
        training.schedule.name,
        training.schedule.warmup_steps,
    )
    assert settings["sigma_density"] == training.sigma.density
    assert settings["sigma_shift"] == (training.sigma.shift or 0)
    assert (adapter["kind"], adapter["rank"]) == (preset.adapter.kind, preset.adapter.rank)
    assert adapter["kind.factor"] == preset.adapter.factor
    assert adapter["targets"] == preset.adapter.targets


@pytest.mark.parametrize("name", some(NAMES, *QUICK))
def test_it_runs_to_its_end_and_the_adapter_lies_in_the_loras_folder(name, server, ran):
    images, nodes = ran.images(name), small(name, server)
    showing = {"PreviewImage", "SaveImage", "SaveVideo", "LossGraphNode"}
    assert images.keys() == {node for node in nodes if nodes[node]["class_type"] in showing}
    for drawn in images.values():
        for image in drawn:
            assert image.shape[:2] >= (SIZE, SIZE)
            assert image.std() > 0
    for run in (node["inputs"] for node in nodes.values() if node["class_type"] in TRAINING):
        tensors = load_file(server.data / "models" / "loras" / f"{run['name']}.safetensors")
        assert tensors
        assert all(bool(tensor.isfinite().all() and tensor.any()) for tensor in tensors.values())


def test_the_first_template_shows_both_images_side_by_side(ran):
    (both,) = ran.images("01_first_adapter")[
        titled("01_first_adapter", "Without and with the adapter")
    ]
    # Six times as large as it was generated, with a line of four pixels between the two.
    side = 6 * SIZE
    assert both.shape[:2] == (side, 2 * side + 24)
    assert (both[:, :side] != both[:, -side:]).any()


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", [GENERATE, EDIT])
def test_the_adapter_changes_the_images(name, ran):
    images = ran.images(name)
    after, before = (images[titled(name, f"{word} the adapter")] for word in ("With", "Without"))
    assert len(after) == len(before) == 2
    assert any((a != b).any() for a, b in zip(after, before, strict=True))


def test_both_layouts_draw_the_same_and_the_base_alone_draws_otherwise(ran):
    name = CONVERT
    images = ran.images(name)
    titles = ("Layout comfyui", "Layout diffusers", "Base alone")
    native, other, base = (images[titled(name, title)] for title in titles)
    assert all((a == b).all() for a, b in zip(native, other, strict=True))
    assert any((a != b).any() for a, b in zip(native, base, strict=True))


def test_the_page_offers_them_with_thumbnails(server):
    assert sorted(server.get("/workflow_templates")[PACK]) == NAMES
    for name in NAMES:
        address = f"/api/workflow_templates/{PACK}/{name}"
        assert server.get(f"{address}.json") == ui(name)
        thumbnail = server.fetch(f"{address}.jpg")
        assert len(thumbnail) <= 60_000
        assert Image.open(io.BytesIO(thumbnail)).format == "JPEG"
