"""Combine Datasets and Concept Slider: several folders as one run, and a run without images."""

import pytest
import yaml
from comfyui.conftest import write_images
from comfyui.graphs import CACHE, DATASET, cached_nodes, graph, record, run_folder
from comfyui.test_graph_errors import assert_alive, refused, refused_at_once

pytestmark = pytest.mark.comfy

JOIN, MORE, HELD = "20", "21", "22"


@pytest.fixture(scope="module", autouse=True)
def folders(shared_server):
    data = shared_server.data / "datasets"
    write_images(data / "more", captions=["more"] * 2, first=500)
    write_images(data / "held", captions=["held"] * 2, first=510)


def combined(name, more=None, held=None, **changes):
    """The small graph with three folders joined in front."""
    nodes = graph(name, **changes)
    own = nodes[DATASET]["inputs"]
    for node, folder, others in ((MORE, "more", more), (HELD, "held", held)):
        inputs = {**own, "folder": f"datasets/{folder}", **(others or {})}
        nodes[node] = {"class_type": "AdapterTrainerDatasetFolder", "inputs": inputs}
    links = {f"datasets.dataset{i}": [node, 0] for i, node in enumerate((DATASET, MORE, HELD))}
    nodes[JOIN] = {"class_type": "AdapterTrainerDatasetCombine", "inputs": links}
    nodes[CACHE]["inputs"]["dataset"] = [JOIN, 0]
    return nodes


@pytest.mark.exhaustive
def test_folders_with_roles_are_trained_as_one_run(server):
    more = {"role": "regularization", "weight": 0.5, "trigger_word": ""}
    nodes = combined("joined", more, {"role": "validation"}, train={"steps": 2})
    server.run(nodes)
    folder = run_folder(server, "joined")
    assert record(folder)["status"] == "done"
    dataset = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))["dataset"]
    assert dataset["path"].endswith("datasets/four")
    told = [(each["path"].rpartition("/")[2], each["role"]) for each in dataset["folders"]]
    assert told == [("more", "regularization"), ("held", "validation")]
    assert dataset["folders"][0]["weight"] == 0.5
    # A changed caption of any of the folders is encoded again, and only that dataset is read again.
    (server.data / "datasets" / "more" / "0.txt").write_text("changed", encoding="utf-8")
    again = cached_nodes(server.run(nodes))
    assert {DATASET, HELD} <= again
    assert not {MORE, JOIN, CACHE} & again


def test_what_differs_and_cannot_be_kept_is_told_on_the_node_that_joins(server):
    message = refused(server, combined("differing", {"crop": "top"}), JOIN)
    assert "crop of Dataset From Folder is center for four and top for more" in message
    nodes = combined("text")
    nodes[JOIN]["inputs"]["datasets.dataset1"] = "datasets/more"
    message = refused(server, nodes, JOIN)
    assert "Combine Datasets" in message
    assert "the output ADAPTER_TRAINER_DATASET" in message
    assert_alive(server)


def slider(name, negative="a blue circle"):
    """The small graph with a slider in the place of the folder."""
    nodes = graph(name, train={"steps": 2})
    given = {"positive": "a red circle", "negative": negative, "neutral": "a purple circle"}
    given |= {"resolution": 64, "slider_strength": 1.0, "slider_images": 2, "slider_steps": 2}
    nodes[DATASET] = {"class_type": "AdapterTrainerConceptSlider", "inputs": given}
    return nodes


@pytest.mark.exhaustive
def test_a_slider_is_trained_alone_and_with_two_prompts(server):
    server.run(slider("dial"))
    folder = run_folder(server, "dial")
    assert record(folder)["status"] == "done"
    assert list(folder.glob("*.safetensors"))
    dataset = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))["dataset"]
    assert (dataset["path"], dataset["slider"]["neutral"]) == ("", ["a purple circle"])
    same = slider("same", negative="a red circle")
    assert "two different prompts" in refused_at_once(server, same, DATASET)
    nodes = slider("joined")
    links = {f"datasets.dataset{place}": [DATASET, 0] for place in range(2)}
    nodes[JOIN] = {"class_type": "AdapterTrainerDatasetCombine", "inputs": links}
    nodes[CACHE]["inputs"]["dataset"] = [JOIN, 0]
    assert "trained alone" in refused(server, nodes, JOIN)
