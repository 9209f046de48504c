"""CLIP-L that a graph trains, applied and drawn with in the same graph.

Small text encoders of ComfyUI's own classes, as in `test_flux_graph`. What Apply Adapter does is
held to ComfyUI's Load LoRA on the saved file, and to what the trainer's own model computes.
"""

import functools
import shutil
from pathlib import Path

import pytest
import torch
from comfyui import test_flux_graph as flux
from comfyui.conftest import comfy_programs, make_data
from comfyui.server import comfy_server
from comfyui.test_flux_graph import (
    CACHE,
    ENCODERS,
    LATENTS,
    MODEL,
    PLAIN,
    PLAIN_LATENTS,
    PROMPT,
    SAMPLER,
    SAVE,
    SETTINGS,
    TRAIN,
    Drawn,
)
from safetensors.torch import load_file

from trainer_core.adapter_files.names.text_names import TEXT_ENCODER
from trainer_core.bases.locate import locate_base
from trainer_core.config import BaseSection
from trainer_core.families.registry import get_family
from trainer_core.families.trainable_text import join_text

# A server and a training of its own.
pytestmark = [pytest.mark.comfy, pytest.mark.slow, pytest.mark.exhaustive]

NAME = "flux_clip"
APPLY, SAID, CHECK = "40", "41", "42"
UNREAD = "lora key not loaded: lora_te1"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder, python = comfy_programs()
    data = make_data(tmp_path_factory.mktemp("flux_clip"))
    pack = data / "custom_nodes" / "small_encoders"
    pack.mkdir()
    shutil.copyfile(Path(__file__).with_name("small_encoders.py"), pack / "__init__.py")
    flux.write_models(data / "models")
    with comfy_server(folder, python, data, "--fp32-unet") as server:
        yield server
    shutil.rmtree(data / "models")  # they are large


def graph(apply, name):
    """The shipped FLUX graph that trains CLIP-L too; `apply` puts the adapter on model and CLIP."""
    nodes = flux.graph("lora")
    for node in (flux.LOSS, flux.DECODE, flux.IMAGE, "13", PLAIN, PLAIN_LATENTS):
        del nodes[node]
    nodes[CACHE]["inputs"]["train_text_encoder"] = True
    # Far more than anybody would take, so that a few steps are seen.
    nodes[SETTINGS]["inputs"] |= {"text_encoder_learning_rate": 0.05, "text_encoder_rank": 4}
    nodes[TRAIN]["inputs"]["name"] = nodes[SAVE]["inputs"]["name"] = NAME
    nodes[APPLY] = apply
    nodes[SAMPLER]["inputs"]["model"] = [APPLY, 0]
    two = apply["class_type"] != "LoraModelLoader"
    nodes[PROMPT]["inputs"]["clip"] = [APPLY, 1] if two else [ENCODERS, 0]
    said = {"conditioning": [PROMPT, 0], "name": name}
    nodes[SAID] = {"class_type": "SmallSaveConditioning", "inputs": said}
    nodes[LATENTS]["inputs"]["filename_prefix"] = f"latents/{name}"
    return nodes


def applied(**inputs):
    given = {"model": [MODEL, 0], "clip": [ENCODERS, 0], "lora": [TRAIN, 0]}
    strengths = {"strength_model": 1.0, "strength_clip": 1.0}
    return {"class_type": "AdapterTrainerApply", "inputs": given | strengths | inputs}


APPLIED = {
    "applied": applied(),
    "half": applied(strength_model=0.5, strength_clip=0.25),
    "off": applied(strength_model=0.0, strength_clip=0.0),
    "denoiser": {
        "class_type": "LoraModelLoader",
        "inputs": {"model": [MODEL, 0], "lora": [TRAIN, 0], "strength_model": 1.0, "bypass": False},
    },
}


def from_file(strength_model, strength_clip):
    inputs = {"model": [MODEL, 0], "clip": [ENCODERS, 0], "lora_name": f"{NAME}.safetensors"}
    strengths = {"strength_model": strength_model, "strength_clip": strength_clip}
    return {"class_type": "LoraLoader", "inputs": inputs | strengths}


@pytest.fixture(scope="module")
def drawn(server):
    drawn = Drawn(server)
    for name, apply in APPLIED.items():
        nodes = graph(apply, name)
        if name == "applied":
            checked = {"model": [MODEL, 0], "file": "none", "lora": [TRAIN, 0]}
            inputs = checked | {"on_problem": "stop"}
            nodes[CHECK] = {"class_type": "AdapterTrainerCheck", "inputs": inputs}
        drawn.run(nodes, name)
    trained = {CACHE, TRAIN, SAVE}
    for name, strengths in (("file", (1.0, 1.0)), ("half-file", (0.5, 0.25))):
        nodes = graph(from_file(*strengths), name)
        drawn.run({node: each for node, each in nodes.items() if node not in trained}, name)
    return drawn


def said(drawn, name):
    folder = drawn.server.data / "output" / "conditioning"
    return load_file(folder / f"{name}.safetensors")


@functools.cache
def our_model(data):
    family = get_family("flux")
    path = data / "models" / "diffusion_models" / "flux1-dev.safetensors"
    location = locate_base(BaseSection(path=str(path)), family, False, needs_encoders=False)
    transformer = family.load_transformer(location, torch.float32, "cpu")
    join_text(transformer, flux.small_clip())
    return family, transformer


def test_one_training_serves_all_graphs_and_trains_both_parts(server, drawn):
    (folder,) = (server.data / "output" / "adapter_trainer" / NAME).iterdir()
    assert folder.name == "v0"
    tensors = load_file(drawn.adapter("clip"))
    of_text = {name for name in tensors if name.startswith("lora_te1_")}
    assert len(of_text) == 2 * 6 * 3  # layers, matrices of each; up, down and alpha
    assert all(bool(each.any()) for each in tensors.values())
    assert of_text < tensors.keys()


@pytest.mark.parametrize(("name", "file"), [("applied", "file"), ("half", "half-file")])
def test_apply_adapter_does_what_load_lora_does_with_the_file(name, file, drawn):
    assert drawn.said[name] == drawn.said[file] == []
    ours, theirs = said(drawn, name), said(drawn, file)
    assert torch.equal(ours["pooled"], theirs["pooled"])
    assert torch.equal(ours["text"], theirs["text"])
    assert torch.equal(drawn.latents(name), drawn.latents(file))


def test_the_trained_clip_says_something_else_and_t5_the_same(drawn):
    plain, found = said(drawn, "off"), said(drawn, "applied")
    assert flux.relative(found["pooled"], plain["pooled"]) > 1e-2
    assert torch.equal(found["text"], plain["text"])


def test_what_was_trained_is_what_the_graph_draws(server, drawn):
    family, transformer = our_model(server.data)
    text = flux.cached_text(server.data)
    assert "clip_tokens" in text
    ours = flux.drawn_by(family, transformer, text, drawn.adapter("clip"))
    base = flux.drawn_by(family, transformer, text)
    assert flux.faults(ours, base, drawn.latents("applied"), drawn.latents("off")) == {}
    assert hasattr(transformer, TEXT_ENCODER)


def test_load_lora_model_leaves_the_trained_clip_out(server, drawn):
    """It is ComfyUI's own node for adapters of a graph; it logs what it leaves out."""
    assert len([line for line in drawn.said["denoiser"] if UNREAD in line]) == 2 * 6 * 3
    assert torch.equal(said(drawn, "denoiser")["pooled"], said(drawn, "off")["pooled"])
    assert not torch.equal(drawn.latents("denoiser"), drawn.latents("applied"))
