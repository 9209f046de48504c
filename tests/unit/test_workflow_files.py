"""The shipped workflows as files: what a person sees before anything runs."""

import json
import re
from pathlib import Path

import pytest
from fixtures.workflow_view import fit_scale

from scripts.workflow_graphs.bases import FULL_SIZE
from scripts.workflow_graphs.figures import WORDS, bundled_images, first_run
from scripts.workflow_graphs.shipped import WORKFLOWS
from scripts.workflow_graphs.video import VIDEO

ROOT = Path(__file__).resolve().parents[2]
EXPERTS = ("23_quick_wan22_t2v", "27_quick_wan22_i2v")
NAMES = sorted(path.stem for path in (ROOT / "workflows").glob("*.json"))
QUICK = [name for name in NAMES if "_quick_" in name or name.startswith("01_")]
QUICK = [name for name in QUICK if name not in EXPERTS]
# Below 0.57 the classic renderer leaves all words out.
READABLE, QUICK_READABLE = 0.6, 0.7
MOST_NODES = 8


def workflow(name):
    return json.loads((ROOT / "workflows" / f"{name}.json").read_text(encoding="utf-8"))


def nodes(name):
    return [node for node in workflow(name)["nodes"] if node["type"] != "MarkdownNote"]


def note(name):
    """The words of a workflow's notes."""
    found = [n["widgets_values"][0] for n in workflow(name)["nodes"] if n["type"] == "MarkdownNote"]
    return " ".join(" ".join(found).split())


def test_their_names_say_the_order_of_a_learner():
    assert sorted(make().name for make in WORKFLOWS) == NAMES
    kinds = ["first", *["quick"] * (len(FULL_SIZE) + len(VIDEO)), "convert", *["advanced"] * 3]
    assert [name.split("_")[1] for name in NAMES] == kinds
    # Or ComfyUI does not open them by their address: ?template=NAME&source=FOLDER.
    assert all(re.fullmatch(r"[a-zA-Z0-9_.-]+", name) for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_it_can_be_read_as_it_opens(name):
    assert fit_scale(workflow(name)) >= (QUICK_READABLE if name in QUICK else READABLE)


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_workflow_is_small(name):
    kinds = [node["type"] for node in nodes(name)]
    assert len(kinds) <= MOST_NODES
    assert kinds.count("AdapterTrainerQuick") == 1
    parts = workflow(name)["definitions"]["subgraphs"]
    inside = {node["type"] for part in parts for node in part["nodes"]}
    assert inside & {"KSampler", "SamplerCustom"}


@pytest.mark.parametrize("name", NAMES)
def test_every_node_stands_within_a_frame_and_on_no_other(name):
    """By the sizes of the file; tests/browser/test_layout.py looks at those of the page."""
    shown = workflow(name)
    boxes = [(n["pos"][0], n["pos"][1] - 30, *n["size"]) for n in shown["nodes"]]
    boxes = [(x, y, x + w, y + 30 + h) for x, y, w, h in boxes]
    frames = [(x, y, x + w, y + h) for x, y, w, h in (g["bounding"] for g in shown["groups"])]
    for at, box in enumerate(boxes):
        assert any(
            f[0] <= box[0] and f[1] <= box[1] and box[2] <= f[2] and box[3] <= f[3] for f in frames
        )
        assert not any(
            box[0] < o[2] and o[0] < box[2] and box[1] < o[3] and o[1] < box[3] for o in boxes[:at]
        )


def test_notes_say_the_figures_that_hold():
    first = first_run()
    said = note("01_first_adapter")
    assert f"from {first['images']} bundled images in {first['steps']} steps" in said
    assert f"{bundled_images('demo-generate')} bundled images" in note("51_advanced_first_adapter")
    assert f"has {bundled_images('demo-edit')} **pairs**" in note("52_advanced_first_edit")
    several = note("53_advanced_several_folders")
    assert f"{bundled_images('demo-own')} images of houses" in several
    assert f"{bundled_images('demo-generate')} of shapes" in several
    for base in FULL_SIZE:
        for name in (each for each in NAMES if each.partition("_")[2].endswith(f"_{base.file}")):
            files = [n for n in nodes(name) if n["properties"].get("models")]
            count = sum(len(n["properties"]["models"]) for n in files)
            assert base.note or f"the {WORDS[count]} " in note(name)


@pytest.mark.parametrize("name", [n for n in QUICK if "_quick_" in n])
def test_a_model_is_chosen_once_for_training_and_generating(name):
    kinds = {node["id"]: node["type"] for node in nodes(name)}
    takers = {}
    for _, source, _, target, _, kind in workflow(name)["links"]:
        if kind == "MODEL":
            takers.setdefault(source, []).append(kinds[target])
    assert any("AdapterTrainerQuick" in found and found[1:] for found in takers.values())
    (quick,) = (n for n in nodes(name) if n["type"] == "AdapterTrainerQuick")
    assert "embedded" in quick["widgets_values"]
