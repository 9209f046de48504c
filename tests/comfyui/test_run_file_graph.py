"""A run file opens as nodes: every setting that has an input, and nothing that it names is read."""

import json

import pytest
from comfyui.conftest import write_images
from comfyui.graphs import graph
from fixtures import foreign_files as files

from trainer_core.config.folders import OVERRIDES, own_name
from trainer_core.config.read_run_file import dump_config
from trainer_core.config.run import walk_settings
from trainer_core.config.section import choices_of, section_of
from trainer_core.errors import ConfigError
from trainer_core.families.run_files import load_config

pytestmark = pytest.mark.comfy

ROUTE = "/adapter_trainer/run_file_graph"
SAVED = frozenset(
    {"base", "cache", "adapter", "settings", "name", "steps", "learning_rate", "seed"}
)
"""The inputs that Save Run File shares with Train Adapter."""


def opened(server, name: str, text: object):
    return server.post(ROUTE, {"files": [{"name": name, "text": text}]})[1]


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


def of(answer, kind: str):
    """The nodes of a kind, by their ids."""
    return {id: n for id, n in answer["nodes"].items() if n["class_type"].endswith(kind)}


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
    assert answer["notes"] == []
    (saved,) = (n["inputs"] for n in answer["nodes"].values() if n["class_type"].endswith("Save"))
    assert saved == {"run": ["7", 3], "name": "", "layout": "kohya"}
    schemas = server.get("/object_info")
    for each in answer["nodes"].values():
        asked = schemas[each["class_type"]]["input"]
        known = {**asked["required"], **asked.get("optional", {})}
        assert {name.partition(".")[0] for name in each["inputs"]} <= set(known)


@pytest.mark.exhaustive
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
    (told,) = (note for note in answer["notes"] if note.startswith("dataset.folders: "))
    assert "photos/sea is in no folder" in told
    first, second = (n["inputs"] for n in of(answer, "DatasetFolder").values())
    assert (second["role"], second["weight"], second["resolution"]) == ("regularization", 0.5, 512)
    assert (second["caption_dropout"], second["trigger_word"]) == (0.0, "")
    # A further folder says it alone, and no node has an input for it.
    assert "dataset.captions.add_trigger" in notes
    assert (first["role"], first["trigger_word"]) == ("train", "p4per")


def test_a_run_of_clips_opens_with_the_parts_that_are_trained_there(server):
    command = "accelerate launch wan_train_network.py --task t2v-14B --dit w.safetensors"
    datasets = "[[datasets]]\nvideo_directory = 'clips'\ntarget_frames = [25, 45]\n"
    given = [{"name": "run.sh", "text": command}, {"name": "sets.toml", "text": datasets}]
    answer = server.post(ROUTE, {"files": given})[1]
    folder = node(answer, "DatasetFolder")
    assert (folder["frames"], folder["max_clips"]) == (45, 1)
    assert of(answer, "BaseFromModel")
    assert any("datasets[0].target_frames" in note for note in answer["notes"])


@pytest.mark.parametrize("path", ["/etc", "input/../../../etc"])
def test_what_lies_outside_is_left_empty_and_told(server, path):
    settings = {
        "dataset": {"path": path, "regularization": {"path": path}},
        "base": {"path": path, "adapters": [{"path": path}]},
        "adapter": {"start_from": path},
    }
    answer = opened(server, "run.yaml", json.dumps(settings))
    folder, base = node(answer, "DatasetFolder"), node(answer, "TrainerBase")
    assert (folder["folder"], folder["regularization_folder"]) == ("", "none")
    assert (base["source"], base["base_adapters"]) == ("", "")
    assert node(answer, "TrainerAdapter")["start_from"] == "none"
    told = " ".join(answer["notes"])
    assert all(f"{each}: " in told for each in ("dataset.path", "base.path", "base.adapters"))


MISTAKES = (
    ("run.yaml", "training: {steps: many}"),
    ("run.yaml", "trainign: {steps: 3}\noutput: {name: x}\ndataset: {}"),
    ("x.yaml", files.AI_TOOLKIT.replace("steps: 1800", "steps: many")),
)
"""Files that are recognized although something is wrong in them."""

UNREADABLE = (("run.yaml", None), ("run.yaml", "a: [*b"), ("run.json", "[" * 9999))


@pytest.mark.parametrize(
    ("recognize", "given"), [(False, (*MISTAKES, *UNREADABLE)), (True, MISTAKES)]
)
def test_what_cannot_be_read_is_refused_in_three_parts(server, recognize, given):
    for name, text in given:
        asked = {"files": [{"name": name, "text": text}], "recognize": recognize}
        status, answer = server.post(ROUTE, asked)
        assert status == 400, (name, text)
        assert all(answer[part] for part in ("found", "expected", "remedy"))


