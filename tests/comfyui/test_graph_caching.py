"""What ComfyUI remembers and what the disk remembers: nothing is done twice, and nothing missed."""

import pytest
from comfyui.conftest import CAPTIONS, comfy_programs, make_data, write_images
from comfyui.graphs import (
    ADAPTER,
    BASE,
    CACHE,
    DATASET,
    DENOISER,
    ENCODER,
    PROMPTS,
    SETTINGS,
    STEPS,
    TRAIN,
    adapter_kind,
    cache_files,
    cached_nodes,
    changed,
    disturb,
    forget,
    graph,
    record,
    run_folder,
    runs,
    weights,
)
from comfyui.server import comfy_server
from fixtures.combinations import some

pytestmark = pytest.mark.comfy

IMAGES = len(CAPTIONS)
READER = "Qwen2_5_VLTextModel"


def counted(server, nodes):
    """Run a graph; gives ComfyUI's result and how often each class of module was called."""
    disturb(server, "count", 0)
    result = server.run(nodes)
    counts = server.get("/instruments/disturbance")["counts"]
    disturb(server, "nothing", 0)
    return result, counts


def own_images(server, name, first):
    """A dataset that no other test has in the cache."""
    folder = write_images(
        server.data / "datasets" / name,
        captions=[f"{caption}, {name}" for caption in CAPTIONS],
        first=first,
    )
    return folder, f"datasets/{name}"


def test_an_unchanged_graph_does_nothing_at_all(server):
    _, name = own_images(server, "unchanged", 100)
    # Without preservation, for which the base is sampled before the first step.
    nodes = graph("unchanged", dataset={"folder": name, "preservation": 0.0})
    first, counts = counted(server, nodes)
    assert counts[ENCODER] == IMAGES
    assert counts[READER] >= IMAGES
    assert counts[DENOISER] == STEPS
    assert TRAIN not in cached_nodes(first)
    again, counts = counted(server, nodes)
    assert cached_nodes(again) == set(nodes)
    assert counts == {}
    assert len(runs(server, "unchanged")) == 1


CHANGES = {
    "seed": {TRAIN: {"seed": 5}},
    "steps": {TRAIN: {"steps": 7}},
    "learning rate": {TRAIN: {"learning_rate": 2e-3}},
    "rank": {ADAPTER: {"rank": 5}},
    "kind": {ADAPTER: adapter_kind("lora")},
    "batch size": {SETTINGS: {"batch_size": 1}},
    "noise levels": {SETTINGS: {"sigma_density": "uniform", "sigma_shift": 0}},
    "caption dropout": {DATASET: {"caption_dropout": 0.5}},
    "repeats": {DATASET: {"num_repeats": 2}},
}


@pytest.fixture(scope="module")
def trained(shared_server):
    nodes = graph("changing", train={"resume": False})
    shared_server.run(nodes)
    return nodes


@pytest.mark.parametrize("case", some(CHANGES, "seed", "kind", "caption dropout"))
def test_a_change_of_a_setting_trains_again_and_encodes_nothing_again(server, trained, case):
    nodes = trained
    for node, inputs in CHANGES[case].items():
        nodes = changed(nodes, node, **inputs)
    before = len(runs(server, "changing"))
    result, counts = counted(server, nodes)
    assert TRAIN not in cached_nodes(result)
    assert len(runs(server, "changing")) == before + 1
    assert counts[DENOISER] >= nodes[TRAIN]["inputs"]["steps"]
    # An empty caption is encoded as well where captions are dropped, once.
    assert (ENCODER in counts, counts.get(READER, 0) <= 1) == (False, True)
    ours, theirs = (
        weights(folder / "changing.safetensors") for folder in runs(server, "changing")[::before]
    )
    assert ours != theirs


