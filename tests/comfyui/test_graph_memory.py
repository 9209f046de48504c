"""The node is a good guest: tensors, threads, generators and modes are as before."""

import time

import pytest
from comfyui.graphs import TRAIN, cancelled, disturb, forget, graph, hold, release, wait_until_held

pytestmark = pytest.mark.comfy


def census(server):
    """Live tensors after all that ComfyUI remembers has gone."""
    forget(server)
    return server.get("/instruments/census")


def assert_nothing_stays(server, before):
    end = time.monotonic() + 10
    while (after := census(server)) != before and time.monotonic() < end:
        time.sleep(0.2)
    assert after == before, server.get("/instruments/owners")


def small(name, **changes):
    return graph(name, previews=True, behind=True, **changes)


@pytest.fixture(scope="module")
def warm(shared_server):
    """The census of a server that has done everything once: modules keep tensors of their own."""
    # With what the base is held to, of which there are a few.
    held = {"preservation": 0.5, "preservation_count": 2, "preservation_steps": 2}
    shared_server.run(small("warm", dataset=held, settings={"preview_every": 4}))
    disturb(shared_server, "memory", at=2)
    shared_server.result(shared_server.queue(graph("warm-error")))
    disturb(shared_server, "nothing", 0)
    return census(shared_server)


def note(server):
    """The globals of the process, by the thread that runs prompts."""
    number = len(server.get("/instruments/states"))
    inputs = {"number": number}
    server.run({"1": {"class_type": "InstrumentsNoteState", "inputs": inputs}})
    return server.get("/instruments/states")[-1]


def test_a_training_leaves_nothing_and_the_globals_as_they_were(server, warm):
    """Neither one that ends, nor one that fails, nor one that is cancelled."""
    before = note(server)
    # Without core's Preview Image, which draws a name for its file.
    server.run(graph("row", previews=True, settings={"preview_every": 4}))
    assert note(server) == before
    assert_nothing_stays(server, warm)

    for what in ("memory", "poison"):
        disturb(server, what, at=4)
        nodes = graph(f"error-{what}", settings={"recovery_smaller": False})
        failure = server.failure(server.result(server.queue(nodes)))
        assert (failure["event"], failure["node_id"]) == ("execution_error", TRAIN)
        server.post("/instruments/disturb", {"what": "nothing"})
        assert note(server) == before, what
        assert_nothing_stays(server, warm)

    hold(server, 4)
    prompt = server.queue(graph("cancel"))
    wait_until_held(server)
    held = server.get("/instruments/now")
    server.post("/interrupt", {"prompt_id": prompt})
    release(server)
    assert server.failure(server.result(prompt))["event"] == "execution_interrupted"
    server.post("/instruments/disturb", {"what": "nothing"})
    assert note(server) == before
    assert_nothing_stays(server, warm)
    # Else the note would see nothing at all.
    assert held != before
    assert before["inference mode"]


def test_the_census_counts_what_a_training_holds(server, warm):
    hold(server, 3)
    prompt = server.queue(graph("held"))
    wait_until_held(server)
    held = server.get("/instruments/census")
    release(server)
    server.result(prompt)
    assert held["count"] > warm["count"] + 100
    assert held["bytes"] > warm["bytes"] + 1_000_000


@pytest.mark.exhaustive
def test_a_run_with_swapped_blocks_leaves_nothing(server, warm):
    """Finished, and cancelled while a block computes: no tensor, and no byte that counts as pinned.

    A machine's free memory is everybody's, so that what the process itself holds is counted.
    """
    before = server.get("/instruments/pinned")
    swapped = {"gradient_checkpointing": True, "blocks_to_swap": 2, "swap_slots": 1}
    server.run(graph("swapped", settings=swapped))
    assert_nothing_stays(server, warm)
    cancelled(server, graph("swapped-cancel", settings=swapped), 4, "QwenImageTransformerBlock")
    assert_nothing_stays(server, warm)
    assert server.get("/instruments/pinned") == before


@pytest.mark.exhaustive
def test_a_preview_that_fails_leaves_nothing(server, warm):
    server.run(small("drawn", train={"steps": 1}))
    disturb(server, "memory", at=2)
    nodes = small("drawn", train={"steps": 1}, preview={"strength": 0.5})
    failure = server.failure(server.result(server.queue(nodes)))
    assert "memory is full" in failure["exception_message"]
    del failure
    assert_nothing_stays(server, warm)
