"""Cancel, resume and the panel's wishes, on a real server."""

import pytest
from comfyui.graphs import (
    CACHE,
    ENCODER,
    STEPS,
    TRAIN,
    cache_files,
    cancelled,
    checkpoints,
    graph,
    hold,
    panel,
    record,
    release,
    run_folder,
    runs,
    wait_until_held,
    weights,
    wish,
)

pytestmark = pytest.mark.comfy


@pytest.fixture(scope="module")
def whole(shared_server):
    """The weights of a run that nothing has disturbed."""
    shared_server.run(graph("whole"))
    return weights(run_folder(shared_server, "whole") / "whole.safetensors")


def test_a_cancelled_run_goes_on_and_ends_with_the_same_bits(server, whole):
    nodes = graph("cut")
    failure = cancelled(server, nodes, at=5)
    assert failure["node_id"] == TRAIN
    folder = run_folder(server, "cut")
    assert (record(folder)["status"], record(folder)["step"]) == ("cancelled", 5)
    assert checkpoints(folder) == [5]
    assert not (folder / "cut.safetensors").exists()
    state = panel(server)
    assert (state["status"], state["resumable"]) == ("cancelled", True)
    assert state["message"] == "Stopped at step 5. Run goes on from there."

    nodes["30"] = {"class_type": "PreviewAny", "inputs": {"source": [TRAIN, 1]}}
    result = server.run(nodes)
    # The graph gets the losses of the whole run.
    (losses,) = result["outputs"]["30"]["text"]
    assert losses.count(",") == STEPS - 1
    assert record(run_folder(server, "cut"))["status"] == "done"
    assert checkpoints(folder) == [5, STEPS]
    assert weights(folder / "cut.safetensors") == whole


def test_a_cancel_while_encoding_keeps_what_is_encoded(server):
    # Another size: nothing of it is in the cache yet.
    nodes = graph("encoding", dataset={"resolution": 32})
    before = cache_files(server, "latents")
    failure = cancelled(server, nodes, at=3, where=ENCODER)
    assert failure["node_id"] == CACHE
    kept = cache_files(server, "latents") - before
    assert 1 <= len(kept) < 4
    assert runs(server, "encoding") == []
    server.run(nodes)
    after = cache_files(server, "latents") - before
    assert kept < after
    assert len(after) == 4


def test_stop_and_keep_ends_early_with_an_adapter(server):
    hold(server, 4)
    prompt = server.queue(graph("kept"))
    wait_until_held(server)
    assert panel(server)["status"] == "training"
    assert wish(server, "stop") == (200, {"taken": True})
    release(server)
    assert server.result(prompt)["status"]["status_str"] == "success"
    folder = run_folder(server, "kept")
    assert (record(folder)["status"], record(folder)["step"]) == ("done", 4)
    assert checkpoints(folder) == [4]
    assert (folder / "kept.safetensors").is_file()
    state = panel(server)
    assert (state["status"], state["step"], state["steps"]) == ("stopped", 4, STEPS)


def test_wishes_are_granted_after_the_step_and_do_not_change_the_weights(server, whole):
    # The first image, before any step, has as many calls as it has sampling steps.
    hold(server, 3 + 5)
    prompt = server.queue(graph("wished", previews=True, settings={"preview_every": 1000}))
    wait_until_held(server)
    assert wish(server, "save")[0] == 200
    assert wish(server, "preview")[0] == 200
    release(server)
    assert server.result(prompt)["status"]["status_str"] == "success"
    folder = run_folder(server, "wished")
    assert checkpoints(folder) == [5, STEPS]
    # The last one is of the last step, whatever the interval.
    drawn = {path.name for path in (folder / "samples").iterdir()}
    assert drawn == {"000000", "000005", f"{STEPS:06}"}
    assert weights(folder / "wished.safetensors") == whole

    state = panel(server)
    assert (state["node_id"], state["name"], state["status"]) == (TRAIN, "wished", "done")
    assert [step for step, _, _ in state["points"]] == list(range(1, STEPS + 1))
    assert state["seconds_left"] == 0
    assert [sample["step"] for sample in state["samples"]] == [0, 5, STEPS]
    sample = state["samples"][-1]
    query = "&".join(f"{name}={sample[name]}" for name in ("filename", "subfolder", "type"))
    assert server.fetch(f"/view?{query}").startswith(b"\x89PNG")
