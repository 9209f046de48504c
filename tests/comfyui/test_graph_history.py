"""What the panel shows of a run's earlier steps, and how its buttons make a node go on."""

import json
import urllib.parse

import pytest
from comfyui.conftest import write_images
from comfyui.graphs import (
    ADAPTER,
    PROMPTS,
    SETTINGS,
    STEPS,
    TRAIN,
    cached_nodes,
    cancelled,
    changed,
    forget_panel,
    graph,
    hold,
    panel,
    record,
    release,
    run_folder,
    runs,
    wait_until_held,
    wish,
)
from comfyui.test_graph_errors import refused
from fixtures.combinations import some

from trainer_core.adapters.layer_list import layer_kinds
from trainer_core.commands.doctor import run_report
from trainer_core.families.run_files import load_config

pytestmark = pytest.mark.comfy

SHOWN = {"preview_every": 4}


def steps_of(state):
    return [step for step, _, _ in state["points"]]


def samples_of(state):
    return [(each["step"], each["prompt"]) for each in state["samples"]]


def test_a_stopped_run_goes_on_when_asked_and_its_course_is_whole(server):
    nodes = graph("onward", previews=True, settings=SHOWN)
    # The image before the first step takes three calls.
    hold(server, 3 + 5)
    prompt = server.queue(nodes)
    wait_until_held(server)
    assert wish(server, "continue") == (409, {"taken": False, "reason": "this node is training"})
    wish(server, "stop")
    release(server)
    server.result(prompt)
    assert panel(server)["message"] == f"Stopped at step 5 of {STEPS}. What was learned is kept."

    # Run alone changes nothing: ComfyUI hands on what was kept.
    assert TRAIN in cached_nodes(server.run(nodes))
    assert panel(server)["status"] == "stopped"

    assert wish(server, "continue") == (200, {"taken": True, "reason": "Queued."})
    again = changed(nodes, PROMPTS, prompts="a blue circle")
    server.run(again)
    state = panel(server)
    assert (state["status"], state["run"], len(runs(server, "onward"))) == ("done", "onward/v0", 1)
    assert steps_of(state) == list(range(1, STEPS + 1))
    # An image keeps the prompt that it was made with.
    before, after = "a red diamond", "a blue circle"
    assert samples_of(state) == [(0, before), (4, before), (STEPS, after)]
    assert TRAIN in cached_nodes(server.run(again))

    forget_panel(server)
    about = {"name": "onward", "workflow": "some", "run": "onward/v0"}
    kept = panel(server, **about)
    assert kept["message"] == f"Trained {STEPS} steps."
    for same in ("status", "step", "steps", "points", "samples", "run", "seed"):
        assert kept[same] == state[same]
    assert kept["step_seconds"] > 0


def asked(server, nodes, **about):
    """What the panel of a graph that is not queued yet shows: a run, or what it says instead."""
    query = urllib.parse.urlencode({"node_id": TRAIN, **about})
    status, answer = server.post(f"/adapter_trainer/state?{query}", {"prompt": nodes})
    return answer.get("run", answer.get("reason")) if status in (200, 404) else status


def going_on(server, nodes, run, **about):
    said = {"node_id": TRAIN, "wish": "continue", "run": run, "prompt": nodes, **about}
    return server.post("/adapter_trainer/wish", said)[1]["reason"]


NEW = "These settings start a new run: "
OTHERS = {
    "another folder": (
        {"dataset": {"folder": "datasets/four (2)"}},
        "folder was datasets/four and is",
    ),
    "no layout": ({"dataset": {"layout": "none"}}, "layout was auto and is none"),
    "another word": ({"dataset": {"trigger_word": "sks"}}, "trigger_word was empty and is sks"),
    "another rank": ({"adapter": {"rank": 2}}, "rank was 4 and is 2"),
    "a shorter run": ({"train": {"steps": 2}}, "steps is 2, and 4 are trained"),
    "another rate": ({"train": {"learning_rate": 1e-4}}, "learning_rate was 0.001 and is 0.0001"),
}


