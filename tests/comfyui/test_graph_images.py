"""Dataset From Images: images and captions of other nodes, with and without control images."""

import numpy
import pytest
from comfyui.conftest import CAPTIONS, write_images
from comfyui.graphs import CACHE, DATASET, TRAIN, cached_nodes, graph, record, run_folder
from comfyui.test_graph_errors import assert_alive, refused
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


def test_a_list_of_images_and_texts_is_trained(server):
    nodes = from_images("listed", [LOADER, 0], [LOADER, 1])
    nodes[LOADER] = load("listed")
    server.run(nodes)
    assert record(run_folder(server, "listed"))["status"] == "done"
    folder = kept(server)[-1]
    # Every image with its own text, to the last pixel; the order is the loader's.
    texts = {path.with_suffix(".txt").read_text(): pixels(path) for path in folder.glob("*.png")}
    source = server.data / "input" / "listed"
    for number, caption in enumerate(CAPTIONS):
        assert (texts[caption] == pixels(source / f"{number}.png")).all()
    again = server.run(nodes)
    assert {DATASET, CACHE, TRAIN} <= cached_nodes(again)


def test_control_images_are_trained_with_their_images(server):
    nodes = from_images("edited", [LOADER, 0], [LOADER, 1], [CONTROLS, 0])
    nodes[LOADER] = load("listed")
    nodes[CONTROLS] = load("listed-controls", texts=False)
    server.run(nodes)
    folder = kept(server)[-1]
    assert sorted(path.name for path in folder.iterdir()) == ["control_images", "training_images"]
    trained, shown = (
        sorted((folder / name).glob("*.png")) for name in ("training_images", "control_images")
    )
    assert [path.name for path in trained] == [path.name for path in shown]
    assert not (pixels(trained[0]) == pixels(shown[0])).all()


def test_a_batch_and_one_text_for_all(server):
    nodes = from_images("batched", [LOADER, 0], [EXTRA, 0], train={"steps": 2})
    nodes[LOADER] = batch(64, count=3)
    nodes[EXTRA] = {"class_type": "PrimitiveString", "inputs": {"value": "red"}}
    server.run(nodes)
    folder = kept(server)[-1]
    assert [path.read_text() for path in sorted(folder.glob("*.txt"))] == ["red"] * 3
    assert (pixels(folder / "00000.png") == (255, 0, 0)).all()


def test_transparent_parts_are_laid_on_white_as_those_of_files_are(server):
    nodes = from_images("transparent", [MASK, 0], [EXTRA, 0], train={"steps": 2})
    nodes[EXTRA] = {"class_type": "PrimitiveString", "inputs": {"value": "pale"}}
    nodes[LOADER] = batch(64, color=0xFF0000)
    shown = {"value": 0.2, "width": 64, "height": 64}
    nodes[CONTROLS] = {"class_type": "SolidMask", "inputs": shown}
    given = {"image": [LOADER, 0], "alpha": [CONTROLS, 0]}
    nodes[MASK] = {"class_type": "JoinImageWithAlpha", "inputs": given}
    server.run(nodes)
    (color,) = {tuple(each) for each in pixels(kept(server)[-1] / "00000.png").reshape(-1, 3)}
    # The node takes a mask for what is hidden: a fifth is white.
    assert color == (255, 51, 51)


def test_an_empty_text_is_trained_as_it_is(server):
    nodes = from_images("wordless", [LOADER, 0], [EXTRA, 0], train={"steps": 2})
    nodes[LOADER] = batch(64, color=0xFF)
    nodes[EXTRA] = {"class_type": "PrimitiveString", "inputs": {"value": ""}}
    server.run(nodes)


def test_other_numbers_of_texts_or_controls_are_refused(server):
    nodes = from_images("numbers", [LOADER, 0], [EXTRA, 1])
    nodes[LOADER], nodes[EXTRA] = load("three", texts=False), load("listed")
    assert "3 images and 4 texts" in refused(server, nodes, DATASET)
    nodes = from_images("numbers", [EXTRA, 0], [EXTRA, 1], [CONTROLS, 0])
    nodes[EXTRA], nodes[CONTROLS] = load("listed"), load("three", texts=False)
    assert "4 images and 3 controls" in refused(server, nodes, DATASET)
    assert_alive(server)


def masked(name, size=(64, 64), **settings):
    """Three red images and one mask for all."""
    extra = {"masks": [MASK, 0], **settings}
    nodes = from_images(name, [LOADER, 0], [EXTRA, 0], extra=extra, train={"steps": 2})
    nodes[LOADER] = batch(64, count=3)
    nodes[EXTRA] = {"class_type": "PrimitiveString", "inputs": {"value": "red"}}
    width, height = size
    given = {"value": 1.0, "width": width, "height": height}
    nodes[MASK] = {"class_type": "SolidMask", "inputs": given}
    return nodes


def test_masks_are_kept_beside_their_images_and_another_one_is_another_dataset(server):
    nodes = masked("masked")
    server.run(nodes)
    folder = kept(server)[-1]
    files = sorted(path.relative_to(folder).as_posix() for path in (folder / "masks").iterdir())
    assert files == [f"masks/0000{number}.png" for number in range(3)]
    with Image.open(folder / files[0]) as mask:
        assert (numpy.asarray(mask) == 255).all()
    assert record(run_folder(server, "masked"))["status"] == "done"
    nodes[MASK]["inputs"]["value"] = 0.5
    result = server.run(nodes)
    assert DATASET not in cached_nodes(result)
    assert kept(server)[-1] != folder


def test_masks_that_cannot_be_theirs_are_refused(server):
    message = refused(server, masked("other", size=(64, 32)), DATASET)
    assert "mask 0 has 64 x 32 pixels, and its image 64 x 64" in message
    message = refused(server, masked("unread", mask_source="none"), DATASET)
    # In the words of the graph.
    assert "masks are connected, and mask_source is none" in message
    assert_alive(server)


def test_an_input_that_is_not_there_is_refused_and_not_left_out_silently(server):
    nodes = from_images("masked", [LOADER, 0], [LOADER, 1], extra={"mask": [MASK, 0]})
    nodes[LOADER] = load("listed")
    nodes[MASK] = {"class_type": "SolidMask", "inputs": {"value": 1, "width": 64, "height": 64}}
    assert "mask connected to Dataset From Images" in refused(server, nodes, DATASET)


def test_a_changed_pixel_is_another_dataset(server):
    nodes = from_images("pixel", [LOADER, 0], [EXTRA, 0], train={"steps": 2})
    nodes[LOADER] = batch(64, color=0x00FF00)
    nodes[EXTRA] = {"class_type": "PrimitiveString", "inputs": {"value": "green"}}
    server.run(nodes)
    before = kept(server)
    nodes[LOADER] = batch(64, color=0x00FE00)
    result = server.run(nodes)
    assert not {DATASET, CACHE, TRAIN} & cached_nodes(result)
    assert len(kept(server)) == len(before) + 1
