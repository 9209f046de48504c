"""Captions that a graph's CLIP of a chat model or of Chroma encodes, against the headless ones."""

import functools
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from fixtures import graph_models
from safetensors.torch import load_file, save_file

from tests.fixtures.combinations import some
from tests.fixtures.small_chat_models import small_qwen3, small_qwen3_vl
from trainer_core.families.chat_text import ChatEncoders
from trainer_core.families.krea2.encode import CHAT as KREA2
from trainer_core.families.t5_text import T5Encoders
from trainer_core.families.z_image.encode import CHAT

pytestmark = pytest.mark.comfy

# ComfyUI fixes the size of a head.
SIZES = {
    "vocab_size": 151936,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
}
SHORT, LONG = "a red circle", " ".join(["two blue squares {on} a green background"] * 12)
CAPTIONS = (SHORT, LONG, "", "caf\u00e9\n\n(red:1.2) \u732b")
TEXTS = [
    *({"caption": caption, "length": None} for caption in CAPTIONS),
    *({"caption": caption, "length": 20} for caption in CAPTIONS),
]
NO_VAE = cast(Any, None)


def chat_encoders(chat, words, model, length):
    return ChatEncoders(chat, words, model, NO_VAE, length, (0, 0), "generate")


CASES = {
    "z_image": {
        "encoders": functools.partial(chat_encoders, CHAT),
        "kind": ("z_image", "te", "ZImageTokenizer"),
        "part": "qwen3_4b",
        "model": small_qwen3,
        "sizes": SIZES,
        "wrong": {"klein": ("flux", "klein_te", "KleinTokenizer")},
    },
    "krea2": {
        "encoders": functools.partial(chat_encoders, KREA2),
        "kind": ("krea2", "te", "Krea2Tokenizer"),
        "part": "qwen3vl_4b",
        "model": small_qwen3_vl,
        # It reads states of all of its blocks.
        "sizes": {**SIZES, "num_hidden_layers": 36},
        # The same template for captions, another for images.
        "wrong": {"mage": ("mage_flow", "te", "MageFlowTokenizer")},
    },
    "chroma": {
        "encoders": lambda words, model, length: T5Encoders(words, model, NO_VAE, length, "Chroma"),
        "kind": ("pixart_t5", "pixart_te", "PixArtTokenizer"),
        "part": "t5xxl",
        "model": graph_models.make_t5,
        "sizes": graph_models.T5_CONFIG,
        "wrong": {"flux": ("flux", "flux_clip", "FluxTokenizer")},
        "refused": ("the CLIP of Chroma", "type chroma"),
        # ComfyUI gives its words their weights. Each token sees those that are behind it.
        "texts": [each | {"caption": each["caption"].replace("(red:1.2)", "")} for each in TEXTS],
        "causal": False,
    },
}
REFUSED = ("with another prompt template", "Load CLIP")


@pytest.fixture(scope="module", params=some(CASES, "krea2"))
def found(request, comfy_host, tmp_path_factory):
    """What one run of ComfyUI's interpreter found for a family, and its headless encoders."""
    from transformers import AutoTokenizer

    case, folder = CASES[request.param], tmp_path_factory.mktemp(request.param)
    if request.param == "chroma":
        model, words = case["model"](), "t5_tokenizer"
        save_file(graph_models.t5_file(model), folder / "clip.safetensors")
    else:
        model, words = case["model"](**case["sizes"], head_dim=128), "qwen25_tokenizer"
        state = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        save_file(state, folder / "clip.safetensors")
    texts = case.get("texts", TEXTS)
    jobs = {
        "family": request.param,
        **{name: case[name] for name in ("part", "sizes", "kind", "wrong")},
        "texts": [{"variant": "generate", **each} for each in texts],
    }
    facts = comfy_host.results("chat_process.py", folder, jobs=jobs)
    tokenizer = AutoTokenizer.from_pretrained(comfy_host.root / "comfy" / "text_encoders" / words)

    def headless(length):
        return case["encoders"](tokenizer, model, length)

    tensors = load_file(folder / "results.safetensors")
    return SimpleNamespace(
        tensors=tensors,
        facts=facts,
        headless=headless,
        texts=texts,
        causal=case.get("causal", True),
        refused=case.get("refused", REFUSED),
    )


@pytest.mark.parametrize("place", range(len(TEXTS)))
def test_a_text_is_that_of_the_headless_encoders(found, place):
    caption, length = found.texts[place]["caption"], found.texts[place]["length"] or 10_000
    expected = found.headless(length).encode_text(caption)["text_embeddings"]
    mine = found.tensors[f"text {place}/text_embeddings"]
    assert mine.shape == expected.shape
    assert float((mine - expected).norm() / expected.norm()) < 1e-4


def test_a_text_that_is_not_cut_is_that_of_comfyuis_node(found):
    for place, text in enumerate(found.texts):
        mine, node = (
            found.tensors[f"text {place}/text_embeddings"],
            found.tensors[f"node {place}/text"],
        )
        if found.causal or len(mine) == len(node):
            assert torch.equal(mine.flatten(1), node[: len(mine)])
        assert (len(mine) == len(node)) == (text["length"] is None or len(node) <= 20)


def test_tokens_are_counted_as_they_are_read(found):
    whole = [len(found.tensors[f"text {place}/text_embeddings"]) for place in range(len(CAPTIONS))]
    assert found.facts["counts"] == whole * 2
    assert found.facts["not ordinary"] == []


def test_another_models_clip_is_refused(found):
    refused = [fact for name, fact in found.facts.items() if name.startswith("error ")]
    assert refused
    for kind, *lines in refused:
        assert kind == "InputError"
        assert all(words in " ".join(lines) for words in found.refused)
