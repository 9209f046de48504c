"""CLIP-L that was trained here, through a real ComfyUI's Load LoRA; and trained on its own CLIP."""

import json

import pytest
import torch
from fixtures import graph_models
from safetensors.torch import load_file, save_file

from tests.fixtures.combinations import some
from tests.fixtures.random_weights import randomize
from trainer_core.adapter_files.names.text_encoder_names import TARGETS
from trainer_core.adapter_files.write.write_adapter import write_adapter
from trainer_core.adapters import attach
from trainer_core.config import RunConfig
from trainer_core.families.registry import get_family
from trainer_core.families.trainable_text import JoinedText, join_text, with_text

pytestmark = pytest.mark.comfy

CAPTIONS = ["a red circle", "", "a (red:1.3) cube", "a very long river, " * 40]
SIZES = {
    "hidden_size": 24,
    "intermediate_size": 32,
    "num_attention_heads": 2,
    "num_hidden_layers": 2,
}


def small_clip():
    from transformers import CLIPTextConfig, CLIPTextModel

    config = CLIPTextConfig(vocab_size=49408, hidden_act="quick_gelu", **SIZES)
    return randomize(CLIPTextModel(config), 3)


@pytest.fixture(scope="module", params=some(["comfyui", "kohya", "diffusers"], "comfyui"))
def results(request, comfy_host, tmp_path_factory):
    """What ComfyUI made of the file, and our CLIP-L with the adapter on it."""
    folder = tmp_path_factory.mktemp(request.param)
    clip = small_clip()
    save_file(graph_models.clip_l_file(clip), folder / "clip_l.safetensors")
    save_file(graph_models.t5_file(graph_models.make_t5()), folder / "t5xxl.safetensors")
    options = {"clip_l_model_config": SIZES, "t5xxl_model_config": graph_models.T5_CONFIG}
    (folder / "sizes.json").write_text(json.dumps(options), encoding="utf-8")
    (folder / "captions.json").write_text(json.dumps(CAPTIONS), encoding="utf-8")
    module = torch.nn.Module()
    join_text(module, clip)
    settings = with_text(
        RunConfig.model_validate(
            {"adapter": {"kind": "lora"}, "training": {"text_encoder": {"train": True, "rank": 4}}}
        )
    )
    adapter = attach(module, settings.adapter, [TARGETS])
    with torch.no_grad():
        for number, each in enumerate(adapter.parameters()):
            generator = torch.Generator().manual_seed(number)
            each.copy_(torch.randn(each.shape, generator=generator) / 4)
    key_map = get_family("flux").layers.key_map
    write_adapter(folder / "adapter.safetensors", adapter.state(), request.param, key_map, {})
    facts = comfy_host.results("clip_process.py", folder)
    return facts, load_file(folder / "results.safetensors"), module.text_encoder


def test_load_lora_knows_every_key(results):
    facts, _, _ = results
    assert facts["messages"] == []
    assert facts["patched"] == 2 * 6


def test_the_pooled_text_changes_as_ours_does(results):
    _, found, model = results
    assert isinstance(model, JoinedText)
    for number in range(len(CAPTIONS)):
        with torch.no_grad():
            ours = model(found[f"tokens.{number}"][None])[0]
        theirs, plain = found[f"changed.{number}"], found[f"plain.{number}"]
        assert float((theirs - plain).norm() / plain.norm()) > 1e-2
        assert float((theirs - ours).norm() / ours.norm()) < 1e-5


def test_the_graphs_clip_is_trained_with_its_own_tokens_and_weights(results):
    facts, found, _ = results
    assert facts["conditioning"] == ["clip_tokens", "text_embeddings"]
    assert facts["identities"][0] != facts["identities"][1]
    for number in range(len(CAPTIONS)):
        assert found[f"tokens.{number}"].shape == (77,)
        ours, plain = found[f"ours.{number}"], found[f"plain.{number}"]
        assert float((ours - plain).norm() / plain.norm()) < 1e-5
