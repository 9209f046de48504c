"""The memory estimate of a run on a finished cache counts the texts that are there."""

import json
from pathlib import Path

import pytest
import torch
from runs import run_config
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from trainer_core.families.registry import get_family
from trainer_core.training import SingleProcess
from trainer_core.training.cache_manifest import read_manifest
from trainer_core.training.encode_dataset import prepare, save_manifest
from trainer_core.training.memory_estimate import cached_run_estimate, check_memory, text_tokens
from trainer_core.training.observer import SilentObserver

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def encoded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoded")
    config = run_config(folder / "runs", folder / "cache")
    with torch.inference_mode(False):
        prepared = prepare(config, SilentObserver(), SingleProcess(CPU))
    manifest = save_manifest(config, prepared)
    return run_config(folder / "runs", folder / "cache", cache={"manifest": str(manifest)})


def test_the_longest_text_of_the_cache_counts(encoded):
    dataset = read_manifest(Path(encoded.cache.manifest)).dataset
    samples = [dataset.load(index) for index in range(len(dataset))]
    lengths = {len(sample.conditioning["text_embeddings"]) for sample in samples}
    assert text_tokens(dataset.items) == max(lengths)
    assert text_tokens(dataset.items) < get_family("qwen_image").text_length / 10


def test_of_a_base_that_is_tiny_beside_what_is_free_nothing_is_simulated(encoded):
    whole = cached_run_estimate(encoded, CPU)
    assert whole["total"] > whole["base"]
    small = cached_run_estimate(encoded, CPU, free=65 * whole["base"])
    assert small == {"base": whole["base"], "total": whole["base"]}
    assert check_memory(small, 65 * whole["base"], CPU) is None
    assert cached_run_estimate(encoded, CPU, free=63 * whole["base"]) == whole


@pytest.mark.exhaustive
def test_the_estimate_grows_with_the_text_alone(encoded):
    before = cached_run_estimate(encoded, CPU)
    items = read_manifest(Path(encoded.cache.manifest)).dataset.items
    longest = lengthen(items[0].text.path, 500)
    assert text_tokens(items) == 500
    assert text_tokens(items[20:]) == longest, "one sample's text counts for all"
    after = cached_run_estimate(encoded, CPU)
    assert after["base"] == before["base"]
    # An image of 64 x 64 and its text against one with a text of 500 tokens: what does not grow
    # with the tokens, such as the rotary tables, is there in both.
    image = 16
    ratio = (image + 500) / (image + longest)
    assert ratio / 3 < after["activations"] / before["activations"] < ratio


def lengthen(path, tokens):
    """Give an entry a text of so many tokens, with a header that fits; its longest so far."""
    with safe_open(str(path), framework="pt") as file:
        metadata = dict(file.metadata())
    tensors = load_file(str(path))
    before = max(
        load_file(str(other))["text_embeddings"].shape[0]
        for other in path.parent.glob("*.safetensors")
    )
    tensors["text_embeddings"] = torch.zeros(tokens, tensors["text_embeddings"].shape[1])
    shapes = {name: list(tensors[name].shape) for name in sorted(tensors)}
    save_file(tensors, str(path), metadata={**metadata, "shapes": json.dumps(shapes)})
    return before
