"""What goes wrong is said on the right node, in three parts, and the server goes on."""

import json

import pytest
from comfyui.conftest import write_images
from comfyui.graphs import (
    BASE,
    CACHE,
    DATASET,
    SAVE,
    SETTINGS,
    TRAIN,
    cache_files,
    checkpoints,
    disturb,
    graph,
    loaded_run,
    node,
    panel,
    record,
    run_folder,
    runs,
)

pytestmark = pytest.mark.comfy


def refused(server, nodes, node):
    """Run a graph that must fail on a node; gives the message."""
    failure = server.failure(server.result(server.queue(nodes)))
    assert failure["event"] == "execution_error", failure
    assert failure["node_id"] == node, failure["exception_message"]
    assert failure["exception_type"] in {"Wrong input", "Run failed"}
    message = failure["exception_message"]
    for part in ("Found: ", "\nExpected: ", "\nTo do: "):
        assert part in message
    return message


def refused_at_once(server, nodes, node):
    """Queue a graph that is not even begun because of a node; gives the message."""
    status, answer = server.post("/prompt", {"prompt": nodes, "client_id": server.client})
    assert status == 400, answer
    # ComfyUI repeats what a node says for each input that the node has looked at.
    errors = answer["node_errors"][node]["errors"]
    (message,) = {error["details"].partition(" - ")[2] for error in errors}
    for part in ("Found: ", "\nExpected: ", "\nTo do: "):
        assert part in message
    return message


def refused_soon(server, nodes, node):
    """Queue a graph that fails on a node, at the queue or when it runs; gives the message."""
    status, answer = server.post("/prompt", {"prompt": nodes, "client_id": server.client})
    if status == 400:
        return refused_at_once(server, nodes, node)
    failure = server.failure(server.result(answer["prompt_id"]))
    assert failure["node_id"] == node, failure
    return failure["exception_message"]


def assert_alive(server):
    """The next prompt works."""
    server.run({"1": node("InstrumentsNoteState", number=0)})


def test_a_link_that_leads_out_is_refused(server, tmp_path):
    secret = write_images(tmp_path / "secret")
    link = server.data / "datasets" / "link"
    link.symlink_to(secret, target_is_directory=True)
    try:
        nodes = graph("link", dataset={"folder": "datasets/link"})
        message = refused_at_once(server, nodes, DATASET)
        below = graph("link", dataset={"folder": "datasets/link/.."})
        refused_at_once(server, below, DATASET)
    finally:
        link.unlink()
    assert "link" in message
    assert str(tmp_path) not in message


def test_a_base_that_comfyui_does_not_have_is_refused_by_its_name(server):
    from fixtures.families import record
    from safetensors.torch import save_file

    folder = server.data / "models" / "diffusion_models"
    folder.mkdir(parents=True, exist_ok=True)
    state = record("qwen_image_21").small().state_dict()
    save_file(state, folder / "qwen_image_2.1_bf16.safetensors")
    nodes = graph("base", base={"source": "diffusion_models/qwen_image_2.1_bf16.safetensors"})
    message = refused_at_once(server, nodes, BASE)
    assert "ComfyUI 0.33 has no QwenImage 2.1" in message
    assert "Train with the command line" in message


def test_a_gguf_file_is_listed_and_its_fault_is_told(server):
    """ComfyUI itself lists none."""
    folder = server.data / "models" / "diffusion_models" / "below"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "odd.GGUF").write_bytes(b"GGUF")
    source = "diffusion_models/below/odd.GGUF"
    assert source in json.dumps(server.get("/object_info/AdapterTrainerBase"))
    nodes = graph("base", base={"source": source})
    assert "not a readable GGUF file" in refused_at_once(server, nodes, BASE)


