"""What the panel shows of a run's earlier steps, and how its buttons make a node go on."""

import pytest
from comfyui.graphs import (
    PROMPTS,
    STEPS,
    TRAIN,
    cached_nodes,
    changed,
    forget_panel,
    graph,
    hold,
    panel,
    release,
    runs,
    wait_until_held,
    wish,
)

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

    assert wish(server, "continue") == (200, {"taken": True})
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


def test_a_node_is_told_of_the_version_that_its_outputs_come_from(server):
    first = graph("versions", train={"resume": False, "steps": 2})
    second = changed(first, TRAIN, seed=5)
    results = [server.run(nodes) for nodes in (first, second, second)]
    outputs = [result["outputs"][TRAIN]["adapter_trainer_run"] for result in results]
    assert outputs == [["versions/v0"], ["versions/v1"], ["versions/v1"]]
    assert TRAIN in cached_nodes(results[-1])
    assert panel(server)["run"] == "versions/v1"
    # As the page asks where ComfyUI gave the node what it remembers of an earlier prompt.
    asked = panel(server, name="versions", run="versions/v0", exact="1")
    assert (asked["run"], steps_of(asked)) == ("versions/v0", [1, 2])
    # A reload of the page finds what the node shows now.
    assert panel(server, name="versions")["run"] == "versions/v0"
    for about in ("name=another", "run=../versions/v0&exact=1", "run=versions/v9&exact=1"):
        assert server.status(f"/adapter_trainer/state?node_id={TRAIN}&{about}") == 404