@pytest.mark.exhaustive
def test_a_run_belongs_to_its_settings_whichever_version_it_is(server):
    """Of A, B and A again the last is not trained, and each panel shows its own."""
    one = graph("belongs", train={"steps": 4})
    two = changed(one, ADAPTER, rank=8)
    for nodes in (one, two, one):
        server.run(nodes)
    assert [record(folder)["step"] for folder in runs(server, "belongs")] == [4, 4]
    assert panel(server)["run"] == "belongs/v0"
    # A template that is opened now has the node's id, and may have the workflow's.
    assert asked(server, two) == "belongs/v1"
    assert asked(server, graph("nobody")) == ""
    forget_panel(server)
    assert asked(server, one) == "belongs/v0"
    assert asked(server, two) == "belongs/v1"
    assert asked(server, two, run="belongs/v0") == "belongs/v1"
    # Previews, checkpoints and a longer run are the same run's.
    for place, same in ((TRAIN, {"steps": 9}), (SETTINGS, {"checkpoint_every": 3})):
        assert asked(server, changed(one, place, **same)) == "belongs/v0"
    for changes, said in OTHERS.values():
        other = graph("belongs", **{**changes, "train": {"steps": 4, **changes.get("train", {})}})
        told = asked(server, other)
        assert told.startswith(NEW + said), told
        assert going_on(server, other, "belongs/v0").startswith(NEW + said)
    query = f"/adapter_trainer/state?node_id={TRAIN}"
    for inputs, note in (
        ({"seed": 5}, "Run starts a new run: seed was 0 and is 5"),
        ({"resume": False}, "resume is off: a Run that trains again starts a new run."),
    ):
        shown = server.post(query, {"prompt": changed(one, TRAIN, **inputs)})[1]
        assert (shown["run"], note in shown["notes"][-1]) == ("belongs/v0", True)
    longer = changed(one, TRAIN, steps=6)
    for nodes in (longer, one):  # the first goes on, and the other cannot become shorter
        server.run(nodes)
    for nodes, run in ((longer, "belongs/v0"), (one, "belongs/v2")):
        forget_panel(server)
        assert asked(server, nodes) == run


@pytest.mark.exhaustive
def test_the_quick_node_belongs_to_its_answers_and_longer_to_its_run(server):
    quick = quick_graph("swift")
    server.run(quick)
    forget_panel(server)
    other = changed(quick, TRAIN, folder="demo/demo-own", trigger_word="sks")
    said = "folder was datasets/four and is demo/demo-own; trigger_word was empty and is sks"
    assert asked(server, other) == f"{NEW}{said}."
    assert going_on(server, other, "swift/v0") == f"{NEW}{said}. Press Run to start it."
    assert asked(server, changed(quick, TRAIN, prompts="y", steps=9)) == "swift/v0"
    for broken in ({"inputs": 3}, {"inputs": {**quick[TRAIN]["inputs"], "model": ["9", 0]}}, {}):
        hostile = {TRAIN: {"class_type": "AdapterTrainerQuick", **broken}, "9": 5}
        assert isinstance(asked(server, hostile), str)
    # A name that follows its folder has no run of another folder's.
    assert asked(server, changed(other, TRAIN, name="")) == ""
    assert going_on(server, quick, "swift/v0", steps=5).endswith("from step 4.")
    server.run(quick)
    server.run(changed(other, TRAIN, trigger_word="", prompts="x"))
    assert [record(each)["step"] for each in runs(server, "swift")] == [5, 4]


def quick_graph(name, folder="datasets/four", **others):
    answers = {"folder": folder, "base": "embedded", "goal": "style", "quality": "fast"}
    answers |= {"name": name, "trigger_word": "", "kind": "lora", "prompts": "x", "steps": 4}
    return {TRAIN: {"class_type": "AdapterTrainerQuick", "inputs": answers | others}}


