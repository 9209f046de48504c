"""What ComfyUI remembers and what the disk remembers: nothing is done twice, and nothing missed."""

import pytest
from comfyui.conftest import CAPTIONS, write_images
from comfyui.graphs import (
    ADAPTER,
    CACHE,
    DATASET,
    DENOISER,
    ENCODER,
    SAVE,
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
    captions = [f"{caption}, {name}" for caption in CAPTIONS]
    folder = write_images(server.data / "datasets" / name, captions=captions, first=first)
    return folder, f"datasets/{name}"


def test_an_unchanged_graph_does_nothing_at_all(server):
    _, name = own_images(server, "unchanged", 100)
    nodes = graph("unchanged", dataset={"folder": name})
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
    "kind": {ADAPTER: adapter_kind("lora")},
    "noise levels": {SETTINGS: {"sigma_density": "uniform", "sigma_shift": 0}},
    "caption dropout": {DATASET: {"caption_dropout": 0.5}},
}


@pytest.fixture(scope="module")
def trained(shared_server):
    nodes = graph("changing", train={"resume": False, "steps": 2})
    shared_server.run(nodes)
    return nodes


@pytest.mark.parametrize("case", CHANGES)
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


@pytest.mark.exhaustive
def test_only_what_has_changed_in_a_folder_is_encoded_again(server):
    folder, name = own_images(server, "edited", 120)
    nodes = graph("edited", dataset={"folder": name}, train={"resume": False, "steps": 1})
    _, all_of_them = counted(server, nodes)

    def again():
        """What is encoded by another run, which there has to be; and the new files of the cache."""
        kinds = ("latents", "text")
        before, kept = len(runs(server, "edited")), [cache_files(server, kind) for kind in kinds]
        result, counts = counted(server, nodes)
        assert not {DATASET, CACHE, TRAIN} & cached_nodes(result)
        assert len(runs(server, "edited")) == before + 1
        new = [len(cache_files(server, kind) - old) for kind, old in zip(kinds, kept, strict=True)]
        return counts, new

    other = write_images(folder.parent / "image-new", captions=["another", "a fifth"], first=140)
    (other / "0.png").replace(folder / "2.png")
    counts, new = again()
    assert (counts[ENCODER], READER in counts, new) == (1, False, [1, 0]), "another image"
    (folder / "1.txt").write_text("something else altogether", encoding="utf-8")
    counts, new = again()
    assert (ENCODER in counts, new) == (False, [0, 1]), "another caption"
    assert counts[READER] * IMAGES <= all_of_them[READER]
    for suffix in ("png", "txt"):
        (other / f"1.{suffix}").replace(folder / f"9.{suffix}")
    counts, new = again()
    assert (counts[ENCODER], new) == (1, [1, 1]), "a fifth image"
    for suffix in ("png", "txt"):
        (folder / f"9.{suffix}").unlink()
    counts, new = again()
    assert (ENCODER in counts, new) == (False, [0, 0]), "the fifth is gone"


def loras(server):
    return {path.name for path in (server.data / "models" / "loras").rglob("kept*")}


def test_what_is_trained_again_alike_is_kept_once(server):
    nodes = graph("kept_twice", train={"keep_in_loras": 1, "steps": 1, "resume": False})
    for _ in range(2):
        server.run(nodes)
        forget(server)
    assert len(runs(server, "kept_twice")) == 2
    assert loras(server) & {"kept_twice_step_000001.safetensors"}
    assert "kept_twice_step_000001_2.safetensors" not in loras(server)


def assert_the_disk_remembers(server):
    _, name = own_images(server, "kept", 200)
    previews = {"preview_every": 4, "checkpoint_every": 4}
    given = {"settings": previews, "dataset": {"folder": name}, "train": {"keep_in_loras": 1}}
    nodes = graph("kept", previews=True, **given)
    nodes[SAVE] = graph("kept", behind=True)[SAVE]
    others = cache_files(server, "latents")
    _, counts = counted(server, nodes)
    assert counts[ENCODER] == IMAGES
    place = run_folder(server, "kept")
    before = (place / "metrics.jsonl").read_bytes(), weights(place / "kept.safetensors")
    saved = loras(server)
    forget(server)
    again, counts = counted(server, nodes)
    assert loras(server) == saved
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


@pytest.mark.exhaustive
def test_without_comfyuis_memory_the_disk_remembers(server):
    assert_the_disk_remembers(server)
