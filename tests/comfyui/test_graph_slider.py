"""Concept Slider: trained in the graph without an image, and refused where it does not belong."""

import pytest
import yaml
from comfyui.graphs import CACHE, DATASET, graph, record, run_folder
from comfyui.test_graph_errors import refused, refused_at_once

pytestmark = pytest.mark.comfy

JOIN = "20"
PROMPTS = {
    "positive": "a red circle on a white background",
    "negative": "a blue circle on a white background",
    "neutral": "a purple circle on a white background",
}


def slider(name, **inputs):
    """The small graph with a slider in the place of the folder."""
    nodes = graph(name, train={"steps": 2})
    given = {**PROMPTS, "resolution": 64, "slider_strength": 1.0}
    given |= {"slider_images": 2, "slider_steps": 2, **inputs}
    nodes[DATASET] = {"class_type": "AdapterTrainerConceptSlider", "inputs": given}
    return nodes


@pytest.mark.exhaustive
def test_a_slider_is_trained_in_the_graph(server):
    server.run(slider("dial"))
    folder = run_folder(server, "dial")
    assert record(folder)["status"] == "done"
    assert list(folder.glob("*.safetensors"))
    dataset = yaml.safe_load((folder / "run.yaml").read_text(encoding="utf-8"))["dataset"]
    assert dataset["slider"]["neutral"] == [PROMPTS["neutral"]]
    assert dataset["path"] == ""


@pytest.mark.exhaustive
def test_prompts_without_a_direction_are_refused_when_queued(server):
    same = slider("same", negative=PROMPTS["positive"])
    assert "two different prompts" in refused_at_once(server, same, DATASET)
    nodes = slider("joined")
    links = {f"datasets.dataset{place}": [DATASET, 0] for place in range(2)}
    nodes[JOIN] = {"class_type": "AdapterTrainerDatasetCombine", "inputs": links}
    nodes[CACHE]["inputs"]["dataset"] = [JOIN, 0]
    assert "trained alone" in refused(server, nodes, JOIN)
