"""Dataset From Images: images and captions of other nodes, with and without control images."""

import numpy
import pytest
from comfyui.conftest import CAPTIONS, write_images
from comfyui.graphs import CACHE, DATASET, TRAIN, cached_nodes, graph, record, run_folder
from comfyui.test_graph_errors import refused
from PIL import Image

pytestmark = pytest.mark.comfy

LOADER, CONTROLS, EXTRA, MASK = "20", "21", "22", "23"
SETTINGS = ("resolution", "trigger_word", "caption_dropout", "num_repeats")
ADVANCED = ("max_aspect_ratio", "upscale", "control_area")


def load(folder, texts=True):
    kind = "LoadImageTextDataSetFromFolder" if texts else "LoadImageDataSetFromFolder"
    return {"class_type": kind, "inputs": {"folder": folder}}


def batch(size, color=0xFF0000, count=1):
    given = {"width": size, "height": size, "batch_size": count, "color": color}
    return {"class_type": "EmptyImage", "inputs": given}


def from_images(name, images, texts, controls=None, extra=None, **changes):
    """The small graph with Dataset From Images in front."""
    nodes = graph(name, **changes)
    given = {key: nodes[DATASET]["inputs"][key] for key in (*SETTINGS, *ADVANCED)}
    given |= {"images": images, "texts": texts, **(extra or {})}
    if controls is not None:
        given["controls"] = controls
    nodes[DATASET] = {"class_type": "AdapterTrainerDatasetImages", "inputs": given}
    return nodes


def kept(server):
    """The folders of images that the node has written, oldest first."""
    root = server.data / "output" / "adapter_trainer" / "pictures"
    folders = (path for path in root.iterdir() if path.name != "controls")
    return sorted(folders, key=lambda path: path.stat().st_mtime_ns)


def pixels(path):
    with Image.open(path) as image:
        return numpy.asarray(image.convert("RGB"))


@pytest.fixture(scope="module", autouse=True)
def folders(shared_server):
    data = shared_server.data / "input"
    write_images(data / "listed", first=300)
    write_images(data / "listed-controls", captions=[None] * 4, first=310)
    write_images(data / "three", captions=[None] * 3, first=320)


def test_a_list_of_images_with_texts_and_controls_is_trained(server):
    nodes = from_images("listed", [LOADER, 0], [LOADER, 1], [CONTROLS, 0], train={"steps": 1})
    nodes[LOADER] = load("listed")
    nodes[CONTROLS] = load("listed-controls", texts=False)
    server.run(nodes)
    assert record(run_folder(server, "listed"))["status"] == "done"
    folder = kept(server)[-1]
    trained, shown = folder / "training_images", folder / "control_images"
    assert sorted(folder.iterdir()) == [shown, trained]
    assert {path.name for path in trained.glob("*.png")} == {path.name for path in shown.iterdir()}
    # Every image with its own text and control image, to the last pixel.
    names = {path.read_text(): f"{path.stem}.png" for path in trained.glob("*.txt")}
    for number, caption in enumerate(CAPTIONS):
        for place, source in ((trained, "listed"), (shown, "listed-controls")):
            given = server.data / "input" / source / f"{number}.png"
            assert (pixels(place / names[caption]) == pixels(given)).all(), caption
    again = server.run(nodes)
    assert {DATASET, CACHE, TRAIN} <= cached_nodes(again)


def masked(name, **settings):
    """Three red images and one mask for all."""
    extra = {"masks": [MASK, 0], **settings}
    nodes = from_images(name, [LOADER, 0], [EXTRA, 0], extra=extra, train={"steps": 1})
    nodes[LOADER] = batch(64, count=3)
    nodes[EXTRA] = {"class_type": "PrimitiveString", "inputs": {"value": "red"}}
    given = {"value": 1.0, "width": 64, "height": 64}
    nodes[MASK] = {"class_type": "SolidMask", "inputs": given}
    return nodes


@pytest.mark.exhaustive
def test_masks_are_kept_beside_their_images(server):
    server.run(masked("masked"))
    folder = kept(server)[-1]
    files = sorted(path.relative_to(folder).as_posix() for path in (folder / "masks").iterdir())
    assert files == [f"masks/0000{number}.png" for number in range(3)]
    with Image.open(folder / files[0]) as mask:
        assert (numpy.asarray(mask) == 255).all()
    assert record(run_folder(server, "masked"))["status"] == "done"
    # In the words of the graph.
    message = refused(server, masked("unread", mask_source="none"), DATASET)
    assert "masks are connected, and mask_source is none" in message


def test_an_input_that_is_not_there_is_refused_and_not_left_out_silently(server):
    nodes = from_images("masked", [LOADER, 0], [LOADER, 1], extra={"mask": [MASK, 0]})
    nodes[LOADER] = load("listed")
    nodes[MASK] = {"class_type": "SolidMask", "inputs": {"value": 1, "width": 64, "height": 64}}
    assert "mask connected to Dataset From Images" in refused(server, nodes, DATASET)