def test_folders_are_joined_as_the_run_file_says(server):
    """What the graph would train is written by its own nodes, and compared with what was opened."""
    for number, name in enumerate(("opened_more", "opened_ordinary", "opened_held")):
        write_images(server.data / "datasets" / name, first=100 * (number + 1))
    place = server.data / "datasets"
    own = {"prefix": "x ", "shuffle": 2}
    dataset = {
        "path": str(place / "four"),
        "trigger_word": "ohwx",
        "resolution": 64,
        "caption_dropout": 0.1,
        "validation": {"every": 7},
        "folders": [
            {"path": str(place / "opened_more"), "weight": 0.5, "num_repeats": 3, "captions": own},
            {
                "path": str(place / "opened_ordinary"),
                "role": "regularization",
                "caption_dropout": 0.0,
            },
            {
                "path": str(place / "opened_held"),
                "role": "validation",
                "trigger_word": "",
                "layout": "flat",
                "mask_source": "none",
            },
        ],
    }
    config = load_config({"dataset": dataset, "output": {"name": "joined"}})
    answer = opened(server, "run.yaml", dump_config(config))
    assert answer["notes"] == []
    nodes = answer["nodes"]
    train = nodes["7"]
    given = {name: value for name, value in train["inputs"].items() if name in SAVED}
    nodes["7"] = {
        "class_type": "AdapterTrainerSaveRunFile",
        "inputs": {**given, "copy_cache": False},
    }
    server.run(nodes)
    saved = server.data / "output" / "adapter_trainer" / "joined"
    (file,) = saved.rglob("*.yaml")
    assert effective(load_config(file).dataset) == effective(config.dataset)


def effective(dataset):
    """What is trained: each folder with what it says itself, and else what the dataset says."""
    shared = dataset.model_dump(exclude={"folders", "path"})
    usual = {own_name(n): shared[n] for n in OVERRIDES if "." not in n}
    usual["mask_source"] = dataset.mask.source
    rows = []
    for folder in dataset.folders:
        said = {name: value for name, value in folder.model_dump().items() if value is not None}
        word = {"trigger_word": ""} if folder.role == "regularization" else {}
        rows.append({**usual, **word, **said})
    return dataset.path, shared, rows


EDIT = {"base": {"variant": "edit"}, "preview": {"prompts": ["one", "two", "three"]}}


def edits(server, *names, **more):
    """A run file whose previews have control images, of ComfyUI's folders."""
    controls = [[str(server.data / name)] for name in names]
    settings = {**EDIT, "preview": {**EDIT["preview"], "controls": controls}, **more}
    return opened(server, "run.json", json.dumps(settings))


def test_control_images_are_loaded(server):
    loose = ("input/loose/0.png", "input/loose/1.png", "input/loose/0.png")
    answer = edits(server, *loose)
    loads = of(answer, "LoadImage")
    assert [n["inputs"]["image"] for n in loads.values()] == ["loose/0.png", "loose/1.png"]
    first, second = loads
    (batch,) = of(answer, "BatchImagesNode").values()
    given = [[first, 0], [second, 0], [first, 0]]
    assert batch["inputs"] == {f"images.image{at}": each for at, each in enumerate(given)}
    assert [note for note in answer["notes"] if "controls" in note] == [
        "preview.controls: Batch Images makes all as large as the first."
    ]
    answer = edits(server, *["input/loose/2.png"] * 3)
    assert node(answer, "PreviewPrompts")["controls"] == [*of(answer, "LoadImage"), 0]
    assert answer["notes"] == []
    answer = edits(server, *["input/loose/2.png"] * 3, base={"variant": "fill"})
    (alpha,) = of(answer, "JoinImageWithAlpha")
    assert node(answer, "PreviewPrompts")["controls"] == [alpha, 0]


DROPPED = {
    "run.yaml": ("training: {steps: 3}", "Adapter Trainer"),
    "a.yaml": (files.AI_TOOLKIT, "ai-toolkit"),
    "c.sh": (files.MUSUBI_COMMAND, "musubi-tuner"),
    "sdxl.toml": (files.SD_SCRIPTS_SDXL, "sd-scripts"),
    "x.json": ("{}", ""),
    "job.json": ('{"job": 1, "name": "x"}', ""),
    "x.yaml": ("a: [*b", ""),
    "compose.yaml": ("services:\n  web:\n    image: x", ""),
}
"""Files to their text and the program whose run file it is, or none."""


@pytest.mark.parametrize("name", DROPPED)
def test_dropped_files_are_recognized_by_what_they_hold(server, name):
    text, program = DROPPED[name]
    asked = {"files": [{"name": name, "text": text}], "recognize": True}
    status, answer = server.post(ROUTE, asked)
    assert (status, answer["program"]) == (200, program)
    assert program or answer == {"program": ""}


def test_files_that_make_a_run_together_are_read_together(server):
    """In whatever order they come, and beside something else."""
    given = [
        {"name": "readme.txt", "text": "nothing"},
        {"name": "data.toml", "text": files.MUSUBI_DATASETS},
        {"name": "run.sh", "text": files.MUSUBI_COMMAND},
    ]
    for each in (given, given[::-1]):
        status, answer = server.post(ROUTE, {"files": each, "recognize": True})
        assert status == 200
        assert sorted(answer["files"]) == ["data.toml", "run.sh"]
        assert any("dataset.path: " in note for note in answer["notes"])
    two = [{"name": name, "text": files.AI_TOOLKIT} for name in ("a.yaml", "b.yaml")]
    status, answer = server.post(ROUTE, {"files": two})
    assert (status, answer["found"]) == (400, "a.yaml, b.yaml together")


def test_the_run_file_of_a_run_on_disk_opens(server):
    server.run(graph("kept", train={"steps": 1}))
    status, answer = server.post(ROUTE, {"run": "kept/v0"})
    assert (status, answer["program"]) == (200, "Adapter Trainer")
    assert node(answer, "TrainerTrain")["steps"] == 1
    assert node(answer, "DatasetFolder")["folder"] == "datasets/four"
    assert answer["notes"] == []
    for name in ("../kept", "kept/v9", "/etc"):
        status, answer = server.post(ROUTE, {"run": name})
        assert status == 400
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