def test_only_the_changed_image_is_encoded_again(server):
    folder, name = own_images(server, "picture", 120)
    nodes = graph("picture", dataset={"folder": name}, train={"resume": False})
    server.run(nodes)
    before = cache_files(server, "latents")
    other = write_images(folder.parent / "image-new", first=140)
    (other / "0.png").replace(folder / "2.png")
    result, counts = counted(server, nodes)
    assert not {DATASET, CACHE, TRAIN} & cached_nodes(result)
    assert counts[ENCODER] == 1
    assert READER not in counts
    assert len(cache_files(server, "latents") - before) == 1
    assert len(runs(server, "picture")) == 2


def test_only_the_changed_caption_is_encoded_again(server):
    folder, name = own_images(server, "caption", 160)
    nodes = graph("caption", dataset={"folder": name}, train={"resume": False})
    _, all_of_them = counted(server, nodes)
    before = cache_files(server, "text")
    (folder / "1.txt").write_text("something else altogether", encoding="utf-8")
    result, counts = counted(server, nodes)
    assert not {DATASET, CACHE, TRAIN} & cached_nodes(result)
    assert counts[READER] * IMAGES <= all_of_them[READER]
    assert ENCODER not in counts
    assert len(cache_files(server, "text") - before) == 1
    assert len(runs(server, "caption")) == 2


def test_an_added_and_a_removed_image_are_noticed(server):
    folder, name = own_images(server, "adding", 180)
    nodes = graph("adding", dataset={"folder": name}, train={"resume": False})
    server.run(nodes)
    extra = write_images(folder.parent / "adding-new", captions=["a fifth"], first=190)
    for suffix in ("png", "txt"):
        (extra / f"0.{suffix}").replace(folder / f"9.{suffix}")
    _, counts = counted(server, nodes)
    assert counts[ENCODER] == 1
    for suffix in ("png", "txt"):
        (folder / f"9.{suffix}").unlink()
    result, counts = counted(server, nodes)
    assert TRAIN not in cached_nodes(result)
    assert ENCODER not in counts
    assert len(runs(server, "adding")) == 3


def test_a_changed_prompt_is_encoded_alone(server):
    nodes = graph("prompts", previews=True, settings={"preview_every": 4})
    server.run(nodes)
    before = cache_files(server, "prompts")
    text = "a red diamond\na image that nobody has asked for"
    result, counts = counted(server, changed(nodes, PROMPTS, prompts=text))
    assert {DATASET, BASE} <= cached_nodes(result)
    assert not {PROMPTS, CACHE, TRAIN} & cached_nodes(result)
    assert len(cache_files(server, "prompts") - before) == 1
    assert ENCODER not in counts


def assert_the_disk_remembers(server):
    _, name = own_images(server, "kept", 200)
    nodes = graph("kept", previews=True, settings={"preview_every": 4}, dataset={"folder": name})
    others = cache_files(server, "latents")
    _, counts = counted(server, nodes)
    assert counts[ENCODER] == IMAGES
    place = run_folder(server, "kept")
    before = (place / "metrics.jsonl").read_bytes(), weights(place / "kept.safetensors")
    forget(server)
    again, counts = counted(server, nodes)
    # Every node ran again, and none of them had anything to do.
    assert cached_nodes(again) == set()
    assert not {ENCODER, READER, DENOISER} & counts.keys()
    assert record(run_folder(server, "kept"))["status"] == "done"
    after = (place / "metrics.jsonl").read_bytes(), weights(place / "kept.safetensors")
    assert after == before
    # What is gone is made again; the negative control of the above.
    for entry in cache_files(server, "latents") - others:
        (server.data / "output" / "adapter_trainer" / "cache" / "latents" / entry).unlink()
    forget(server)
    _, counts = counted(server, nodes)
    assert counts[ENCODER] == IMAGES


def test_without_comfyuis_memory_the_disk_remembers(server):
    assert_the_disk_remembers(server)


@pytest.mark.exhaustive
def test_where_comfyui_remembers_nothing_the_disk_does(tmp_path):
    folder, python = comfy_programs()
    with comfy_server(folder, python, make_data(tmp_path / "data"), "--cache-none") as server:
        assert_the_disk_remembers(server)
