"""A run file opens as nodes: every setting that has an input, and nothing that it names is read."""

from __future__ import annotations

import json

import pytest
from fixtures import foreign_files as files

from trainer_core.config.reading import dump_config
from trainer_core.config.run import walk_settings
from trainer_core.config.section import choices_of, section_of
from trainer_core.errors import ConfigError
from trainer_core.families.run_files import load_config

pytestmark = pytest.mark.comfy

ROUTE = "/adapter_trainer/run_file_graph"


def opened(server, name: str, text: object):
    return server.post(ROUTE, {"name": name, "text": text})[1]


def other_value(field):
    """A value beside the default, of the kind that the field has."""
    usual = field.get_default(call_default_factory=True)
    if choices := choices_of(field):
        return next(each for each in choices if each != usual)
    if isinstance(usual, bool):
        return not usual
    if isinstance(usual, int | float):
        return usual + 1 if isinstance(usual, int) else usual / 2 or 0.5
    return 32 if usual is None else {"": "word"}.get(str(usual), ["word"])


def node(answer, kind: str):
    (found,) = [n["inputs"] for n in answer["nodes"].values() if n["class_type"].endswith(kind)]
    return found


def test_a_run_file_of_ours_fills_the_nodes(server):
    config = load_config(
        {
            "adapter": {"kind": "lora", "rank": 5, "alpha": 2.5, "targets": ["a.*", "b"]},
            "training": {
                "steps": 77,
                "optimizer": {"learning_rate": 3e-4, "weight_decay": 0.02},
                "schedule": {"name": "cosine", "min_ratio": 0.25},
            },
            "preview": {"prompts": ["one", "two"], "every": 9},
            "output": {"name": "boats", "layouts": ["kohya"]},
            "seed": 4,
        }
    )
    answer = opened(server, "run.yaml", dump_config(config))
    assert answer["program"] == "Adapter Trainer"
    assert node(answer, "TrainerBase") | {"source": "embedded", "family": "auto"} == node(
        answer, "TrainerBase"
    )
    adapter = node(answer, "TrainerAdapter")
    assert (adapter["kind"], adapter["rank"], adapter["alpha"]) == ("lora", 5, 2.5)
    assert adapter["targets"] == "a.*\nb"
    train = node(answer, "TrainerTrain")
    assert (train["name"], train["steps"], train["seed"]) == ("boats", 77, 4)
    assert train["learning_rate"] == 3e-4
    settings = node(answer, "TrainerSettings")
    assert (settings["schedule"], settings["min_ratio"]) == ("cosine", 0.25)
    assert (settings["weight_decay"], settings["preview_every"]) == (0.02, 9)
    assert node(answer, "PreviewPrompts")["prompts"] == "one\ntwo"
    assert answer["notes"] == ["output.layouts: the nodes have no input for it."]
    schemas = server.get("/object_info")
    for each in answer["nodes"].values():
        asked = schemas[each["class_type"]]["input"]
        known = {**asked["required"], **asked.get("optional", {})}
        assert {name.partition(".")[0] for name in each["inputs"]} <= set(known)


def test_every_setting_comes_into_an_input_or_is_told(server):
    """Each setting alone, with another value than its default, as far as that is allowed."""
    usual = opened(server, "run.yaml", dump_config(load_config({})))
    silent: list[str] = []
    tried: list[str] = []
    for path, field in walk_settings():
        if section_of(field) is not None or path in {"config_version", "resume", "family"}:
            continue
        try:
            config = load_config({}, [f"{path}={json.dumps(other_value(field))}"])
        except ConfigError:
            continue  # It needs another one beside it.
        tried.append(path)
        answer = opened(server, "run.yaml", dump_config(config))
        told = any(path in note for note in answer.get("notes", ()))
        if answer.get("nodes") == usual["nodes"] and not told:
            silent.append(path)
    assert len(tried) > 60
    # Where runs go is ComfyUI's own folder; without prompts there is no node for previews.
    assert [each for each in silent if not each.startswith(("output.dir", "preview."))] == []


def test_a_value_that_a_widget_cannot_say_is_told(server):
    """AdamW's learning rate in the widget means what suits the optimizer."""
    optimizer = {"name": "lion", "learning_rate": 1e-4}
    answer = opened(server, "run.yaml", json.dumps({"training": {"optimizer": optimizer}}))
    said = [note for note in answer["notes"] if note.startswith("training.optimizer.")]
    assert said == [
        "training.optimizer.learning_rate: 0.0001 cannot be said in a graph with lion, which takes "
        "3e-05 then."
    ]
    optimizer["learning_rate"] = 2e-4
    answer = opened(server, "run.yaml", json.dumps({"training": {"optimizer": optimizer}}))
    assert not [note for note in answer["notes"] if note.startswith("training.optimizer.")]


def test_a_file_of_another_trainer_opens_too(server):
    answer = opened(server, "boats.yaml", files.AI_TOOLKIT)
    assert answer["program"] == "ai-toolkit"
    assert node(answer, "TrainerTrain")["name"] == "paper_boats"
    assert node(answer, "TrainerAdapter")["rank"] == 24
    notes = " ".join(answer["notes"])
    assert "dataset.path: " in notes
    assert "base.path: " in notes
    assert "dataset.folders: the nodes have no input for it." in answer["notes"]


@pytest.mark.parametrize(
    "path", ["/etc", "../../etc", "/etc/passwd", "input/../../../etc", "~root", "C:\\Windows"]
)
def test_what_lies_outside_is_left_empty_and_told(server, path):
    text = json.dumps(
        {
            "dataset": {"path": path, "regularization": {"path": path}},
            "base": {"path": path, "adapters": [{"path": path}]},
            "adapter": {"start_from": path},
        }
    )
    answer = opened(server, "run.yaml", text)
    if "nodes" not in answer:
        assert answer["found"]
        return
    folder = node(answer, "DatasetFolder")
    assert (folder["folder"], folder["regularization_folder"]) == ("", "none")
    assert node(answer, "TrainerBase")["source"] == ""
    assert node(answer, "TrainerBase")["base_adapters"] == ""
    assert node(answer, "TrainerAdapter")["start_from"] == "none"
    told = " ".join(answer["notes"])
    assert all(f"{each}: " in told for each in ("dataset.path", "base.path", "base.adapters"))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.yaml", None),
        ("run.yaml", ["x"]),
        ("run.yaml", "a: [*b"),
        ("run.yaml", "seed: many"),
        ("run.json", "[" * 9999),
        ("x.yaml", "unknown: 1"),
        ("x.yaml", files.AI_TOOLKIT.replace("steps: 1800", "steps: many")),
    ],
)
def test_what_cannot_be_read_is_refused_in_three_parts(server, name, text):
    answer = opened(server, name, text)
    assert answer["found"]
    assert answer["expected"]
    assert answer["remedy"]


def test_a_run_file_with_a_slider_opens_with_its_node(server):
    slider = {"positive": "old", "negative": "young", "neutral": ["a", "b"], "strength": 2.5}
    config = load_config({"dataset": {"resolution": 512, "slider": slider}})
    answer = opened(server, "run.yaml", dump_config(config))
    found = node(answer, "ConceptSlider")
    assert (found["positive"], found["negative"], found["neutral"]) == ("old", "young", "a\nb")
    assert (found["slider_strength"], found["resolution"]) == (2.5, 512)
    assert not any(n["class_type"].endswith("DatasetFolder") for n in answer["nodes"].values())
    assert answer["notes"] == []
