"""Captions that a graph's CLIP of Chroma encodes, against the headless encoders."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from fixtures import graph_models
from safetensors.torch import load_file, save_file

from trainer_core.families.chroma.encode import ChromaEncoders

# `make test` runs the encoders of other families: test_graph_encoders, test_chat_encoders.
pytestmark = [pytest.mark.comfy, pytest.mark.exhaustive]

CAPTIONS = ("a red circle", " ".join(["two blue squares {on} a green background"] * 12), "")
TEXTS = [{"caption": each, "length": length} for length in (None, 20) for each in CAPTIONS]


@pytest.fixture(scope="module")
def found(comfy_host, tmp_path_factory):
    """What one run of ComfyUI's interpreter found, and the headless encoders."""
    from transformers import AutoTokenizer

    folder, model = tmp_path_factory.mktemp("chroma"), graph_models.make_t5()
    save_file(graph_models.t5_file(model), folder / "clip.safetensors")
    jobs = {
        "family": "chroma",
        "part": "t5xxl",
        "sizes": graph_models.T5_CONFIG,
        "kind": ("pixart_t5", "pixart_te", "PixArtTokenizer"),
        "wrong": {"flux": ("flux", "flux_clip", "FluxTokenizer")},
        "texts": [{"variant": "generate", **each} for each in TEXTS],
    }
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="utf-8")
    comfy_host.run("chat_process.py", folder)
    tokenizer = AutoTokenizer.from_pretrained(
        comfy_host.root / "comfy" / "text_encoders" / "t5_tokenizer"
    )
    facts = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    tensors = load_file(folder / "results.safetensors")
    return SimpleNamespace(
        facts=facts,
        tensors=tensors,
        headless=lambda length: ChromaEncoders(tokenizer, model, cast(Any, None), length),
    )


@pytest.mark.parametrize("place", range(len(TEXTS)))
def test_a_text_is_that_of_the_headless_encoders_and_of_comfyuis_node(found, place):
    caption, length = TEXTS[place]["caption"], TEXTS[place]["length"]
    expected = found.headless(length or 10_000).encode_text(caption)["text_embeddings"]
    mine, node = found.tensors[f"text {place}/text_embeddings"], found.tensors[f"node {place}/text"]
    assert mine.shape == expected.shape
    assert float((mine - expected).norm() / expected.norm()) < 1e-4
    if len(mine) == len(node):
        assert torch.equal(mine, node)
    else:
        assert len(mine) == length < len(node)


def test_the_clip_of_flux_is_refused_by_name(found):
    kind, *lines = found.facts["error flux"]
    assert kind == "InputError"
    assert "the CLIP of Chroma" in " ".join(lines)
    assert "type chroma" in " ".join(lines)