def test_names_that_lead_out_are_refused(server, finished):
    for name in ("../out", "/tmp/out", "a/b", "", "C:x", "a\0b", "é" * 90, "cache", "CON"):
        refused_at_once(server, graph(name), TRAIN)
    assert not (server.data / "output" / "out").exists()
    assert not (server.data / "output" / "adapter_trainer" / "a").exists()
    before = files_of(server)
    # Another than a run's may have folders.
    for name in ("../out", "/tmp/out", "a/../../out", "con", "a/", "\u202eout", " a"):
        refused_at_once(server, saved_run(name), SAVE)
    assert files_of(server) == before


def saved_run(name):
    """A graph with no other end than Save Adapter; with another one, ComfyUI would run that."""
    nodes = loaded_run("finished/v0", name=name)
    return {"1": nodes["1"], SAVE: nodes["3"]}


def convert(file, **inputs):
    given = {"layout": "comfyui", "family": "auto", "name": "x", "overwrite": False, **inputs}
    return {"1": node("AdapterTrainerConvert", file=file, **given)}


def files_of(server):
    """All files that a node could have written, the runs' own apart."""
    return {
        path
        for path in server.data.rglob("*")
        if path.is_file() and "adapter_trainer" not in path.parts and path != server.log
    }


@pytest.fixture(scope="module")
def finished(shared_server):
    shared_server.run(graph("finished", train={"steps": 1}))


def test_a_run_or_an_adapter_that_is_not_there_is_refused(server, finished):
    runs = ("../v0", "finished", "finished/../v0", "/etc", "none/v0", "")
    files = ("../x.safetensors", "/etc/passwd", "none.safetensors", "")
    for nodes in (*map(loaded_run, runs), *map(convert, files)):
        assert "extra_model_paths" not in refused(server, nodes, "1")


def test_a_loss_that_is_not_finite_stops_at_the_last_good_state(server):
    nodes = graph("wild", settings={"recovery_skips": 0, "recovery_returns": 0})
    disturb(server, "poison", at=4)
    message = refused(server, nodes, TRAIN)
    assert "step 4 is not finite" in message
    assert ".png" in message
    folder = run_folder(server, "wild")
    assert (record(folder)["status"], checkpoints(folder)) == ("failed", [3])
    shown = panel(server)
    assert (shown["status"], shown["message"]) == ("failed", "stopped after step 3")
    assert "step 4 is not finite" in shown["error"]["found"]
    # The step would break again from there at any rate, so the next Run is a new version.
    assert record(folder)["non_finite"]["step"] == 4
    server.run(nodes)
    *_, newest = runs(server, "wild")
    assert newest != folder
    assert record(newest)["status"] == "done"


def test_a_text_encoders_rank_is_for_what_another_node_switches_on(server):
    """Training Settings cannot know whether Cache Embeddings does, and leaves it to the run."""
    nodes = graph("text", settings={"text_encoder_rank": 4}, train={"steps": 1})
    assert "train_text_encoder" in refused(server, nodes, TRAIN)
    nodes = graph("text", settings={"text_encoder_rank": 4, "optimizer": "prodigy"})
    assert "prodigy" in refused_at_once(server, nodes, SETTINGS)
    nodes = graph("text", cache={"train_text_encoder": True}, settings={"text_encoder_rank": 4})
    assert "pooled text of CLIP-L" in refused(server, nodes, CACHE)


def test_a_clip_of_another_model_is_refused_where_it_is_encoded(server):
    nodes = graph("other_clip", train={"steps": 1}, dataset={"resolution": 64})
    nodes["20"] = node("TinyModelForTests", model="sdxl", seed=0, precision="fp32")
    nodes["21"] = node("TinyModelForTests", model="sd15", seed=0, precision="fp32")
    nodes[BASE] = node("AdapterTrainerBaseFromModel", model=["20", 0], precision="auto")
    nodes[CACHE]["inputs"] |= {"clip": ["21", 1], "vae": ["20", 2]}
    before = cache_files(server, "latents")
    assert "CLIP that the model is sampled with" in refused(server, nodes, CACHE)
    assert cache_files(server, "latents") == before
