"""Train Adapter goes on with other settings, and from a chosen checkpoint."""

import re
import shutil

import pytest
from comfyui.graphs import (
    STEPS,
    TRAIN,
    changed,
    checkpoints,
    disturb,
    graph,
    loaded_run,
    panel,
    record,
    run_folder,
    runs,
    weights,
)
from comfyui.test_graph_errors import refused, refused_soon

pytestmark = pytest.mark.comfy


def test_a_run_that_breaks_goes_on_as_its_message_says(server):
    """The rate is lowered and the graph run again; nothing else is touched."""
    settings = {"checkpoint_every": 4, "recovery_skips": 0, "recovery_returns": 0}
    nodes = graph("broken", settings=settings)
    disturb(server, "poison", at=6)
    message = refused(server, nodes, TRAIN)
    assert "step 6 is not finite" in message
    assert "lower learning_rate and run the graph again" in message
    folder = run_folder(server, "broken")
    assert record(folder)["non_finite"]["step"] == 6
    lower = float(re.search(r"learning_rate=([\d.e-]+\d)", message)[1])
    server.run(changed(nodes, TRAIN, learning_rate=lower))
    assert runs(server, "broken") == [folder]
    assert (record(folder)["status"], record(folder)["step"]) == ("done", STEPS)
    (change,) = record(folder)["changes"]
    assert change["setting"] == "training.optimizer.learning_rate"
    assert (change["from"], change["to"]) == (1e-3, lower)
    assert change["step"] < 5
    assert any("changed: learning_rate was" in text for text in panel(server)["notes"])


@pytest.mark.exhaustive
def test_the_best_checkpoint_is_gone_on_from_and_loaded(server):
    held = {"validation_share": 0.3, "validation_every": 1, "validation_noise_levels": 1}
    settings = {"checkpoint_every": 2, "keep_checkpoints": 1}
    nodes = graph("measured", dataset=held, settings=settings)
    # From the middle on the base is worse, so that the loss on held-out images rises.
    disturb(server, "worse", at=STEPS)
    server.run(nodes)
    disturb(server, "nothing", at=0)
    folder = run_folder(server, "measured")
    best = record(folder)["best"]["step"]
    assert checkpoints(folder) == sorted({best, STEPS})
    assert best < STEPS
    kept = weights(folder / "checkpoints" / f"{best:06d}" / "adapter.safetensors")

    server.run(loaded_run("measured/v0", -1, "best"))
    assert weights(server.data / "models" / "loras" / "best.safetensors") == kept

    longer = {"resume_from": "best", "steps": STEPS + 2, "learning_rate": 1e-4}
    server.run(changed(nodes, TRAIN, **longer))
    assert runs(server, "measured") == [folder]
    assert record(folder)["changes"][-1]["step"] == best
    assert weights(folder / "checkpoints" / f"{best:06d}" / "adapter.safetensors") == kept


def test_what_is_no_checkpoint_of_the_runs_is_refused(server, given):
    for name in ("none/v0/000004", "given/v0/000003", "given/v0/../../x", "given", "/etc", 5):
        message = refused_soon(server, changed(given, TRAIN, resume_from=name, steps=99), TRAIN)
        assert "resume_from" in message or "run:" in message
    assert record(run_folder(server, "given"))["step"] == STEPS


@pytest.mark.parametrize("linked", ["training_state.safetensors", "."])
def test_a_checkpoint_that_is_a_link_out_is_refused(server, given, tmp_path, linked):
    folder, link = run_folder(server, "given") / "checkpoints", "000007"
    shutil.copytree(folder / f"{STEPS:06d}", tmp_path / "elsewhere")
    if linked == ".":
        (folder / link).symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    else:
        shutil.copytree(folder / f"{STEPS:06d}", folder / link)
        (folder / link / linked).unlink()
        (folder / link / linked).symlink_to(tmp_path / "elsewhere" / linked)
    try:
        nodes = changed(given, TRAIN, resume_from=f"given/v0/{link}", steps=99)
        assert "link that leads out" in refused(server, nodes, TRAIN)
    finally:
        (folder / link).unlink() if linked == "." else shutil.rmtree(folder / link)


@pytest.fixture(scope="module")
def given(shared_server):
    """A finished run's graph."""
    nodes = graph("given")
    shared_server.run(nodes)
    return nodes
