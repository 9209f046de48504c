"""Base From Model on a real server: from a MODEL of the graph to a LoRA that its sampler loads."""

from types import SimpleNamespace

import pytest
from comfyui.graphs import (
    BASE,
    CACHE,
    TRAIN,
    cached_nodes,
    changed,
    graph,
    node,
    panel,
    record,
    run_folder,
    runs,
    weights,
)

pytestmark = pytest.mark.comfy

MODEL, BEFORE, AFTER, LORA, TEXT, LATENT, SAMPLER, SHOWN = (f"m{at}" for at in range(8))


def model_graph(name, model="sdxl", steps=4, *, previews=False, dataset=None, **settings):
    """The shipped graph in small, with a tiny MODEL in the base's place and its LoRA sampled."""
    own = {"train": {"steps": steps}, "settings": {"checkpoint_every": 0, **settings}}
    nodes = graph(name, previews=previews, dataset=dataset or {}, **own)
    nodes[MODEL] = node("TinyModelForTests", model=model, seed=0, precision="fp32")
    nodes[BASE] = node("AdapterTrainerBaseFromModel", model=[MODEL, 0], precision="fp32")
    nodes[CACHE]["inputs"] |= {"clip": [MODEL, 1], "vae": [MODEL, 2]}
    nodes[TRAIN]["inputs"]["vae"] = [MODEL, 2]
    nodes[BEFORE] = node("WeightsHash", model=[MODEL, 0])
    nodes[AFTER] = node("WeightsHash", model=[MODEL, 0], after=[TRAIN, 0])
    return nodes


def sampled(nodes):
    """The same, with the adapter on the MODEL and an image of KSampler behind it."""
    nodes[LORA] = node(
        "LoraModelLoader", model=[MODEL, 0], lora=[TRAIN, 0], strength_model=1.0, bypass=False
    )
    nodes[TEXT] = node("CLIPTextEncode", clip=[MODEL, 1], text="a red diamond")
    nodes[LATENT] = node("EmptyLatentImage", width=64, height=64, batch_size=1)
    nodes[SAMPLER] = node(
        "KSampler",
        model=[LORA, 0],
        positive=[TEXT, 0],
        negative=[TEXT, 0],
        latent_image=[LATENT, 0],
        seed=1,
        steps=2,
        cfg=1.0,
        sampler_name="euler",
        scheduler="simple",
        denoise=1.0,
    )
    nodes[SHOWN] = node("VAEDecode", samples=[SAMPLER, 0], vae=[MODEL, 2])
    nodes["m9"] = node("SaveImage", images=[SHOWN, 0], filename_prefix="made")
    return nodes


def hashes(result):
    return {result["outputs"][each]["text"][0] for each in (BEFORE, AFTER)}


@pytest.fixture(scope="module")
def trained(shared_server):
    """A run on a MODEL whose adapter is sampled: its graph, what came of it, and what was said."""
    said = len(shared_server.log.read_text(errors="replace"))
    nodes = sampled(model_graph("of_graph"))
    result = shared_server.run(nodes)
    state, log = panel(shared_server), shared_server.log.read_text(errors="replace")[said:]
    file = run_folder(shared_server, "of_graph") / "of_graph.safetensors"
    return SimpleNamespace(nodes=nodes, result=result, state=state, log=log, weights=weights(file))


def test_a_model_of_the_graph_is_trained_sampled_and_left_as_it_was(server, trained):
    assert len(hashes(trained.result)) == 1
    assert trained.result["outputs"]["m9"]["images"]
    assert "lora key not loaded" not in trained.log
    assert (trained.state["status"], trained.state["step"]) == ("done", 4)
    assert all("diffusion_model.input_blocks" in n or "block" in n for n in trained.weights)
    # Nothing is done again, a longer run goes on with the same model, and another is another base.
    assert TRAIN in cached_nodes(server.run(trained.nodes))
    server.run(changed(trained.nodes, TRAIN, steps=6))
    folder = run_folder(server, "of_graph")
    assert (record(folder)["status"], record(folder)["step"]) == ("done", 6)
    server.run(changed(model_graph("of_graph"), MODEL, seed=1))
    assert len({record(each)["hashes"]["base"] for each in runs(server, "of_graph")}) == 2


def test_an_encoder_of_another_model_is_told(server):
    nodes = model_graph("strange")
    nodes["m10"] = node("TinyModelForTests", model="flux", seed=0, precision="fp32")
    nodes[CACHE]["inputs"]["vae"] = ["m10", 2]
    failure = server.failure(server.result(server.queue(nodes)))
    assert failure["node_id"] == CACHE
    assert "4 channels" in failure["exception_message"]