def as_full_graph(server, nodes):
    """What *Open as full graph* makes of a quick node, with the id that the tests look at."""
    told = server.post("/adapter_trainer/full_graph", nodes[TRAIN]["inputs"])[1]
    other = {told["train"]: TRAIN, TRAIN: "other"}
    renamed = json.loads(json.dumps(told["nodes"]))
    for each in renamed.values():
        for name, value in each["inputs"].items():
            if isinstance(value, list):
                each["inputs"][name] = [other.get(value[0], value[0]), value[1]]
    return {other.get(node, node): value for node, value in renamed.items()}


def assert_any_node_shows_the_same(server, train, nodes):
    """Pasted, or in another tab, it has another id; a server that was restarted knows none."""
    state = panel(server)
    for node in ("77", TRAIN):
        forget_panel(server)
        query = f"/adapter_trainer/state?node_id={node}"
        other = server.post(query, {"prompt": {**nodes, node: train}})[1]
        for name in ("run", "choices", "warnings", "notes", "memory", "layers"):
            assert other[name] == state[name], name
    assert bool(state["choices"]) == (train["class_type"] == "AdapterTrainerQuick")
    return state


@pytest.mark.parametrize("made", some(["nodes", "quick"], "quick"))
def test_the_panel_says_what_run_would_do_with_images_that_changed(server, made):
    """Images and captions count by what they are, not by folder, time or other files."""
    name = f"shown_{made}"
    place = write_images(server.data / "datasets" / name)
    folder = f"datasets/{name}"
    nodes = quick_graph(name, folder)
    if made == "nodes":
        nodes = graph(name, dataset={"folder": folder}, train={"steps": 4})
    server.run(nodes)
    shown = assert_any_node_shows_the_same(server, nodes[TRAIN], nodes)
    report, _ = run_report(load_config(run_folder(server, name) / "run.yaml"))
    assert shown["layers"] == layer_kinds(report["adapter"]["adapted"]) != []
    assert asked(server, nodes) == f"{name}/v0"
    caption, before = place / "1.txt", (place / "1.txt").read_bytes()
    changed_now = f"{NEW}images or captions in {folder} have changed."
    caption.write_text("another", encoding="utf-8")
    assert asked(server, nodes) == changed_now
    assert going_on(server, nodes, f"{name}/v0").startswith(changed_now[:-1])
    caption.write_bytes(before)
    (place / "notes.md").write_text("no caption", encoding="utf-8")
    assert asked(server, nodes) == f"{name}/v0"
    choices = place / ".adapter_trainer.json"
    choices.write_text('{"left_out": ["2.png"]}', encoding="utf-8")
    assert asked(server, nodes) == changed_now
    choices.unlink()
    place.rename(place.with_name(f"{name} moved"))
    moved = json.loads(json.dumps(nodes).replace(folder, f"{folder} moved"))
    for same in (moved, as_full_graph(server, moved) if made == "quick" else moved):
        assert asked(server, same) == f"{name}/v0"
        forget_panel(server)
        server.run(same)
        assert [each.name for each in runs(server, name)] == ["v0"]
    place.with_name(f"{name} moved").joinpath("1.png").unlink()
    place.with_name(f"{name} moved").joinpath("1.txt").unlink()
    assert asked(server, moved).startswith(NEW)
    server.run(moved)
    assert [each.name for each in runs(server, name)] == ["v0", "v1"]


@pytest.mark.exhaustive
def test_what_continue_has_promised_is_kept_or_refused_and_never_another_run(server):
    images = write_images(server.data / "datasets" / "promised")
    nodes = graph(
        "promised", dataset={"folder": "datasets/promised"}, settings={"checkpoint_every": 2}
    )
    cancelled(server, nodes, 6)
    assert going_on(server, nodes, "promised/v0") == "Queued. It goes on from step 6."
    (images / "1.txt").write_text("something else", encoding="utf-8")
    message = refused(server, nodes, TRAIN)
    assert "the images, their captions or their sizes are others now" in message
    assert "press Run: these settings start a new run" in message
    server.run(nodes)
    assert [record(each)["step"] for each in runs(server, "promised")] == [6, STEPS]
